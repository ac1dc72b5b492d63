"""The watch itself: peaks by phase and step, from PyTorch's own hooks; torch is imported when this is.

Forward is everything until a backward pass begins, backward is ``torch.autograd.backward``, the optimizer step goes
from its end to the end of ``Optimizer.step``, with clipping. The script's own view of the peaks stays as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import sys
import time
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_PHASES = ("forward", "backward", "optimizer_step")
#: Between a backward pass and what comes next: the optimizer's step, or the next micro-step's forward pass.
_BETWEEN = "between"
#: Rows kept one by one; the third and later ones are the steady state.
_FIRST_STEPS = 3


class Watch:
    """One process's figures, in bytes."""

    def __init__(self, folder: str, last_step: int) -> None:
        self.path = os.path.join(folder, f"{os.getpid()}.json")
        self.owner = os.getpid()
        self.last_step = last_step
        self.step = 0
        self.phase = "forward"
        self.peaks: dict[int, dict[str, int]] = {}
        self.between = 0
        self.peak = {"allocated_bytes": 0, "reserved_bytes": 0}
        self.kept: dict[str, Any] = {}
        self.message: str | None = None
        self.stats = torch.cuda.memory.memory_stats_as_nested_dict
        self.reset = torch.cuda.memory.reset_peak_memory_stats

    # the script's view

    def seen_stats(self, device: Any = None) -> dict[str, Any]:
        """``memory_stats_as_nested_dict`` with the peaks since the script itself reset them."""
        stats: dict[str, Any] = merged(self.stats(device), self.kept)
        return stats

    def seen_reset(self, device: Any = None) -> None:
        """``reset_peak_memory_stats``; what was reached counts for the report."""
        self.take()
        self.kept = {}

    # phases

    def take(self) -> None:
        """Give the peak since the last call to the phase that ends or goes on."""
        if not device_is_used():
            return
        now = self.stats(None)
        allocated = now["allocated_bytes"]["all"]["peak"]
        reserved = now["reserved_bytes"]["all"]["peak"]
        self.peak["allocated_bytes"] = max(self.peak["allocated_bytes"], allocated)
        self.peak["reserved_bytes"] = max(self.peak["reserved_bytes"], reserved)
        if self.phase == _BETWEEN:
            self.between = max(self.between, allocated)
        else:
            self.add(self.phase, allocated)
        self.kept = merged(now, self.kept)
        self.reset()

    def add(self, phase: str, allocated: int) -> None:
        row = self.peaks.setdefault(min(self.step, _FIRST_STEPS - 1), {})
        row[phase] = max(row.get(phase, 0), allocated)

    def begin(self, phase: str) -> None:
        self.take()
        if self.phase == _BETWEEN:
            self.add("optimizer_step" if phase == "optimizer_step" else "forward", self.between)
            self.between = 0
        self.phase = phase

    def stepped(self) -> None:
        self.begin("forward")
        self.step += 1
        self.write()
        if self.step == self.last_step:
            raise SystemExit(0)

    # the report

    def write(self) -> None:
        """What is known so far; a process that never used the device writes nothing."""
        if os.getpid() != self.owner or not device_is_used():
            return
        self.take()
        stats = self.stats(None)
        document = {
            "torch": torch.__version__,
            "peak": self.peak,
            "num_steps": self.step,
            "steps": [self.peaks[step] for step in sorted(self.peaks)],
            "num_alloc_retries": stats["num_alloc_retries"],
            "num_ooms": stats["num_ooms"],
            "out_of_memory": self.message and {"message": self.message, "phase": self.phase, "step": self.step},
            **device_counters(),
        }
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(f"{self.path}.new", self.path)

    def finish(self) -> None:
        """The last report.

        A script whose last act is a backward pass ends before autograd's thread has let go of its tensors, and that
        thread asks for an interpreter that is gone: ``terminate called without an active exception``.
        """
        self.write()
        if os.getpid() == self.owner and device_is_used():
            time.sleep(0.2)

    def failed(self, error: BaseException) -> None:
        """The allocator's message, also where another error was raised from it."""
        link: BaseException | None = error
        while link is not None and not isinstance(link, torch.OutOfMemoryError):
            link = link.__cause__ or link.__context__
        if link is not None:
            self.message = str(link)


def device_is_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def merged(now: Any, kept: Any) -> Any:
    """The statistics with the larger of both sides' peaks."""
    if not isinstance(now, dict):
        return now
    return {
        name: max(value, kept.get(name, 0)) if name == "peak" else merged(value, kept.get(name, {}))
        for name, value in now.items()
    }


def device_counters() -> dict[str, Any]:
    """What csrc/core.c counted, in the order of ``Counters`` of csrc/null.h."""
    with contextlib.suppress(OSError, AttributeError):
        core = ctypes.CDLL("libvitmem_null.so")
        counters = (ctypes.c_uint64 * 7)()
        core.null_counters(counters)
        core.null_unanswered_names.restype = ctypes.c_char_p
        names = core.null_unanswered_names().decode().split()
        return {"num_kernels": counters[5], "num_reads": counters[6], "unanswered": names}
    return {}


def install(folder: str, last_step: int) -> None:
    """Hook into torch; the interpreter's end writes the report."""
    watch = Watch(folder, last_step)
    torch.cuda.memory.memory_stats_as_nested_dict = watch.seen_stats
    torch.cuda.memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = watch.seen_reset
    register_optimizer_step_pre_hook(lambda *_: watch.begin("optimizer_step"))
    register_optimizer_step_post_hook(lambda *_: watch.stepped())
    backward, hook, leave = torch.autograd.backward, sys.excepthook, os._exit

    def watched_backward(*args: Any, **kwargs: Any) -> None:
        watch.begin("backward")
        backward(*args, **kwargs)
        watch.begin(_BETWEEN)

    def watched_hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        watch.failed(error)
        hook(kind, error, trace)

    def watched_exit(status: int) -> NoReturn:
        watch.write()
        leave(status)

    torch.autograd.backward = watched_backward
    sys.excepthook = watched_hook
    os._exit = watched_exit  # the way out that skips atexit
    atexit.register(watch.finish)
