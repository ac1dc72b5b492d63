"""The sweep over a ledger: totals over time, the peaks, and what is alive at them. No other module knows order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from .allocator import rounded
from .ledger import Ledger

__all__ = [
    "Moment",
    "PhaseSummary",
    "allocated_peak",
    "allocated_peaks",
    "layer_peaks",
    "phase_summaries",
    "raised_peak",
    "snapshot",
]

#: Kinds that a kernel borrows: allocated, but no tensor of the program.
NOT_TENSORS = frozenset({"workspaces", "rounding"})
#: Kinds that live for a part of a layer's work.
PASSING = frozenset({"temporaries", "workspaces"})


class Moment(NamedTuple):
    """A point in time: ``event`` events have happened, and ``layer`` was running; the total is that after the last."""

    event: int
    total_bytes: int
    phase: str
    layer: str


class PhaseSummary(NamedTuple):
    """One phase of the ledger: the moments of its two peaks, and the tensor total at its end."""

    name: str
    tensor_peak: Moment
    allocated_peak: Moment
    end: Moment


def phase_summaries(ledger: Ledger, blocks: Sequence[int]) -> list[PhaseSummary]:
    """One summary per entry of ``ledger.phases``, in order; the same name may come several times.

    ``blocks`` are the bytes that the allocator handed out for each allocation.
    """
    tensors, allocated = _totals(ledger, _tensor_sizes(ledger)), _totals(ledger, blocks)
    return [
        PhaseSummary(
            name=name,
            tensor_peak=_highest(ledger, tensors, name, first, last),
            allocated_peak=_highest(ledger, allocated, name, first, last),
            end=Moment(event=last, total_bytes=tensors[last], phase=name, layer="model"),
        )
        for name, first, last in _spans(ledger)
    ]


def allocated_peak(ledger: Ledger, step: int) -> int:
    """The largest total of rounded sizes from the start of a step on: without what the allocator does not split off."""
    return max(_totals(ledger, _rounded_sizes(ledger))[ledger.first_event(ledger.steps[step]) :])


def allocated_peaks(ledger: Ledger, step: int) -> dict[str, int]:
    """:func:`allocated_peak` of each phase of a step."""
    totals, peaks = _totals(ledger, _rounded_sizes(ledger)), dict[str, int]()
    for phase in ledger.step_phases(step):
        name, first = ledger.phases[phase]
        highest = max(totals[first : ledger.first_event(phase + 1) + 1])
        peaks[name] = max(peaks.get(name, 0), highest)
    return peaks


def raised_peak(ledger: Ledger, step: int, unknown: Sequence[tuple[int, int]]) -> int:
    """By how much the peak from the start of a step on would rise if at each moment (events, bytes) of ``unknown`` so
    many bytes more were borrowed."""
    if not unknown:
        return 0
    first = ledger.first_event(ledger.steps[step])
    totals = _totals(ledger, _rounded_sizes(ledger))
    highest = max(totals[first:])
    return max([highest, *(totals[at] + size for at, size in unknown if at >= first)]) - highest


def _tensor_sizes(ledger: Ledger) -> list[int]:
    return [0 if kind in NOT_TENSORS else size for size, kind in zip(ledger.bytes, ledger.kinds)]


def _rounded_sizes(ledger: Ledger) -> list[int]:
    blocks = {size: rounded(size) for size in set(ledger.bytes)}
    return [blocks[size] for size in ledger.bytes]


def _totals(ledger: Ledger, sizes: Sequence[int]) -> list[int]:
    """The running total after every number of events."""
    deltas = [*sizes, *[-size for size in reversed(sizes)]]  # a death ``~i`` counts from the end, as Python does
    return list(accumulate(map(deltas.__getitem__, ledger.events), initial=0))


def _highest(ledger: Ledger, totals: list[int], phase: str, first: int, last: int) -> Moment:
    """The first moment of ``first`` to ``last`` events with the largest total."""
    total = max(totals[first : last + 1])
    event = totals.index(total, first)
    born = ledger.events[event - 1] if event > first else -1
    return Moment(event=event, total_bytes=total, phase=phase, layer=ledger.layers[born] if born >= 0 else "model")


def _spans(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ends = [first for _, first in ledger.phases[1:]] + [len(ledger.events)]
    for (name, first), last in zip(ledger.phases, ends):
        yield name, first, last


def snapshot(ledger: Ledger, blocks: Sequence[int], event: int) -> dict[str, int]:
    """Bytes by kind alive after ``event`` events: with ``rounding``, what ``blocks`` hold above the requests, they add
    up to the allocated total."""
    by_kind: dict[str, int] = {}
    rounding = 0
    happened = ledger.events[:event]
    changes = set(happened)
    for i in happened:
        if i < 0 or ~i in changes:
            continue
        size, kind = ledger.bytes[i], ledger.kinds[i]
        by_kind[kind] = by_kind.get(kind, 0) + size
        rounding += blocks[i] - size
    by_kind["rounding"] = rounding
    return by_kind


def layer_peaks(ledger: Ledger, step: int) -> dict[str, int]:
    """Per layer, the most bytes of temporaries and workspaces of a step that were alive at once and made while it
    ran."""
    current: dict[str, int] = {}
    highest: dict[str, int] = {}
    sizes, kinds, layers = ledger.bytes, ledger.kinds, ledger.layers
    start = ledger.first_event(ledger.steps[step])
    born = ledger.events[start:]
    oldest = min(event for event in born if event >= 0)
    for event in born:
        i = event if event >= 0 else ~event
        if i < oldest or kinds[i] not in PASSING:
            continue
        layer = layers[i]
        total = current[layer] = current.get(layer, 0) + (sizes[i] if event >= 0 else -sizes[i])
        if total > highest.get(layer, 0):
            highest[layer] = total
    return highest
