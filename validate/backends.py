"""The backends of ``vitmem validate``: one more is one row. Importing this needs no torch, measuring may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from vitmem.settings import TrainSettings
from vitmem.units import parse_bytes

from .allocator_measurement import AllocatorMeasurement
from .compare import DEFAULT_TOLERANCE
from .distributed.world import World
from .measurement import Measured, Measurement
from .null.device import NullDevice

__all__ = ["BACKENDS", "RANKS", "RANKS_ON_GPUS", "Backend", "Run", "auto"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement to make. ``device`` and ``force`` are the null backend's, ``num_steps`` and ``history`` (a file
    for the allocator's snapshot) the cuda backend's."""

    settings: TrainSettings
    device: NullDevice
    force: bool
    timeout_s: float
    num_steps: int = 5
    history: str | None = None
    world: World | None = None


def _meta(run: Run) -> Measured:
    from .meta import measure

    return measure(run.settings)


def _cpu(run: Run) -> Measured:
    from .in_child import measured_in_child

    document = measured_in_child("the run on the CPU", "cpu", run.settings, timeout_s=run.timeout_s)
    return Measurement.from_dict(document["measured"])


def _ranks(run: Run) -> Measured:
    from .distributed.backend import measure

    return measure(run.settings, timeout_s=run.timeout_s, world=run.world)


def _ranks_on_gpus(run: Run) -> Measured:
    from .distributed.backend import measure

    memory = None if run.settings.memory is None else parse_bytes(run.settings.memory)
    return measure(run.settings, timeout_s=run.timeout_s, world=run.world, on_gpu=True, memory_bytes=memory)


def _null(run: Run) -> Measured:
    from .null.backend import measure

    return measure(run.settings, run.device, force=run.force, timeout_s=run.timeout_s)


def _cuda(run: Run) -> Measured:
    from .in_child import measured_in_child

    memory = None if run.settings.memory is None else parse_bytes(run.settings.memory)
    options = {"num_steps": run.num_steps, "memory_bytes": memory, "history": run.history}
    document = measured_in_child(
        "the run on the GPU", "cuda-run", run.settings, timeout_s=run.timeout_s, options=options
    )
    return AllocatorMeasurement.of(document, backend="cuda", device=document["device"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """``tolerance`` holds unless the user says otherwise; on the ``host`` the estimate follows the CPU's rules.

    ``first_rank_of``: the engines of which it runs the first rank alone (:mod:`.distributed.one_rank`).
    """

    measure: Callable[[Run], Measured]
    tolerance: float = DEFAULT_TOLERANCE
    host: bool = False
    has_allocator: bool = False
    first_rank_of: frozenset[str] = frozenset()


#: By the name that ``--backend`` takes.
BACKENDS: Mapping[str, Backend] = {
    "meta": Backend(measure=_meta),
    "cpu": Backend(measure=_cpu, tolerance=0.01, host=True),
    "cuda": Backend(measure=_cuda, has_allocator=True),
    "null": Backend(measure=_null, has_allocator=True, first_rank_of=frozenset({"fsdp"})),
}

#: ``cpu`` for several GPUs: a process each.
RANKS = Backend(measure=_ranks, tolerance=0.02, host=True)

#: ``cuda`` for several GPUs: a process on each.
RANKS_ON_GPUS = Backend(measure=_ranks_on_gpus, tolerance=0.02, has_allocator=True)


def auto() -> str:
    """The device where there is one, else what runs everywhere. Imports torch."""
    import torch

    return "cuda" if torch.cuda.is_available() else "meta"
