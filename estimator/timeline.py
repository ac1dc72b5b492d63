"""The sweep over a ledger: totals over time, the peaks, and what is alive at them. No other module knows order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from .allocator import rounded
from .ledger import Alive, Ledger, living

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


def phase_summaries(
    ledger: Ledger, blocks: Sequence[int], phases: range | None = None, since: Alive | None = None
) -> list[PhaseSummary]:
    """One summary per entry of ``ledger.phases``, or of those in ``phases``, in order; the same name may come several
    times.

    ``blocks`` are the bytes that the allocator handed out for each allocation; ``since`` is what is known to be alive
    before the first phase or earlier.
    """
    phases = range(len(ledger.phases)) if phases is None else phases
    start, stop = ledger.first_event(phases.start), ledger.first_event(phases.stop)
    alive = living(ledger, start, since)
    tensors = _totals(ledger, _tensor_sizes(ledger), alive, stop)
    allocated = _totals(ledger, blocks, alive, stop)
    summaries = []
    for phase in phases:
        (name, _), last = ledger.phases[phase], ledger.first_event(phase + 1)
        summaries.append(
            PhaseSummary(
                name=name,
                tensor_peak=_highest(ledger, tensors, start, phase),
                allocated_peak=_highest(ledger, allocated, start, phase),
                end=Moment(event=last, total_bytes=tensors[last - start], phase=name, layer="model"),
            )
        )
    return summaries


def allocated_peak(ledger: Ledger, step: int, since: Alive | None = None) -> int:
    """The largest total of rounded sizes from the start of a step on: without what the allocator does not split off."""
    return max(_step_totals(ledger, step, since))


def allocated_peaks(ledger: Ledger, step: int) -> dict[str, int]:
    """:func:`allocated_peak` of each phase of a step."""
    totals, peaks = _step_totals(ledger, step), dict[str, int]()
    phases = ledger.step_phases(step)
    start = ledger.first_event(phases.start)
    for phase in phases:
        name, first = ledger.phases[phase]
        highest = max(totals[first - start : ledger.first_event(phase + 1) + 1 - start])
        peaks[name] = max(peaks.get(name, 0), highest)
    return peaks


def raised_peak(ledger: Ledger, step: int, unknown: Sequence[tuple[int, int]], since: Alive | None = None) -> int:
    """By how much the peak from the start of a step on would rise if at each moment (events, bytes) of ``unknown`` so
    many bytes more were borrowed."""
    start = ledger.first_event(ledger.steps[step])
    unknown = [(at - start, size) for at, size in unknown if at >= start]
    if not unknown:
        return 0
    totals = _step_totals(ledger, step, since)
    highest = max(totals)
    return max([highest, *(totals[at] + size for at, size in unknown)]) - highest


def _tensor_sizes(ledger: Ledger) -> list[int]:
    return [0 if kind in NOT_TENSORS else size for size, kind in zip(ledger.bytes, ledger.kinds)]


def _step_totals(ledger: Ledger, step: int, since: Alive | None = None) -> list[int]:
    """The running totals of rounded sizes from the start of a step on."""
    alive = living(ledger, ledger.first_event(ledger.steps[step]), since)
    before, changes = _changes(ledger, ledger.bytes, alive, len(ledger.events))
    blocks = {size: rounded(size) if size >= 0 else -rounded(-size) for size in {*before, *changes}}
    return list(accumulate([blocks[size] for size in changes], initial=sum([blocks[size] for size in before])))


def _totals(ledger: Ledger, sizes: Sequence[int], alive: Alive, stop: int) -> list[int]:
    """The running total after every number of events, from the moment of ``alive`` to ``stop`` events."""
    before, changes = _changes(ledger, sizes, alive, stop)
    return list(accumulate(changes, initial=sum(before)))


def _changes(ledger: Ledger, sizes: Sequence[int], alive: Alive, stop: int) -> tuple[list[int], list[int]]:
    """The sizes of what is ``alive``, and by how much each event from then on to ``stop`` events changes the total."""
    events = ledger.events[alive.event : stop]
    return [sizes[i] for i in alive.numbers], [sizes[i] if i >= 0 else -sizes[~i] for i in events]


def _highest(ledger: Ledger, totals: list[int], start: int, phase: int) -> Moment:
    """The first moment of a phase with the largest total; ``totals`` begin after ``start`` events."""
    (name, first), last = ledger.phases[phase], ledger.first_event(phase + 1)
    total = max(totals[first - start : last + 1 - start])
    event = totals.index(total, first - start) + start
    born = ledger.events[event - 1] if event > first else -1
    return Moment(event=event, total_bytes=total, phase=name, layer=ledger.layers[born] if born >= 0 else "model")


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
