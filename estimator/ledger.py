"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

import dataclasses

__all__ = ["Ledger", "with_last_step_again"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Allocation ``i`` has ``bytes[i]``, ``kinds[i]``, ``layers[i]``.

    ``events`` is time: the number ``i`` where allocation ``i`` is born, ``~i`` where it dies. ``phases`` are
    (name, index of the first event); ``steps`` are the indices into ``phases`` at which a training step begins.
    """

    bytes: tuple[int, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    events: tuple[int, ...]
    phases: tuple[tuple[str, int], ...]
    steps: tuple[int, ...] = ()

    def step_phases(self, step: int) -> range:
        """The indices of the phases of a step (negative: from the last)."""
        stops = (*self.steps[1:], len(self.phases))
        return range(self.steps[step], stops[step])

    def first_event(self, phase: int) -> int:
        """Where a phase begins; the end of all events for the phase behind the last."""
        return self.phases[phase][1] if phase < len(self.phases) else len(self.events)


def with_last_step_again(ledger: Ledger) -> Ledger:
    """``ledger`` with its last step once more, allocation by allocation.

    A steady step repeats the one before: what it frees of earlier steps is what that one left in the same place.
    """
    first = ledger.first_event(ledger.steps[-1])
    events = ledger.events[first:]
    born = [event for event in events if event >= 0]
    shift = len(ledger.bytes) - min(born)
    again = dict(zip(_inherited(events), _left(events))) | {i: i + shift for i in born}
    stop = len(ledger.events)
    return dataclasses.replace(
        ledger,
        bytes=(*ledger.bytes, *ledger.bytes[min(born) :]),
        kinds=(*ledger.kinds, *ledger.kinds[min(born) :]),
        layers=(*ledger.layers, *ledger.layers[min(born) :]),
        events=(*ledger.events, *(again[event] if event >= 0 else ~again[~event] for event in events)),
        phases=(*ledger.phases, *((name, start + stop - first) for name, start in ledger.phases[ledger.steps[-1] :])),
        steps=(*ledger.steps, len(ledger.phases)),
    )


def _inherited(events: tuple[int, ...]) -> list[int]:
    """The allocations of earlier steps that die in this one, by age."""
    own = {event for event in events if event >= 0}
    return sorted(~event for event in events if event < 0 and ~event not in own)


def _left(events: tuple[int, ...]) -> list[int]:
    """The allocations of this step that outlive it, by age."""
    dead = {~event for event in events if event < 0}
    return sorted(event for event in events if event >= 0 and event not in dead)
