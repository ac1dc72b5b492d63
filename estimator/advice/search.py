"""The candidates of one request: families that differ in what they change, and within each a grid of micro-batch and
checkpointed blocks.

Within a family memory grows with the micro-batch and shrinks with every checkpointed block, so that a few plays at the
boundary decide the whole grid; the whole batch at once stands apart, as no gradients lie beside it. Of the candidates
that fit a family offers those that take no more than they need: for each micro-batch the fewest checkpointed blocks,
and the allocator's own segments where they do.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..searching import last_that
from ..settings import TrainSettings
from .axes import Axis
from .batches import with_batch
from .trials import Trial, Trials

__all__ = ["Family", "Found", "Grid", "beyond", "fastest", "search"]


class Found(NamedTuple):
    """What a family's grid holds: the offers, and how many of its candidates are known to fit."""

    offers: list[Trial]
    fitting: int


class Family(NamedTuple):
    """Settings that every candidate shares, and the axes that were changed to get there."""

    settings: TrainSettings
    changed: tuple[Axis, ...]

    @property
    def keeps_recipe(self) -> bool:
        """Whether the update stays what it was."""
        return all(axis.keeps_recipe for axis in self.changed)


class Grid:
    """One family: place 0 of ``sizes`` is the smallest batch, up to ``num_blocks`` blocks are checkpointed."""

    def __init__(self, trials: Trials, family: Family, sizes: Sequence[int], per_gpu: int, num_blocks: int) -> None:
        self.trials, self.family, self.sizes, self.per_gpu = trials, family, sizes, per_gpu
        self.most, self.last = num_blocks, len(sizes) - 1

    def __len__(self) -> int:
        return len(self.sizes) * (self.most + 1)

    def settings_at(self, place: int, layers: int, alloc_conf: str | None = None) -> TrainSettings:
        """The candidate with ``layers`` checkpointed blocks."""
        settings = with_batch(self.family.settings, self.sizes[place], self.per_gpu)
        if layers:
            some = layers if layers < self.most else None
            settings = dataclasses.replace(settings, grad_checkpointing=True, checkpoint_layers=some)
        return settings if alloc_conf is None else dataclasses.replace(settings, alloc_conf=alloc_conf)

    def place_of(self, settings: TrainSettings) -> tuple[int, int]:
        """The place and the number of checkpointed blocks of another family's candidate."""
        place = self.sizes.index(settings.bs)
        if not self.most or not settings.grad_checkpointing:  # the request's own checkpointing stays as it is
            return place, 0
        return place, self.most if settings.checkpoint_layers is None else settings.checkpoint_layers

    def at(self, place: int, layers: int, alloc_conf: str | None = None) -> Trial:
        """The candidate, played."""
        return self.trials(self.settings_at(place, layers, alloc_conf))

    def fits(self, place: int, layers: int, alloc_conf: str | None = None) -> bool:
        """Whether the candidate fits."""
        return self.may_fit(place, layers, alloc_conf) and self.at(place, layers, alloc_conf).fits

    def may_fit(self, place: int, layers: int, alloc_conf: str | None = None) -> bool:
        """Whether what is allocated would, however it is laid out."""
        return self.trials.may_fit(self.settings_at(place, layers, alloc_conf))

    def fitting(self, layers: int, alloc_conf: str | None = None, *, first: int = 0) -> list[int]:
        """The places from ``first`` on whose batches fit with ``layers`` checkpointed blocks: up to some size, and
        perhaps the whole batch in one micro-step, beside which no gradients wait."""
        largest = last_that(
            lambda place: self.fits(place, layers, alloc_conf),
            self.expected(layers),
            first,
            self.last,
            lambda place: self._reach(place, layers, self.at(place, layers, alloc_conf).spare_bytes) - place,
        )
        places = [*range(first, first if largest is None else largest + 1)]
        if largest != self.last and self.fits_whole(layers, alloc_conf, like=self._corners[1]):
            places.append(self.last)
        return places

    def fits_whole(self, layers: int, alloc_conf: str | None, *, like: int) -> bool:
        """Whether the whole batch fits in one micro-step; not played where as many activations for each image as in
        another batch, ``like``, are too much already."""
        settings = self.settings_at(like, layers)
        if like != self.last and not self.trials.may_fit(settings):
            if self.trials.are_too_much(settings):
                return False
            other = self.trials(settings)
            if other.activation_bytes * self.sizes[self.last] > other.room_bytes * self.sizes[like]:
                return False
        return self.fits(self.last, layers, alloc_conf)

    @property
    def smallest(self) -> int:
        """The place whose batch takes the least: one image at a time, or all in one micro-step."""
        return min((0, self.last), key=lambda place: self.at(place, self.most).requested_bytes)

    def expected(self, layers: int) -> int:
        """The place of the largest micro-batch that should fit; -1 if none."""
        corner = self._corners[1]
        return self._reach(corner, layers, self.at(corner, layers).expected_spare_bytes)

    def _reach(self, place: int, layers: int, spare_bytes: float) -> int:
        """The place up to which a batch may grow, or has to shrink, from another one that spares so much."""
        if not self.last:
            return place
        most = self.sizes[place] + spare_bytes / self._bytes_per_image(layers)
        return sum(size <= most for size in self.sizes) - 1

    def _bytes_per_image(self, layers: int) -> float:
        """By the line through two batches without checkpointing, which begins where lines with it begin too."""
        low, high = self._corners
        size, without = self.sizes[high], self.at(high, 0).requested_bytes
        per_image = (without - self.at(low, 0).requested_bytes) / (size - self.sizes[low])
        with_them = self.at(high, layers).requested_bytes if layers else without
        return max(per_image - (without - with_them) / size, 1)

    def fewest(self, place: int, alloc_conf: str | None, known: int) -> int:
        """The fewest checkpointed blocks with which a batch fits, where ``known`` do."""
        fewest = last_that(
            lambda spared: spared <= self.most - known or self.fits(place, self.most - spared, alloc_conf),
            self.most - self._needed(place, 0, min(self.at(place, 0).expected_spare_bytes, 0)),
            0,
            self.most,
            lambda spared: self._superfluous(place, self.most - spared, alloc_conf),
        )
        assert fewest is not None
        _ = self.at(place, self.most - fewest, alloc_conf).peak  # as it is likely to be offered, while it is at hand
        return self.most - fewest

    def _superfluous(self, place: int, layers: int, alloc_conf: str | None) -> int:
        """How many checkpointed blocks less would do; below 0, how many more are missing."""
        return layers - self._needed(place, layers, self.at(place, layers, alloc_conf).spare_bytes)

    def _needed(self, place: int, layers: int, spare_bytes: float) -> int:
        """The number of checkpointed blocks that should do where with ``layers`` there are so many bytes to spare."""
        least = self._saved_per_image[layers] - spare_bytes / self.sizes[place]
        return min(bisect_left(self._saved_per_image, least), self.most)

    @cached_property
    def _saved_per_image(self) -> list[float]:
        """What the first blocks leave out when they are checkpointed, by their number."""
        if not self.most:
            return [0]
        corner = self._corners[1]
        kept = zip(*(self.at(corner, layers).saved_by_block for layers in (0, self.most)))
        saved = [max(without - with_it, 0) / self.sizes[corner] for without, with_it in kept]
        return list(accumulate(saved if len(saved) == self.most else [sum(saved)], initial=0))

    @property
    def _corners(self) -> tuple[int, int]:
        """Two places between which memory grows by a straight line: the largest batch, in one micro-step, stands apart
        where there are others."""
        high = max(self.last - 1, min(self.last, 1))
        return max(high - 1, 0), high


