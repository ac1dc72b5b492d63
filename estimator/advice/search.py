"""The candidates of one request: families that differ in what they change, and within each a grid of micro-batch and
checkpointed blocks.

Within a family memory grows with the micro-batch and shrinks with every checkpointed block, so that a few plays at the
boundary decide the whole grid. Of the candidates that fit a family offers those that take no more than they need: for
each micro-batch the fewest checkpointed blocks, and the allocator's own segments where they do.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..errors import InvalidRequest
from ..searching import last_that
from ..settings import TrainSettings
from .axes import Axis
from .trials import Trial, Trials

#: Larger micro-batches and more micro-steps are not tried.
_MAX_BS, _MAX_ACCUM = 1 << 20, 1024

__all__ = [
    "Family",
    "Found",
    "Grid",
    "batches",
    "beyond",
    "checked_accum",
    "checked_share",
    "fastest",
    "search",
    "with_batch",
]


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


_NO_BATCHES = (
    f"{{:,}} images per GPU and update are no whole number of {{}}micro-batches of up to {_MAX_BS:,} images in up to "
    f"{_MAX_ACCUM:,} micro-steps; choose another --effective-batch"
)


def batches(settings: TrainSettings, per_gpu: int) -> list[int]:
    """The micro-batches that make up ``per_gpu`` images in whole micro-steps, the smallest first: up to a million
    images, in up to a thousand micro-steps. Raises InvalidRequest where there are none."""
    step = 2 if settings.mixup and settings.loop == "timm" else 1  # timm mixes the halves of a batch
    first = -(-per_gpu // (_MAX_ACCUM * step)) * step
    sizes = [bs for bs in range(max(first, step), min(per_gpu, _MAX_BS) + 1, step) if per_gpu % bs == 0]
    if not sizes:
        raise InvalidRequest(_NO_BATCHES.format(per_gpu, "even " if step == 2 else ""))
    return sizes


def with_batch(settings: TrainSettings, bs: int, per_gpu: int) -> TrainSettings:
    """``settings`` with the accumulation that keeps the effective batch."""
    return dataclasses.replace(settings, bs=bs, accum=per_gpu // bs)


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

    def largest(self, layers: int, alloc_conf: str | None = None, *, first: int = 0) -> int | None:
        """The place of the largest micro-batch from ``first`` on that fits with ``layers`` checkpointed blocks."""
        return last_that(
            lambda place: self.fits(place, layers, alloc_conf),
            self.expected(layers),
            first,
            self.last,
            lambda place: self._reach(place, layers, self.at(place, layers, alloc_conf).spare_bytes) - place,
        )

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

    ``doubtful``: perhaps nothing, so that the candidate that takes the least comes first.
    """
    trials, rows = grid.trials, grid.most + 1
    if (doubtful or grid.expected(0) < 0) and not grid.may_fit(0, grid.most):
        return Found([], 0)
    plain = grid.largest(0)
    layers = dict.fromkeys(range((-1 if plain is None else plain) + 1), 0)
    if grid.most and len(layers) < len(grid.sizes):
        largest = grid.largest(grid.most, first=len(layers))
        for place in range(len(layers), (-1 if largest is None else largest) + 1):
            layers[place] = grid.fewest(place, None, grid.most)
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
    place, count = grid.largest(0), 0
    if place is None:
        if not grid.most or not grid.fits(0, grid.most):
            return Found([], 0)
        place, count = 0, grid.fewest(0, None, grid.most)
    return Found([grid.at(place, count)], (place + 1) * (grid.most - count + 1))


def beyond(grid: Grid, best: TrainSettings, alloc_confs: Sequence[str]) -> Found:
    """What a grid offers that is faster than ``best`` of another family: a larger batch, or fewer checkpointed blocks.

    Where neither the next larger batch nor one block less fits, nothing beyond does; what is not beyond would change
    more than ``best`` for nothing.
    """
    place, layers = grid.place_of(best)
    conf = best.alloc_conf
    if place < grid.last and grid.fits(place + 1, layers, conf):
        found = grid.largest(layers, conf, first=place + 1)
        assert found is not None
        place = found
    elif not layers or not grid.fits(place, layers - 1, conf):
        return Found([], 0)
    count = grid.fewest(place, conf, layers) if layers else 0
    if conf is not None and conf in alloc_confs and grid.fits(place, count):
        conf, count = None, grid.fewest(place, None, count) if count else 0
    return Found([grid.at(place, count, conf)], (place + 1) * (grid.most - count + 1))


def _needed(layers: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Of equal numbers of checkpointed blocks only the largest batch."""
    for place, count in layers.items():
        if layers.get(place + 1) != count:
            yield place, count


def _with_conf(grid: Grid, layers: dict[int, int], alloc_conf: str) -> Iterator[tuple[int, int]]:
    """Where it saves a checkpointed block, or makes a batch fit that does not without it."""
    for place, count in layers.items():
        if count and grid.may_fit(place, count - 1) and grid.fits(place, count - 1, alloc_conf):
            yield place, grid.fewest(place, alloc_conf, count - 1)
    place = len(layers)
    if place < len(grid.sizes) and grid.may_fit(place, grid.most) and grid.fits(place, grid.most, alloc_conf):
        yield place, grid.most if not grid.most else grid.fewest(place, alloc_conf, grid.most)


def checked_share(effective_batch: int, gpus: int) -> int:
    """The images of one GPU per step; raises InvalidRequest where the GPUs do not share the batch evenly."""
    if isinstance(effective_batch, bool) or not isinstance(effective_batch, int) or effective_batch < 1:
        raise InvalidRequest(f"effective batch {effective_batch!r} is not valid; it must be a whole number, at least 1")
    if rest := effective_batch % gpus:
        below, above = effective_batch - rest, effective_batch - rest + gpus
        raise InvalidRequest(_not_met(f"cannot be shared by {gpus} GPUs", effective_batch, below, above))
    return effective_batch // gpus


def checked_accum(effective_batch: int, gpus: int, bs: int) -> int:
    """The micro-steps of ``bs`` images, where that stays; raises InvalidRequest where they do not add up."""
    step = bs * gpus
    if rest := effective_batch % step:
        below, above = effective_batch - rest, effective_batch - rest + step
        why = f"is no multiple of {step} ({bs} images x {gpus})"
        raise InvalidRequest(_not_met(why, effective_batch, below, above))
    return effective_batch // step


def _not_met(why: str, effective_batch: int, below: int, above: int) -> str:
    near = " or ".join(str(batch) for batch in (below, above) if batch)
    return (
        f"effective batch {effective_batch} {why}; use {near}, and scale the learning rate by the same factor (SGD) or "
        "by its root (Adam)"
    )
