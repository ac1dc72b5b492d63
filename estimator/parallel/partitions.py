"""A parameter group as one flat buffer, cut into equal parts for the ranks (deepspeed 0.19.8, stage_1_and_2.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..engine import Tensor

__all__ = ["ALIGNMENT", "FlatGroup", "most_loaded"]

#: ``nccl_start_alignment_factor``: elements, for each rank.
ALIGNMENT = 2


class FlatGroup:
    """``numel`` elements with padding at the end, ``part`` of them for each of ``ranks``."""

    def __init__(self, parameters: Sequence[Tensor], ranks: int, *, decayed: bool) -> None:
        self.parameters, self.ranks, self.decayed = tuple(parameters), ranks, decayed
        self.unpadded = sum(p.numel for p in parameters)
        unit = ALIGNMENT * ranks
        self.numel = -(-self.unpadded // unit) * unit
        self.part = self.numel // ranks
        self.starts: list[int] = []
        start = 0
        for p in parameters:
            self.starts.append(start)
            start += p.numel

    def slices(self, index: int) -> Iterator[tuple[int, int]]:
        """(rank, elements) of a parameter, in order."""
        start = self.starts[index]
        stop = start + self.parameters[index].numel
        while start < stop:
            rank = start // self.part
            end = min(stop, (rank + 1) * self.part)
            yield rank, end - start
            start = end

    def owned(self, rank: int) -> dict[int, int]:
        """Elements of the rank's slice by number of the parameter, for those that touch its part."""
        first, last = rank * self.part, (rank + 1) * self.part
        touched = {}
        for index, (start, p) in enumerate(zip(self.starts, self.parameters)):
            inside = min(last, start + p.numel) - max(first, start)
            if inside > 0:
                touched[index] = inside
        return touched

    def padding(self, rank: int) -> int:
        """Elements of the rank's part behind the last parameter."""
        return min(self.part, max(0, (rank + 1) * self.part - self.unpadded))


def most_loaded(groups: Sequence[FlatGroup]) -> int:
    """The rank whose parts touch the most elements: it keeps the gradients of whole parameters."""
    loads: dict[int, int] = {}
    for group in groups:
        for index, p in enumerate(group.parameters):
            for rank, _ in group.slices(index):
                loads[rank] = loads.get(rank, 0) + p.numel
    return max(loads, key=lambda rank: loads[rank])
