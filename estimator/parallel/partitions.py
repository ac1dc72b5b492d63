"""A parameter group as one flat buffer, cut into equal parts for the ranks (deepspeed 0.19.8, stage_1_and_2.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..engine import Tensor
from ..engine.autograd import AccumulateGrad
from ..units import DType

__all__ = ["ALIGNMENT", "FlatGroup", "Place", "candidates", "candidates_behind", "round_robin", "sent_together"]

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
        self._owned: dict[int, Mapping[int, int]] = {}  # by rank

    def slices(self, index: int) -> Iterator[tuple[int, int]]:
        """(rank, elements) of a parameter, in order."""
        start = self.starts[index]
        stop = start + self.parameters[index].numel
        while start < stop:
            rank = start // self.part
            end = min(stop, (rank + 1) * self.part)
            yield rank, end - start
            start = end

    def owned(self, rank: int) -> Mapping[int, int]:
        """Elements of the rank's slice by number of the parameter, for those that touch its part."""
        if rank not in self._owned:
            self._owned[rank] = self._touched(rank)
        return self._owned[rank]

    def _touched(self, rank: int) -> Mapping[int, int]:
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


class Place:
    """Where a parameter stands: its group, its number there, and whether this rank keeps its gradient."""

    def __init__(self, parameter: Tensor, group: FlatGroup, index: int, owned: int) -> None:
        assert parameter.accumulator is not None
        self.leaf: AccumulateGrad = parameter.accumulator
        self.numel, self.group, self.index, self.owned = parameter.numel, group, index, owned
        self.shape, self.strides = parameter.shape, parameter.strides

    def show(self, buffer: Tensor) -> None:
        """The gradient is copied into ``buffer``, where it lives from now on."""
        self.leaf.grad = buffer.alias(self.shape, self.strides)


def round_robin(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """``round_robin_gradients``: every rank's turn after the other's (stage_1_and_2.py, ``_round_robin_reorder``)."""
    return [p for rank in range(ranks) for p in parameters[rank::ranks]]


def sent_together(places: Iterable[Place], limit: int, apart: int | None) -> Iterator[list[tuple[int, int]]]:
    """(rank, elements) of the slices that are summed in one call: until they are larger than a bucket.

    Neighbours for one rank are one slice, but for the rank whose slices go to a place each (``apart``).
    """
    slices: list[tuple[int, int]] = []
    for place in places:
        for rank, numel in place.group.slices(place.index):
            if slices and slices[-1][0] == rank != apart:
                slices[-1] = rank, slices[-1][1] + numel
            else:
                slices.append((rank, numel))
    together: list[tuple[int, int]] = []
    total = 0
    for one in slices:
        together.append(one)
        total += one[1]
        if total > limit:
            yield together
            together, total = [], 0
    yield together


def candidates(groups: Sequence[FlatGroup], places: Mapping[int, int]) -> list[int]:
    """The ranks of which one is the most loaded while a backward pass partitions gradients.

    A rank keeps the gradients of whole parameters that its parts touch, from the first that is there on. ``places``
    number the parameters by identity; their gradients come from the last to the first. Whoever begins later and keeps
    no more than one before is no candidate, but for the rank with the largest slice, whose norm is taken in fp64.
    """
    loads: dict[int, int] = {}
    firsts: dict[int, int] = {}
    for group in groups:
        for index, p in enumerate(group.parameters):
            for rank, _ in group.slices(index):
                loads[rank] = loads.get(rank, 0) + p.numel
                firsts[rank] = max(firsts.get(rank, 0), places[id(p)])
    found: list[int] = []
    for rank in sorted(loads, key=lambda rank: (-firsts[rank], -loads[rank])):
        if not found or loads[rank] > loads[found[-1]]:
            found.append(rank)
    slices = _slices(groups)
    largest = max(slices, key=lambda rank: (slices[rank], rank))
    return found if largest in found else [*found, largest]


def candidates_behind(groups: Sequence[FlatGroup], bucket: int, size: int, *, on_host: bool = False) -> list[int]:
    """The same where gradients of ``size`` bytes an element go to buckets of ``bucket`` elements behind the backward
    pass, in the parameters' order.

    At the moment of a rank's first gradient those that went to buckets before are gone, and its own are kept from then
    on: one rank needs most then, another for its whole gradients, or for them and its largest slice in fp64.
    ``on_host``: each goes as soon as its slice was there in fp64.
    """
    loads: dict[int, int] = {}
    needs: dict[int, int] = {}
    slices: dict[int, int] = {}
    for gone, reduced in _reductions(groups, bucket):
        for rank, numel, owned in reduced:
            load = loads.get(rank, 0)
            need = DType.float64.size * owned - size * (gone + load) if on_host else -gone
            needs[rank] = max(needs.get(rank, need), need)
            slices[rank] = max(slices.get(rank, 0), owned)
            loads[rank] = load + (0 if on_host and numel <= bucket else numel)
    if on_host:
        return [max(needs, key=lambda rank: (needs[rank], -rank))]
    most = (
        max(loads, key=lambda rank: (loads[rank] + needs[rank], -rank)),
        max(loads, key=lambda rank: (loads[rank], -rank)),
        max(loads, key=lambda rank: (size * loads[rank] + DType.float64.size * slices[rank], -rank)),
    )
    return list(dict.fromkeys(most))


def _reductions(groups: Sequence[FlatGroup], bucket: int) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Elements that are in buckets by then, and (rank, elements of the parameter, elements of the rank's slice)."""
    gone = filled = 0
    waiting: list[tuple[int, int, int]] = []
    for group in groups:
        for index, p in enumerate(group.parameters):
            if filled + p.numel > bucket:
                yield gone, waiting
                waiting, filled = [], 0
            gone += p.numel if p.numel <= bucket else 0
            filled += p.numel
            waiting += [(rank, p.numel, owned) for rank, owned in group.slices(index)]
    yield gone, waiting


def _slices(groups: Sequence[FlatGroup]) -> dict[int, int]:
    """Elements of the largest slice of a parameter that each rank has."""
    largest: dict[int, int] = {}
    for group in groups:
        for index in range(len(group.starts)):
            for rank, numel in group.slices(index):
                largest[rank] = max(largest.get(rank, 0), numel)
    return largest
