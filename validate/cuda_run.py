"""``--backend cuda``: the measurement of :mod:`.cuda` with all that a real GPU has to say besides.

The context, the other processes, the kinds and layers of the peak from the allocator's history, the growth from step
to step. ``memory_bytes`` makes the card smaller: the allocator gets what such a card would leave it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vitmem.errors import InvalidRequest
from vitmem.settings import TrainSettings
from vitmem.units import format_bytes

from .allocator_trace import TraceMarks, TraceReader, follow_trace, record_history
from .build import Built
from .cuda import CudaMeasurement, OutOfMemory, measure, require_device
from .loops import STEPS, Recorder
from .nvml import DeviceUse, device_use, process_ids
from .summary import summarise

__all__ = ["context_bytes", "limit_memory", "measure_all"]

_BY_AUTOCAST = ("fp16", "bf16")


class _Both:
    """Tells two recorders: the allocator's peaks first, then the marks."""

    def __init__(self, first: Recorder, second: Recorder) -> None:
        self._recorders = first, second

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        with ExitStack() as stack:
            for recorder in self._recorders:
                stack.enter_context(recorder.during(phase))
            yield

    @contextmanager
    def inputs(self) -> Iterator[None]:
        with ExitStack() as stack:
            for recorder in self._recorders:
                stack.enter_context(recorder.inputs())
            yield

    def averages(self, model: nn.Module) -> None:
        for recorder in self._recorders:
            recorder.averages(model)

    def step_begins(self, step: int) -> None:
        for recorder in self._recorders:
            recorder.step_begins(step)

    def forward_ended(self, *held: Tensor) -> None:
        for recorder in self._recorders:
            recorder.forward_ended(*held)

    def backward_ended(self) -> None:
        for recorder in self._recorders:
            recorder.backward_ended()

    def stepped(self) -> None:
        for recorder in self._recorders:
            recorder.stepped()


def measure_all(
    settings: TrainSettings, *, num_steps: int = STEPS, memory_bytes: int | None = None, history: str | None = None
) -> dict[str, Any]:
    """``measured`` or ``out_of_memory`` as plain values, and the ``device``; ``history`` is a file for the allocator's
    snapshot, which https://docs.pytorch.org/memory_viz shows."""
    strangers = process_ids()
    require_device()
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    before = device_use(uuid, strangers)
    context = context_bytes(before)
    device = {"name": torch.cuda.get_device_name(), "driver": None if before is None else before.driver}
    if memory_bytes is not None:
        limit_memory(memory_bytes, context)
    marks = TraceMarks()
    record_history()

    def watching(built: Built, optimizer: torch.optim.Optimizer, recorder: Recorder) -> Recorder:
        marks.follow_model(built, optimizer)
        return _Both(recorder, marks)

    try:
        measured = measure(settings, num_steps=num_steps, watching=watching)
    except OutOfMemory as error:
        return {"out_of_memory": {**error.to_dict(), "driver": device["driver"]}, "device": device["name"]}
    finally:
        if history is not None:
            _dump(history)
    seen = device_use(uuid, strangers)
    extra = {"notes": _notes(measured, before, context, memory_bytes), "device_bytes": seen and seen.own_bytes}
    followed = _followed(settings, follow_trace(marks), measured)
    values = {**measured.to_dict(), **extra, "followed": followed, "driver": device["driver"]}
    return {"measured": values, "device": device["name"]}


def context_bytes(use: DeviceUse | None) -> int:
    """What the process has taken of the GPU before it allocates; all that is taken, where only that is known."""
    init: Any = torch.cuda.init
    init()
    if use is not None and use.own_bytes is not None:
        return use.own_bytes
    free, total = torch.cuda.mem_get_info()
    return total - free


def limit_memory(memory_bytes: int, context: int) -> None:
    """The allocator gets what a card of ``memory_bytes`` leaves it beside the context."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if memory_bytes > total:
        raise InvalidRequest(f"this GPU has {format_bytes(total)}, less than --memory asks for; leave it out")
    if memory_bytes <= context:
        raise InvalidRequest(f"the CUDA context alone takes {format_bytes(context)} here; give more --memory")
    torch.cuda.set_per_process_memory_fraction((memory_bytes - context) / total)


def _dump(history: str) -> None:
    path = Path(history)
    try:
        dump: Any = torch.cuda.memory._dump_snapshot
        dump(str(path))
    except OSError as error:
        raise InvalidRequest(f"{history} cannot be written: {error.strerror}") from error


def _notes(measured: CudaMeasurement, use: DeviceUse | None, context: int, memory_bytes: int | None) -> tuple[str, ...]:
    found = [f"the CUDA context took {format_bytes(context)} before the first allocation"]
    if use is None:
        found.append(
            "NVML (nvidia-ml-py and a driver) is not there: the process's memory on the device is not measured"
        )
    else:
        for name, pid, num_bytes in use.others:
            size = "an unknown amount of memory" if num_bytes is None else format_bytes(num_bytes)
            found.append(f"{name} (pid {pid}) was on the GPU as well and held {size}")
    if memory_bytes is not None:
        found.append(f"the process was limited to {format_bytes(memory_bytes)}, context included")
    later = measured.later_steps_bytes
    if later is not None and later > measured.allocated_bytes:
        found.append(
            f"later steps allocated up to {format_bytes(later)}: freed blocks that were too small to be split again"
        )
    if growth := measured.growth_bytes_per_step:
        found.append(f"memory grows by {growth} bytes per step: something keeps what a step makes")
    return tuple(found)


def _followed(settings: TrainSettings, reader: TraceReader, measured: CudaMeasurement) -> dict[str, Any]:
    """Kinds, states and layers; under autocast what a layer saves cannot be told from its copies of weights."""
    summary = summarise(reader, backend="cuda", device="", versions={}, notes=())
    peaks = reader.highest_by_layer()
    knows_saved = settings.precision not in _BY_AUTOCAST
    layers = [
        dataclasses.replace(
            layer,
            saved_activation_bytes=layer.saved_activation_bytes if knows_saved else None,
            peak_bytes=peaks.get(layer.name),
        )
        for layer in summary.layers
    ]
    rounding = measured.allocated_bytes - sum(summary.at_peak.values())
    states = {name: size for name, size in dataclasses.asdict(summary.states).items() if name in _STATES}
    return {
        "at_peak": {**summary.at_peak, "rounding": rounding},
        "states": states,
        "layers": [dataclasses.asdict(layer) for layer in layers],
        "peak": {"layer": summary.peak_layer},
    }


_STATES = ("parameter_bytes", "buffer_bytes", "gradient_bytes", "optimizer_bytes")
