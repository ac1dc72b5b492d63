"""The third training step of the real model on a CUDA device: what the caching allocator says about it.

Runs as well where PyTorch's CUDA build only believes that there is a device, with kernels switched off: allocator,
kernel choice, workspaces and optimizers are then PyTorch's own, cuDNN's workspaces and the CUDA context are not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from vitmem.errors import DoesNotFit, NotModelled
from vitmem.settings import TrainSettings
from vitmem.units import parse_bytes

from .build import Built, build_model, named_refusals
from .distributed.one_rank import alone, first_of, shard
from .events import PHASES
from .loops import LOOPS, STEPS, Job, Recorder
from .optim import make_optimizer

if TYPE_CHECKING:
    from .compiled import Partition

__all__ = [
    "DEVICE",
    "CompiledGraphs",
    "CudaJob",
    "CudaMeasurement",
    "OutOfMemory",
    "Peaks",
    "asked_for",
    "clean",
    "kernel",
    "measure",
    "require_device",
]

DEVICE = "cuda"

SDPA_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


class OutOfMemory(DoesNotFit):
    """``str`` is the allocator's own message; ``phase`` and ``step`` (from 0, None: before the first) say where, and
    ``needed_bytes`` what would have been allocated: at least so much does the step need."""

    def __init__(self, message: str, *, phase: str, step: int | None, needed_bytes: int) -> None:
        super().__init__(message)
        self.phase = phase
        self.step = step
        self.needed_bytes = needed_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
        return {
            "message": str(self),
            "phase": self.phase,
            "step": self.step,
            "needed_bytes": self.needed_bytes,
            "num_alloc_retries": retries,
        }


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
    compiled: CompiledGraphs | None = None
    later_steps_bytes: int | None = None
    step_begins: tuple[int, ...] = ()

    @property
    def growth_bytes_per_step(self) -> int | None:
        """What every steady step left behind; None where too few steps ran to tell."""
        steady = self.step_begins[STEPS - 1 :]
        grown = [after - before for before, after in itertools.pairwise(steady)]
        return max(0, min(grown)) if len(grown) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = dataclasses.asdict(self) | {"growth_bytes_per_step": self.growth_bytes_per_step}
        del values["step_begins"]
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraphs:
    """What the compiled forward keeps for its backward in the third step: ``saved_activation_bytes`` depend on the
    batch, ``saved_weight_bytes`` are copies of weights. ``num_compiled`` forwards were made in three steps."""

    num_compiled: int
    saved_activation_bytes: int
    saved_weight_bytes: int


Watching = Callable[[Built, torch.optim.Optimizer, Recorder], Recorder]


def unwatched(built: Built, optimizer: torch.optim.Optimizer, recorder: Recorder) -> Recorder:
    """Nobody else listens to the loop."""
    return recorder


class CudaJob(Job):
    """The loops of :mod:`vitmem.validate.loops` with CUDA's own autocast and scaler."""

    __slots__ = ()

    def autocast(self) -> AbstractContextManager[Any]:
        if self.settings.compile and self.settings.loop == "trainer":
            return nullcontext()  # accelerate compiles the model with autocast inside
        if self.settings.parallel == "fsdp":
            return nullcontext()  # FSDP casts what it gathers
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
        self.partition: Partition | None = None
        self.step: int | None = None
        self.phase = "setup"
        self.allocated: dict[tuple[int | None, str], int] = {}
        self.reserved: dict[tuple[int | None, str], int] = {}
        self.begins: list[int] = []

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.phase = phase
        torch.cuda.reset_peak_memory_stats()
        if phase == "forward" and self.partition is not None:
            self.partition.forget()
        yield
        place = self.step, phase
        self.allocated[place] = max(self.allocated.get(place, 0), torch.cuda.max_memory_allocated())
        self.reserved[place] = max(self.reserved.get(place, 0), torch.cuda.max_memory_reserved())

    def inputs(self) -> AbstractContextManager[None]:
        return nullcontext()

    def averages(self, model: nn.Module) -> None: ...

    def step_begins(self, step: int) -> None:
        self.step = step
        self.begins.append(torch.cuda.memory_allocated())

    def forward_ended(self, *held: Tensor) -> None: ...
    def backward_ended(self) -> None: ...
    def stepped(self) -> None: ...

    @contextlib.contextmanager
    def running_out(self) -> Iterator[None]:
        """What the device has no room for is a result: the allocator's message, and where."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            needed = torch.cuda.memory_allocated() + asked_for(str(error))
            raise OutOfMemory(str(error), phase=self.phase, step=self.step, needed_bytes=needed) from error

    def phases(self, step: int) -> dict[str, int]:
        """The phases of one step, without what comes before it or after it."""
        return {phase: peak for (at, phase), peak in self.allocated.items() if at == step and phase in PHASES}


def measure(settings: TrainSettings, *, num_steps: int = STEPS, watching: Watching = unwatched) -> CudaMeasurement:
    """Build the model on the host, move it, run the steps; the third is reported, and the highest of the later ones.

    Raises NotModelled where torch sees no CUDA device, OutOfMemory where the device is too small.
    """
    require_device()
    left = clean()
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    built = build_model(alone(settings), "cpu")
    peaks = Peaks()
    with named_refusals(settings, "trained"), peaks.running_out(), kernel(settings), first_of(settings):
        if settings.parallel == "fsdp":
            shard(built.model, settings)
        else:
            built.model.to(DEVICE)
        optimizer = make_optimizer(settings, built.model)
        recorder = watching(built, optimizer, peaks)
        with _compiling(settings, built) as (called, peaks.partition):
            job = CudaJob(settings=settings, built=called, optimizer=optimizer, device=DEVICE, num_steps=num_steps)
            LOOPS[settings.loop](job, recorder)
    phases = peaks.phases(STEPS - 1)
    return CudaMeasurement(
        allocated_bytes=max(phases.values()),
        phases=phases,
        first_step_bytes=max(peaks.phases(0).values()),
        reserved_bytes=max(size for (at, _), size in peaks.reserved.items() if at is None or at < STEPS),
        num_alloc_retries=torch.cuda.memory_stats()["num_alloc_retries"] - retries,
        left_bytes=left,
        compiled=None if peaks.partition is None else _graphs(peaks.partition),
        later_steps_bytes=max((max(peaks.phases(step).values()) for step in range(STEPS, num_steps)), default=None),
        step_begins=tuple(peaks.begins),
    )


def require_device() -> None:
    """Raises NotModelled where torch sees none, with what to use instead."""
    if not torch.cuda.is_available():
        raise NotModelled(
            "torch sees no CUDA device here; use --backend meta (tensors, to the byte), --backend null (the allocator "
            "of PyTorch's CUDA build) or --backend cpu"
        )


_ASKED = re.compile(r"Tried to allocate ([\d.]+) ([KMG]iB)")


def asked_for(message: str) -> int:
    """What the allocator says it could not give, to the two digits that it says."""
    found = _ASKED.search(message)
    return 0 if found is None else parse_bytes(found[1] + found[2])


@contextlib.contextmanager
def _compiling(settings: TrainSettings, built: Built) -> Iterator[tuple[Built, Partition | None]]:
    """The model to call: compiled if that is asked for, on a device without kernels if there are none."""
    if not settings.compile:
        yield built, None
        return
    from .absent_kernels import is_absent, kernels_of_absent_device
    from .compiled import compile_as_the_loop

    with kernels_of_absent_device() if is_absent() else nullcontext():
        compiled, partition = compile_as_the_loop(settings, built.model)
        yield dataclasses.replace(built, model=compiled), partition


def _graphs(partition: Partition) -> CompiledGraphs:
    return CompiledGraphs(
        num_compiled=partition.num_compiled,
        saved_activation_bytes=partition.num_bytes(of_weights=False),
        saved_weight_bytes=partition.num_bytes(of_weights=True),
    )


def kernel(settings: TrainSettings) -> AbstractContextManager[None]:
    """``--sdpa-kernel``: PyTorch's own switch, which refuses what the kernel cannot do."""
    return nullcontext() if settings.sdpa_kernel == "auto" else sdpa_kernel(SDPA_KERNELS[settings.sdpa_kernel])


def clean() -> int:
    """Give back what an earlier measurement left, cuBLAS workspaces included; the bytes that stay."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()