def search(grid: Grid, alloc_confs: Sequence[str], *, doubtful: bool = False) -> Found:
    """What a grid offers; ``alloc_confs`` may be tried where the allocator's own segments are not enough.

    ``doubtful``: perhaps nothing, so that the candidates that take the least come first.
    """
    trials, rows = grid.trials, grid.most + 1
    if (doubtful or grid.expected(0) < 0) and not any(grid.may_fit(place, grid.most) for place in (0, grid.last)):
        return Found([], 0)
    layers = dict.fromkeys(grid.fitting(0), 0)
    if grid.most and (rest := _missing(grid, layers)):
        more = grid.fitting(grid.most, first=rest[0])
        layers |= {place: grid.fewest(place, None, grid.most) for place in more if place in rest}
    offers = [trials(grid.settings_at(place, count)) for place, count in _needed(layers)]
    fitting = sum(rows - count for count in layers.values())
    for alloc_conf in alloc_confs:
        better = dict(_with_conf(grid, layers, alloc_conf))
        needed = [(place, count) for place, count in _needed(layers | better) if place in better]
        for place, count in needed:  # now and then fewer blocks fit where more do not: see the allocator's jumps
            conf = None if grid.fits(place, count) else alloc_conf
            offers.append(trials(grid.settings_at(place, count, conf)))
        fitting += sum(rows - count for count in (layers | better).values())
    return Found(offers, fitting)


