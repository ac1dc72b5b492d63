"""What a training would reserve at another batch or resolution, by a straight line through two that were played.

A guess that costs a replay of the allocator in place of a play: what a search tries next, never what it answers. It
is exact where every allocation grows evenly, as most do with the batch, and the same kernels run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .candidate import Candidate
from .device import Device, Run
from .ledger import Ledger

__all__ = ["Line", "line_through"]


class _Growing(NamedTuple):
    """What happens in a process, and by how much each of its allocations grows over the whole distance of the line."""

    ledger: Ledger
    growth: Sequence[int]


class Line(NamedTuple):
    """``runs`` are those of a candidate with ``begin`` images or pixels; another has ``distance`` more."""

    device: Device
    runs: tuple[_Growing, ...]
    begin: int
    distance: int

    def spare_bytes(self, amount: int) -> int:
        """What the device should spare beside so much; below 0 where it should not hold it.

        What it lacks then is that of an allocator that gives nothing back.
        """
        spare = room = self.device.room_bytes
        for run in self.runs:
            there = Run(self._at(run, amount), (), self.device.allocator)
            replayed = there.within(room)
            if replayed.failed is not None:
                return min(room - there.replay.reserved_bytes, -1)
            spare = min(spare, room - replayed.reserved_bytes)
        return spare

    def _at(self, run: _Growing, amount: int) -> Ledger:
        steps, distance = amount - self.begin, self.distance
        sizes = [size + grows * steps // distance for size, grows in zip(run.ledger.bytes, run.growth)]
        return run.ledger._replace(bytes=tuple(sizes if min(sizes) >= 0 else [max(size, 0) for size in sizes]))


def line_through(one: Candidate, other: Candidate, begin: int, end: int) -> Line | None:
    """``begin`` and ``end`` are what the candidates have of what differs; None where nothing or more than that does."""
    if begin == end or one.num_events != other.num_events:
        return None
    runs: list[_Growing] = []
    for mine, theirs in zip(one.runs, other.runs):
        ledger, its = mine.ledger, theirs.ledger
        if (ledger.events, ledger.side, ledger.releases) != (its.events, its.side, its.releases):
            return None
        runs.append(_Growing(ledger, [after - before for before, after in zip(ledger.bytes, its.bytes)]))
    return Line(one.device, tuple(runs), begin, end - begin)
