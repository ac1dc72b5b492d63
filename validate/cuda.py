"""The third training step of the real model on a CUDA device: what the caching allocator says about it.

Runs as well where PyTorch's CUDA build only believes that there is a device, with kernels switched off: allocator,
kernel choice, workspaces and optimizers are then PyTorch's own, cuDNN's workspaces and the CUDA context are not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .build import build_model, named_refusals
from .events import PHASES
from .loops import LOOPS, STEPS, Job
from .optim import make_optimizer

__all__ = ["DEVICE", "CudaJob", "CudaMeasurement", "Peaks", "clean", "measure"]

DEVICE = "cuda"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CudaMeasurement:
    """Peaks in bytes: of each phase of the third step, of the first step, and of what was ever reserved.

    ``left_bytes`` were allocated before the model was: 0 in a process that did nothing else.
    """

    allocated_bytes: int
    phases: Mapping[str, int]
    first_step_bytes: int
    reserved_bytes: int
    num_alloc_retries: int
    left_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


class CudaJob(Job):
    """The loops of :mod:`vitmem.validate.loops` with CUDA's own autocast and scaler."""

    __slots__ = ()

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.settings.precision)
        return nullcontext() if dtype is None else torch.autocast(DEVICE, dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(DEVICE, enabled=self.settings.precision == "fp16")

    def inference(self) -> AbstractContextManager[Any]:
        return torch.inference_mode()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()


class Peaks:
    """A ``vitmem.validate.loops.Recorder`` that reads the allocator's peaks between phases."""

    def __init__(self) -> None:
        self.step = 0
        self.allocated: dict[tuple[int, str], int] = {}
        self.reserved: dict[tuple[int, str], int] = {}

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats()
        yield
        place = self.step, phase
        self.allocated[place] = max(self.allocated.get(place, 0), torch.cuda.max_memory_allocated())
        self.reserved[place] = max(self.reserved.get(place, 0), torch.cuda.max_memory_reserved())

    def inputs(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step_begins(self, step: int) -> None:
        self.step = step

    def forward_ended(self, *held: Tensor) -> None: ...
    def backward_ended(self) -> None: ...
    def stepped(self) -> None: ...

    def phases(self, step: int) -> dict[str, int]:
        """The phases of one step, without what comes before it or after it."""
        return {phase: peak for (at, phase), peak in self.allocated.items() if at == step and phase in PHASES}


def measure(settings: TrainSettings) -> CudaMeasurement:
    """Build the model on the host, move it, run three steps; raises NotModelled where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        raise NotModelled("torch sees no CUDA device here; use --backend meta")
    left = clean()
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    built = build_model(settings, "cpu")
    built.model.to(DEVICE)
    job = CudaJob(settings=settings, built=built, optimizer=make_optimizer(settings, built.model), device=DEVICE)
    peaks = Peaks()
    with named_refusals(settings, "trained"):
        LOOPS[settings.loop](job, peaks)
    phases = peaks.phases(STEPS - 1)
    return CudaMeasurement(
        allocated_bytes=max(phases.values()),
        phases=phases,
        first_step_bytes=max(peaks.phases(0).values()),
        reserved_bytes=max(peaks.reserved.values()),
        num_alloc_retries=torch.cuda.memory_stats()["num_alloc_retries"] - retries,
        left_bytes=left,
    )


def clean() -> int:
    """Give back what an earlier measurement left, cuBLAS workspaces included; the bytes that stay."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()
