"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

try:
    from ._totals import living as numbers_of_living
except ImportError:  # installed without a C compiler
    from .totals import living as numbers_of_living

__all__ = ["Alive", "Ledger", "followed_by", "living", "with_last_step_again"]


class Ledger(NamedTuple):
    """Allocation ``i`` has ``bytes[i]``, ``kinds[i]``, ``layers[i]``.

    ``events`` is time: the number ``i`` where allocation ``i`` is born, ``~i`` where it dies. ``phases`` are
    (name, index of the first event); ``steps`` are the indices into ``phases`` at which a training step begins;
    ``side`` are the allocations of other streams than the main one, with their stream; ``releases`` are the events
    before which the allocator gave back what it had cached.
    """

    bytes: tuple[int, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    events: tuple[int, ...]
    phases: tuple[tuple[str, int], ...]
    steps: tuple[int, ...] = ()
    side: Mapping[int, int] = MappingProxyType({})
    releases: tuple[int, ...] = ()

    def step_phases(self, step: int) -> range:
        """The indices of the phases of a step (negative: from the last)."""
        stops = (*self.steps[1:], len(self.phases))
        return range(self.steps[step], stops[step])

    def first_event(self, phase: int) -> int:
        """Where a phase begins; the end of all events for the phase behind the last."""
        return self.phases[phase][1] if phase < len(self.phases) else len(self.events)


class Alive(NamedTuple):
    """The numbers of what is alive after ``event`` events."""

    event: int
    numbers: list[int]


def living(ledger: Ledger, event: int, since: Alive | None = None) -> Alive:
    """What is alive after ``event`` events, from what is known to be ``since`` fewer on."""
    start, before = since or (0, [])
    return Alive(event, numbers_of_living(ledger.events, start, event, before))


def with_last_step_again(ledger: Ledger, before: Alive | None = None, end: Alive | None = None) -> Ledger:
    """``ledger`` with its last step once more, allocation by allocation: a steady step repeats the one before.

    ``before`` it and at its ``end``: what is alive, where that is known.
    """
    return followed_by(ledger, ledger, ledger.first_event(ledger.steps[-1]), before, end)


def followed_by(
    ledger: Ledger, source: Ledger, first: int, before: Alive | None = None, end: Alive | None = None
) -> Ledger:
    """``ledger``, and after it what happened in ``source`` from event ``first`` on, which begins a step.

    What it frees of earlier steps has the same rank, from the youngest on and among its like, in what is alive at the
    end of ``ledger``; where there is no such, it is not there to be freed. What is alive in ``source`` ``before`` that
    and in ``ledger`` at its ``end`` may be known.
    """
    stop, events = len(ledger.events), source.events[first:]
    oldest = next(event for event in events if event >= 0)
    later = len(ledger.bytes) - oldest
    before = before or living(source, first)
    freed = set(before.numbers).difference(living(source, len(source.events), before).numbers)
    heirs = _heirs(freed, source, before, ledger, end or living(ledger, stop))
    gone: list[int] = []
    if len(heirs) < len(freed):
        gone = [place for place, event in enumerate(events) if ~oldest < event < 0 and ~event not in heirs]
        events = tuple([event for event in events if not ~oldest < event < 0 or ~event in heirs])
    moved = [event + later if event >= 0 else event - later if event <= ~oldest else ~heirs[~event] for event in events]

    def placed(event: int) -> int:
        return event - first + stop - bisect_left(gone, event - first)

    begin = next(step for step in source.steps if source.first_event(step) == first)
    return ledger._replace(
        bytes=(*ledger.bytes, *source.bytes[oldest:]),
        kinds=(*ledger.kinds, *source.kinds[oldest:]),
        layers=(*ledger.layers, *source.layers[oldest:]),
        events=(*ledger.events, *moved),
        phases=(*ledger.phases, *((name, placed(event)) for name, event in source.phases[begin:])),
        steps=(*ledger.steps, *(step - begin + len(ledger.phases) for step in source.steps if step >= begin)),
        side={**ledger.side, **{i + later: stream for i, stream in source.side.items() if i >= oldest}},
        releases=(*ledger.releases, *(placed(event) for event in source.releases if event >= first)),
    )


def _heirs(freed: set[int], source: Ledger, before: Alive, ledger: Ledger, end: Alive) -> dict[int, int]:
    """For what is ``freed`` of what is alive in ``source``: what has its rank at the end of ``ledger``, if any."""
    likes = {source.bytes[i] for i in freed}, {source.kinds[i] for i in freed}
    now, then = _by_likeness(source, *likes, before), _by_likeness(ledger, *likes, end)
    return {i: heir for like, ones in now.items() for i, heir in zip(ones, then.get(like, ())) if i in freed}


def _by_likeness(
    ledger: Ledger, sizes: set[int], kinds: set[str], alive: Alive
) -> dict[tuple[int, str, str], list[int]]:
    """Those of these sizes and kinds that are alive, by (bytes, kind, layer), the youngest first."""
    found: dict[tuple[int, str, str], list[int]] = {}
    of_both = [i for i in alive.numbers if ledger.kinds[i] in kinds and ledger.bytes[i] in sizes]
    for i in sorted(of_both, reverse=True):
        found.setdefault((ledger.bytes[i], ledger.kinds[i], ledger.layers[i]), []).append(i)
    return found
