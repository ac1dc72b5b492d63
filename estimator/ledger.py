"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

import dataclasses

__all__ = ["Ledger", "with_last_step_again"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Allocation ``i`` has ``bytes[i]``, ``kinds[i]``, ``layers[i]``.

    ``events`` is time: the number ``i`` where allocation ``i`` is born, ``~i`` where it dies. ``phases`` are
    (name, index of the first event); ``steps`` are the indices into ``phases`` at which a training step begins;
    ``side`` are the allocations of a second stream.
    """

    bytes: tuple[int, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    events: tuple[int, ...]
    phases: tuple[tuple[str, int], ...]
    steps: tuple[int, ...] = ()
    side: frozenset[int] = frozenset()

    def step_phases(self, step: int) -> range:
        """The indices of the phases of a step (negative: from the last)."""
        stops = (*self.steps[1:], len(self.phases))
        return range(self.steps[step], stops[step])

    def first_event(self, phase: int) -> int:
        """Where a phase begins; the end of all events for the phase behind the last."""
        return self.phases[phase][1] if phase < len(self.phases) else len(self.events)


def with_last_step_again(ledger: Ledger) -> Ledger:
    """``ledger`` with its last step once more, allocation by allocation.

    A steady step repeats the one before. What it frees of earlier steps has the same rank, by age and among its like,
    in what is alive when it begins.
    """
    first = ledger.first_event(ledger.steps[-1])
    events = ledger.events[first:]
    oldest = min(event for event in events if event >= 0)
    now, then = _ranked(ledger, first), _ranked(ledger, len(ledger.events))
    again = {i: then[place] for place, i in now.items() if place in then}
    again |= {i: i + len(ledger.bytes) - oldest for i in range(oldest, len(ledger.bytes))}
    stop = len(ledger.events)
    return dataclasses.replace(
        ledger,
        bytes=(*ledger.bytes, *ledger.bytes[oldest:]),
        kinds=(*ledger.kinds, *ledger.kinds[oldest:]),
        layers=(*ledger.layers, *ledger.layers[oldest:]),
        events=(*ledger.events, *(again[event] if event >= 0 else ~again[~event] for event in events)),
        phases=(*ledger.phases, *((name, start + stop - first) for name, start in ledger.phases[ledger.steps[-1] :])),
        steps=(*ledger.steps, len(ledger.phases)),
        side=ledger.side | {again[i] for i in ledger.side if i >= oldest},
    )


def _ranked(ledger: Ledger, stop: int) -> dict[tuple[int, str, str, int], int]:
    """The allocations alive after ``stop`` events: (bytes, kind, layer, rank by age among these) -> allocation."""
    events = ledger.events[:stop]
    dead = {~event for event in events if event < 0}
    counts: dict[tuple[int, str, str], int] = {}
    ranked = {}
    for i in sorted(event for event in events if event >= 0 and event not in dead):
        like = ledger.bytes[i], ledger.kinds[i], ledger.layers[i]
        counts[like] = counts.get(like, 0) + 1
        place = (*like, counts[like])
        ranked[place] = i
    return ranked
