"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ledger", "with_last_step_again"]


class Ledger(NamedTuple):
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
    first, stop, count = ledger.first_event(ledger.steps[-1]), len(ledger.events), len(ledger.bytes)
    events = ledger.events[first:]
    oldest = next(event for event in events if event >= 0)
    later = count - oldest
    heirs = _heirs(ledger, first, [~event for event in events if ~oldest < event < 0])
    again = [event + later if event >= 0 else event - later if event <= ~oldest else ~heirs[~event] for event in events]
    return ledger._replace(
        bytes=(*ledger.bytes, *ledger.bytes[oldest:]),
        kinds=(*ledger.kinds, *ledger.kinds[oldest:]),
        layers=(*ledger.layers, *ledger.layers[oldest:]),
        events=(*ledger.events, *again),
        phases=(*ledger.phases, *((name, start + stop - first) for name, start in ledger.phases[ledger.steps[-1] :])),
        steps=(*ledger.steps, len(ledger.phases)),
        side=ledger.side | {i + later for i in ledger.side if i >= oldest},
    )


def _heirs(ledger: Ledger, first: int, freed: list[int]) -> dict[int, int]:
    """For what is ``freed`` after ``first`` events: what has its rank after all events."""
    sizes = {ledger.bytes[i] for i in freed}
    alike = [i for i, size in enumerate(ledger.bytes) if size in sizes]
    now, then = _by_likeness(ledger, alike, first), _by_likeness(ledger, alike, len(ledger.events))
    ranks = {i: (like, rank) for like, ones in now.items() for rank, i in enumerate(ones)}
    return {i: then[like][rank] for i in freed for like, rank in [ranks[i]]}


def _by_likeness(ledger: Ledger, ones: list[int], stop: int) -> dict[tuple[int, str, str], list[int]]:
    """Those of ``ones`` that are alive after ``stop`` events, by (bytes, kind, layer), the oldest first."""
    alive: dict[tuple[int, str, str], list[int]] = {}
    events = set(ledger.events[:stop])
    for i in ones:
        if i in events and ~i not in events:
            alive.setdefault((ledger.bytes[i], ledger.kinds[i], ledger.layers[i]), []).append(i)
    return alive
