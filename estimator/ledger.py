"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["Ledger", "followed_by", "with_last_step_again"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
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
    side: Mapping[int, int] = dataclasses.field(default_factory=dict)
    releases: tuple[int, ...] = ()

    def step_phases(self, step: int) -> range:
        """The indices of the phases of a step (negative: from the last)."""
        stops = (*self.steps[1:], len(self.phases))
        return range(self.steps[step], stops[step])

    def first_event(self, phase: int) -> int:
        """Where a phase begins; the end of all events for the phase behind the last."""
        return self.phases[phase][1] if phase < len(self.phases) else len(self.events)


def with_last_step_again(ledger: Ledger) -> Ledger:
    """``ledger`` with its last step once more, allocation by allocation: a steady step repeats the one before."""
    return followed_by(ledger, ledger, ledger.first_event(ledger.steps[-1]))


def followed_by(ledger: Ledger, source: Ledger, first: int) -> Ledger:
    """``ledger``, and after it what happened in ``source`` from event ``first`` on, which begins a step.

    What it frees of earlier steps has the same rank, from the youngest on and among its like, in what is alive at the
    end of ``ledger``; where there is no such, it is not there to be freed.
    """
    events = source.events[first:]
    oldest = min(event for event in events if event >= 0)
    now, then = _ranked(source, first), _ranked(ledger, len(ledger.events))
    again = {i: then[place] for place, i in now.items() if place in then}
    shift = len(ledger.bytes) - oldest
    again |= {i: i + shift for i in range(oldest, len(source.bytes))}
    moved = [again[event] if event >= 0 else ~again[~event] for event in events if event >= 0 or ~event in again]
    start, gone = len(ledger.events), [place for place, event in enumerate(events) if event < 0 and ~event not in again]

    def placed(event: int) -> int:
        return event - first + start - sum(place < event - first for place in gone)

    phases = [
        phase for phase, (_, event) in enumerate(source.phases) if event >= first and phase >= _phase_at(source, first)
    ]
    return dataclasses.replace(
        ledger,
        bytes=(*ledger.bytes, *source.bytes[oldest:]),
        kinds=(*ledger.kinds, *source.kinds[oldest:]),
        layers=(*ledger.layers, *source.layers[oldest:]),
        events=(*ledger.events, *moved),
        phases=(*ledger.phases, *((source.phases[phase][0], placed(source.phases[phase][1])) for phase in phases)),
        steps=(*ledger.steps, *(step - phases[0] + len(ledger.phases) for step in source.steps if step >= phases[0])),
        side={**ledger.side, **{again[i]: stream for i, stream in source.side.items() if i >= oldest}},
        releases=(*ledger.releases, *(placed(event) for event in source.releases if event >= first)),
    )


def _phase_at(ledger: Ledger, first: int) -> int:
    """The phase of the step that begins with event ``first``."""
    return next(step for step in ledger.steps if ledger.first_event(step) == first)


def _ranked(ledger: Ledger, stop: int) -> dict[tuple[int, str, str, int], int]:
    """The allocations alive after ``stop`` events: (bytes, kind, layer, rank by youth among these) -> allocation."""
    events = ledger.events[:stop]
    dead = {~event for event in events if event < 0}
    counts: dict[tuple[int, str, str], int] = {}
    ranked = {}
    for i in sorted((event for event in events if event >= 0 and event not in dead), reverse=True):
        like = ledger.bytes[i], ledger.kinds[i], ledger.layers[i]
        counts[like] = counts.get(like, 0) + 1
        place = (*like, counts[like])
        ranked[place] = i
    return ranked
