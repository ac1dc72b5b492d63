"""Running totals over the events of a ledger, and what lives through some of them.

``_totals.c`` does the same in C, and takes this one's place where there is a compiler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

__all__ = ["living", "peaks"]


def living(events: tuple[int, ...], start: int, stop: int, before: list[int]) -> list[int]:
    """The numbers of what is alive after ``stop`` events, where ``before`` is what is after ``start``."""
    happened = events[start:stop]
    changes = set(happened)
    return [i for i in (*before, *happened) if i >= 0 and ~i not in changes]


def peaks(
    events: tuple[int, ...],
    sizes: Sequence[int],
    alive: list[int],
    start: int,
    stops: list[int],
    unit: int,
    kinds: Sequence[str],
    without: Collection[str],
) -> list[tuple[int, int, int]]:
    """Of each part, up to a stop: the largest total, after how many events it is there first, and the total at its end.

    The first part begins after ``start`` events with what is ``alive``; a part's first moment is the last of the one
    before. ``sizes`` are rounded up to a multiple of ``unit``, those of the kinds ``without`` are left out.
    """
    sizes = [0 if kind in without else -(-size // unit) * unit for size, kind in zip(sizes, kinds)]
    changes = [sizes[event] if event >= 0 else -sizes[~event] for event in events[start : stops[-1]]]
    totals = list(accumulate(changes, initial=sum([sizes[i] for i in alive])))
    found = []
    for first, last in zip([start, *stops], stops):
        highest = max(totals[first - start : last + 1 - start])
        found.append((highest, totals.index(highest, first - start) + start, totals[last - start]))
    return found
