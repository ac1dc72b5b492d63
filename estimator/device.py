"""The GPU that a training must fit into: its memory, what the CUDA context takes of it, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .allocator import AllocatorConfig
from .errors import InvalidRequest
from .generations import Torch
from .kernels import Gpu
from .replay import Replay, replay
from .units import parse_bytes

if TYPE_CHECKING:
    from .gpus import Context, GpuRow
    from .ledger import Ledger
    from .settings import TrainSettings

__all__ = ["CPU", "Device", "Run", "device_of", "holds", "reserved_by_first", "verdict"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``total_bytes`` and ``context`` are None where neither a GPU nor a memory was named."""

    name: str | None
    gpu: Gpu
    total_bytes: int | None
    context: Context | None
    allocator: AllocatorConfig

    @property
    def usable_bytes(self) -> int | None:
        """What the context's expected size leaves; None where no memory was named."""
        if self.total_bytes is None or self.context is None:
            return None
        return self.total_bytes - self.context.expected_bytes

    @property
    def room_bytes(self) -> int:
        """What the largest context leaves."""
        assert self.total_bytes is not None
        assert self.context is not None
        return self.total_bytes - self.context.high_bytes


#: The machine at hand, for a validation on it.
CPU = Device(name="cpu", gpu=Gpu(is_cpu=True), total_bytes=None, context=None, allocator=AllocatorConfig())


def device_of(settings: TrainSettings) -> Device:
    """The device behind ``--gpu``, ``--memory`` (which may make the named GPU smaller) and ``--alloc-conf``."""
    allocator = AllocatorConfig.parse(settings.alloc_conf or "")
    if settings.gpu is None and settings.memory is None:
        return Device(name=None, gpu=Gpu(), total_bytes=None, context=None, allocator=allocator)
    from .gpus import context_of, find, with_communicator  # reads the table of GPUs

    row = None if settings.gpu is None else find(settings.gpu)
    total = _total(row, settings.memory)
    context = context_of(row, lazy=Torch.parse(settings.torch).has("lazy_modules"))
    if settings.parallel not in {None, "none"}:
        context = with_communicator(context, settings.gpus)
    return Device(
        name=settings.memory if row is None else row.name,
        gpu=Gpu() if row is None else row.kernel_view,
        total_bytes=total,
        context=context,
        allocator=dataclasses.replace(allocator, device_bytes=total),
    )


def _total(row: GpuRow | None, memory: str | None) -> int:
    if memory is None:
        assert row is not None
        return row.memory_bytes
    total = parse_bytes(memory)
    if row is not None and total > row.memory_bytes:
        raise InvalidRequest(f"memory {memory} is more than a {row.name} has; leave out --memory or --gpu")
    return total


class Run:
    """A process from its first allocation on, and its replays, each made when it is asked for.

    ``parts`` are what happens in it one after the other: a name and the event with which it ends. A replay has their
    ends for marks.
    """

    def __init__(self, ledger: Ledger, parts: tuple[tuple[str, int], ...], allocator: AllocatorConfig) -> None:
        self.ledger, self.parts, self._allocator = ledger, parts, allocator
        self._marks = tuple(stop for _, stop in parts)
        self._unlimited: Replay | None = None
        self._limited: dict[int, Replay] = {}

    @property
    def replay(self) -> Replay:
        """Without a limit."""
        if self._unlimited is None:
            self._unlimited = self._replayed(None)
        return self._unlimited

    def within(self, capacity: int) -> Replay:
        """Within so many bytes; one that never reached them is the one without a limit as well."""
        if self._unlimited is not None and self._unlimited.reserved_bytes <= capacity:
            return self._unlimited
        if capacity not in self._limited:
            limited = self._limited[capacity] = self._replayed(capacity)
            if limited.failed is None and not limited.num_retries:
                self._unlimited = limited
        return self._limited[capacity]

    def _replayed(self, capacity: int | None) -> Replay:
        return replay(self.ledger, dataclasses.replace(self._allocator, capacity=capacity), marks=self._marks)

    def part_of(self, event: int) -> str:
        """What was going on at an event."""
        return next(name for name, stop in self.parts if event < stop)

    def reserved_by_part(self) -> dict[str, int]:
        """The most that was reserved up to the end of each part; of training, up to the last step of all."""
        return {name: size for (name, _), size in zip(self.parts, self.replay.reserved_at)}

    def part_of_peak(self, replayed: Replay) -> str:
        """What was going on when the most was reserved for the first time."""
        return self.parts[replayed.reserved_at.index(replayed.reserved_bytes)][0]


def verdict(device: Device, runs: Sequence[Run]) -> tuple[Mapping[str, Any] | None, int]:
    """Whether every run fits, and what the first part of the first run reserves on this device.

    The allocator is replayed within what the context leaves: a run fits where the replay gets through with the largest
    context, does not where it fails with the smallest, and is borderline in between. ``phase`` is the part that
    decided: the first to run out of memory in the worst run, else the one that reserves the most.
    """
    context = device.context
    if device.total_bytes is None or context is None:
        return None, runs[0].replay.reserved_at[0]
    usable = device.total_bytes - context.expected_bytes
    outcomes = [_within(device, context, run) for run in runs]
    worst = max(outcomes, key=lambda outcome: (_ORDER.index(outcome.fits), outcome.replay.reserved_bytes))
    document = {
        "gpu": device.name,
        "usable_bytes": max(usable, 0),
        "fits": worst.fits,
        "headroom_bytes": usable - max(outcome.replay.reserved_bytes for outcome in outcomes),
        "num_alloc_retries": max(outcome.replay.num_retries for outcome in outcomes),
        "phase": worst.phase,
    }
    return document, outcomes[0].replay.reserved_at[0]


def reserved_by_first(device: Device, run: Run) -> int:
    """What ``verdict`` says of the first part of its first run."""
    assert device.context is not None
    return _within(device, device.context, run).replay.reserved_at[0]


def holds(device: Device, runs: Iterable[Run]) -> bool:
    """Whether every run gets through with the largest context: the verdict's yes."""
    return all(run.within(device.room_bytes).failed is None for run in runs)


_ORDER = ("yes", "borderline", "no")


class _Outcome(NamedTuple):
    """``replay`` is that of the context with which it fits, without a limit where it never does."""

    fits: str
    replay: Replay
    phase: str


def _within(device: Device, context: Context, run: Run) -> _Outcome:
    assert device.total_bytes is not None
    found = None
    for fits, context_bytes in (("yes", context.high_bytes), ("borderline", context.low_bytes)):
        replayed = run.within(device.total_bytes - context_bytes)
        if replayed.failed is None:
            return _Outcome(fits, replayed, found or run.part_of_peak(replayed))
        found = run.part_of(replayed.failed)
    assert found is not None
    return _Outcome("no", run.replay, found)