def fastest(grid: Grid) -> Found:
    """The largest batch without checkpointing, or the smallest with as few checkpointed blocks as it takes."""
    if places := grid.fitting(0):
        place, count = places[-1], 0
    else:
        place = grid.smallest
        if not grid.most or not grid.fits(place, grid.most):
            return Found([], 0)
        count = grid.fewest(place, None, grid.most)
    return Found([grid.at(place, count)], (place + 1) * (grid.most - count + 1))


def beyond(grid: Grid, best: TrainSettings, alloc_confs: Sequence[str]) -> Found:
    """What a grid offers that is faster than ``best`` of another family: a larger batch, or fewer checkpointed blocks.

    Where neither a larger batch nor one block less fits, nothing beyond does; what is not beyond would change more than
    ``best`` for nothing.
    """
    place, layers = grid.place_of(best)
    conf = best.alloc_conf
    if place < grid.last and grid.fits(place + 1, layers, conf):
        place = grid.fitting(layers, conf, first=place + 1)[-1]
    elif place + 1 < grid.last and grid.fits_whole(layers, conf, like=place + 1):
        place = grid.last
    elif not layers or not grid.fits(place, layers - 1, conf):
        return Found([], 0)
    count = grid.fewest(place, conf, layers) if layers else 0
    if conf is not None and conf in alloc_confs and grid.fits(place, count):
        conf, count = None, grid.fewest(place, None, count) if count else 0
    return Found([grid.at(place, count, conf)], (place + 1) * (grid.most - count + 1))


def _missing(grid: Grid, layers: Mapping[int, int]) -> list[int]:
    return [place for place in range(len(grid.sizes)) if place not in layers]


def _needed(layers: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Without batches for which a larger one needs no more checkpointed blocks."""
    for place, count in layers.items():
        if not any(larger > place and other <= count for larger, other in layers.items()):
            yield place, count


def _with_conf(grid: Grid, layers: dict[int, int], alloc_conf: str) -> Iterator[tuple[int, int]]:
    """Where it saves a checkpointed block, or makes a batch fit that does not without it."""
    for place, count in layers.items():
        if count and grid.may_fit(place, count - 1) and grid.fits(place, count - 1, alloc_conf):
            yield place, grid.fewest(place, alloc_conf, count - 1)
    for place in _missing(grid, layers):
        if not (grid.may_fit(place, grid.most) and grid.fits(place, grid.most, alloc_conf)):
            return
        yield place, grid.most if not grid.most else grid.fewest(place, alloc_conf, grid.most)
