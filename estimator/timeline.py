"""The sweep over a ledger: totals over time, the peaks, and what is alive at them. No other module knows order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import totals
from .allocator.block import MIN_BLOCK
from .ledger import Alive, Ledger, living

try:
    from ._totals import peaks
except ImportError:  # installed without a C compiler
    from .totals import peaks

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
_NONE: frozenset[str] = frozenset()
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


def phase_summaries(
    ledger: Ledger, blocks: Sequence[int], phases: range | None = None, since: Alive | None = None
) -> list[PhaseSummary]:
    """One summary per entry of ``ledger.phases``, or of those in ``phases``, in order; the same name may come several
    times.

    ``blocks`` are the bytes that the allocator handed out for each allocation; ``since`` is what is known to be alive
    before the first phase or earlier.
    """
    phases = range(len(ledger.phases)) if phases is None else phases
    start, stops = ledger.first_event(phases.start), [ledger.first_event(phase + 1) for phase in phases]
    alive = living(ledger, start, since)
    tensors = _peaks(ledger, ledger.bytes, alive, stops, without=NOT_TENSORS)
    allocated = _peaks(ledger, blocks, alive, stops)
    return [
        PhaseSummary(
            name=ledger.phases[phase][0],
            tensor_peak=_moment(ledger, phase, of_tensors),
            allocated_peak=_moment(ledger, phase, of_blocks),
            end=Moment(event=last, total_bytes=of_tensors.end_bytes, phase=ledger.phases[phase][0], layer="model"),
        )
        for phase, last, of_tensors, of_blocks in zip(phases, stops, tensors, allocated)
    ]


def allocated_peak(
    ledger: Ledger, step: int, since: Alive | None = None, *, without: frozenset[str] = frozenset()
) -> int:
    """The largest total of rounded sizes from the start of a step on: without what the allocator does not split off,
    and the kinds ``without``."""
    alive = living(ledger, ledger.first_event(ledger.steps[step]), since)
    (peak,) = _peaks(ledger, ledger.bytes, alive, [len(ledger.events)], unit=MIN_BLOCK, without=without)
    return peak.highest_bytes


def allocated_peaks(ledger: Ledger, step: int, *, without: frozenset[str] = frozenset()) -> dict[str, int]:
    """:func:`allocated_peak` of each phase of a step."""
    phases, found = ledger.step_phases(step), dict[str, int]()
    stops = [ledger.first_event(phase + 1) for phase in phases]
    alive = living(ledger, ledger.first_event(phases.start))
    for phase, peak in zip(phases, _peaks(ledger, ledger.bytes, alive, stops, unit=MIN_BLOCK, without=without)):
        name, _ = ledger.phases[phase]
        found[name] = max(found.get(name, 0), peak.highest_bytes)
    return found


def raised_peak(ledger: Ledger, step: int, unknown: Sequence[tuple[int, int]], since: Alive | None = None) -> int:
    """By how much the peak from the start of a step on would rise if at each moment (events, bytes) of ``unknown`` so
    many bytes more were borrowed."""
    start = ledger.first_event(ledger.steps[step])
    unknown = sorted((at, size) for at, size in unknown if at >= start)
    if not unknown:
        return 0
    stops = [*(at for at, _ in unknown), len(ledger.events)]
    found = _peaks(ledger, ledger.bytes, living(ledger, start, since), stops, unit=MIN_BLOCK)
    highest = max(peak.highest_bytes for peak in found)
    return max([highest, *(peak.end_bytes + size for peak, (_, size) in zip(found, unknown))]) - highest


class _Peak(NamedTuple):
    """The largest total of a part of the events, after how many it is there first, and the total at the part's end."""

    highest_bytes: int
    event: int
    end_bytes: int


def _peaks(
    ledger: Ledger, sizes: Sequence[int], alive: Alive, stops: list[int], unit: int = 1, without: frozenset[str] = _NONE
) -> list[_Peak]:
    """The peaks of the parts up to each of ``stops`` (numbers of events); the first begins with what is ``alive``."""
    what = ledger.events, sizes, alive.numbers, alive.event, stops, unit, ledger.kinds, without
    try:
        found = peaks(*what)
    except OverflowError:  # more than any GPU has: 63 bits do not hold it
        found = totals.peaks(*what)
    return [_Peak(*peak) for peak in found]


def _moment(ledger: Ledger, phase: int, peak: _Peak) -> Moment:
    (name, first), event = ledger.phases[phase], peak.event
    born = ledger.events[event - 1] if event > first else -1
    layer = ledger.layers[born] if born >= 0 else "model"
    return Moment(event=event, total_bytes=peak.highest_bytes, phase=name, layer=layer)


def snapshot(ledger: Ledger, blocks: Sequence[int], event: int, since: Alive | None = None) -> dict[str, int]:
    """Bytes by kind alive after ``event`` events: with ``rounding``, what ``blocks`` hold above the requests, they add
    up to the allocated total. ``since``: what is known to be alive earlier."""
    sizes, kinds = ledger.bytes, ledger.kinds
    by_kind: dict[str, int] = {}
    numbers = living(ledger, event, since).numbers
    for i in numbers:
        by_kind[kinds[i]] = by_kind.get(kinds[i], 0) + sizes[i]
    by_kind["rounding"] = sum([blocks[i] - sizes[i] for i in numbers])
    return by_kind


def layer_peaks(ledger: Ledger, step: int) -> dict[str, int]:
    """Per layer, the most bytes of temporaries and workspaces of a step that were alive at once and made while it
    ran."""
    current: dict[str, int] = {}
    highest: dict[str, int] = {}
    sizes, kinds, layers = ledger.bytes, ledger.kinds, ledger.layers
    start = ledger.first_event(ledger.steps[step])
    born = ledger.events[start:]
    oldest = next(event for event in born if event >= 0)
    for event in born:
        i = event if event >= 0 else ~event
        if i < oldest or kinds[i] not in PASSING:
            continue
        layer = layers[i]
        total = current[layer] = current.get(layer, 0) + (sizes[i] if event >= 0 else -sizes[i])
        if total > highest.get(layer, 0):
            highest[layer] = total
    return highest
