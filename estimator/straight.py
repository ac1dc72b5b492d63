"""What a training would reserve at another batch or resolution, by a straight line through two that were played.

A guess that costs a replay of the allocator in place of a play: what a search tries next, never what it answers. It
is exact where every allocation grows evenly, as most do with the batch, and the same kernels run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from .candidate import Candidate
from .device import Run
from .replay import Replay, replay

__all__ = ["Line", "line_through"]


class _Run(NamedTuple):
    """A run, and by how much each of its allocations grows over the whole distance of the line."""

    run: Run
    growth: Sequence[int]


class Line(NamedTuple):
    """``begin`` is the amount (images, pixels) of the candidate whose ``runs`` these are, ``distance`` the other's less
    it."""

    candidate: Candidate
    runs: tuple[_Run, ...]
    begin: int
    distance: int

    def spare_bytes(self, amount: int) -> int:
        """What the device should spare beside so much; below 0 where it should not hold it.

        What it lacks then is that of an allocator that gives nothing back.
        """
        spare = room = self.candidate.device.room_bytes
        for run in self.runs:
            replayed = self._replayed(run, amount, room)
            if replayed.failed is not None:
                return min(room - self._replayed(run, amount, None).reserved_bytes, -1)
            spare = min(spare, room - replayed.reserved_bytes)
        return spare

    def _replayed(self, run: _Run, amount: int, capacity: int | None) -> Replay:
        ledger, steps, distance = run.run.ledger, amount - self.begin, self.distance
        sizes = [max(size + grows * steps // distance, 0) for size, grows in zip(ledger.bytes, run.growth)]
        allocator = dataclasses.replace(self.candidate.device.allocator, capacity=capacity)
        return replay(ledger._replace(bytes=tuple(sizes)), allocator)


def line_through(one: Candidate, other: Candidate, begin: int, end: int) -> Line | None:
    """``begin`` and ``end`` are what the candidates have of what differs; None where nothing or more than that does."""
    runs: list[_Run] = []
    if begin == end:
        return None
    for mine, theirs in zip(one.runs, other.runs):
        ledger, its = mine.ledger, theirs.ledger
        if (ledger.events, ledger.side, ledger.releases) != (its.events, its.side, its.releases):
            return None
        runs.append(_Run(mine, [after - before for before, after in zip(ledger.bytes, its.bytes)]))
    return Line(one, tuple(runs), begin, end - begin)
