"""Allocations with a birth and a death, and the one sweep over them. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["PHASES", "Allocation", "Moment", "Span", "kinds_at", "live_at", "peak_within"]

PHASES = ("forward", "backward", "optimizer_step")


@dataclasses.dataclass(slots=True, kw_only=True)
class Allocation:
    """One storage from birth to death, in ticks; ``dies`` is ``None`` while it lives.

    The one value here that changes after it is made: the tracer sets ``dies``, and learns only later that a storage
    has become a gradient or an optimizer's state.
    """

    bytes: int
    kind: str
    layer: str
    op: str
    born: int
    dies: int | None = None

    def alive(self, tick: int) -> bool:
        """Whether it counts at ``tick``: born at or before it and not yet dead."""
        return self.born <= tick and (self.dies is None or tick < self.dies)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase of one micro-step: ticks ``begins <= t <= ends``."""

    phase: str
    begins: int
    ends: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A tick with its live total and the allocation that was born there (``None``: the phase began with it)."""

    tick: int
    bytes: int
    newest: Allocation | None


def live_at(events: Iterable[Allocation], tick: int) -> int:
    """Bytes alive at ``tick``."""
    return sum(event.bytes for event in events if event.alive(tick))


def kinds_at(events: Iterable[Allocation], tick: int) -> dict[str, int]:
    """Bytes alive at ``tick`` by kind; adds up to :func:`live_at`."""
    totals: Counter[str] = Counter()
    for event in events:
        if event.alive(tick):
            totals[event.kind] += event.bytes
    return dict(totals)


def peak_within(events: Sequence[Allocation], span: Span) -> Moment:
    """The first moment of the largest live total in ``span``."""
    changes: dict[int, int] = {}
    births: dict[int, Allocation] = {}
    for event in events:
        if span.begins < event.born <= span.ends:
            changes[event.born] = changes.get(event.born, 0) + event.bytes
            births[event.born] = event
        if event.dies is not None and span.begins < event.dies <= span.ends:
            changes[event.dies] = changes.get(event.dies, 0) - event.bytes
    total = live_at(events, span.begins)
    best = Moment(tick=span.begins, bytes=total, newest=None)
    for tick in sorted(changes):
        total += changes[tick]
        if total > best.bytes:
            best = Moment(tick=tick, bytes=total, newest=births.get(tick))
    return best
