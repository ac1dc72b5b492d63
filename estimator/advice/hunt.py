"""The hunt for offers: which families of candidates are tried, in which order, and what ends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any

from ..errors import InvalidRequest, NotModelled
from ..families import Plan
from ..parallel import casts_model
from ..pipeline import resolved
from ..settings import TrainSettings
from .axes import Axis, Known
from .batches import batches
from .search import Family, Found, Grid, beyond, fastest, search
from .trials import Trial, Trials

__all__ = ["Hunt", "Offer"]

Offer = tuple[Family, Trial]
#: Two times that are closer than this are equal.
_CLEARLY = 0.97


class Hunt:
    """One request. ``asked`` is where it starts, ``axes`` are what may change, ``num_blocks`` in how many
    steps blocks may be checkpointed at most, ``may_split`` whether the micro-batch may change."""

    def __init__(self, trials: Trials, asked: TrainSettings, plan: Plan, per_gpu: int, axes: Sequence[Axis]) -> None:
        self.trials, self.asked, self.per_gpu, self.axes = trials, asked, per_gpu, axes
        names = {axis.name for axis in axes}
        self.may_split = "bs" in names
        self.num_blocks = len(plan.blocks)
        self._may_checkpoint = "grad_checkpointing" in names and not asked.grad_checkpointing
        self._levels: dict[str | None, int] = {}
        self.known = Known(trials.gpu, plan, trials(asked).largest_parameter)
        self.confs = [value["alloc_conf"] for axis in self._named("alloc_conf") for value in self._values(axis, asked)]
        self.offers: list[Offer] = []
        self.considered = self.fitting = 0
        self._counted: set[TrainSettings] = set()

    def levels(self, settings: TrainSettings) -> int:
        """In how many steps blocks can be checkpointed: one where the library takes all or nothing, none without.

        What the engine of the request takes all take; another may take what that one refuses.
        """
        if not self._may_checkpoint:
            return 0
        for tried in (self.asked, settings):
            if tried.parallel not in self._levels:
                self._levels[tried.parallel] = self._levels_of(tried)
            if self._levels[tried.parallel]:
                break
        return self._levels[tried.parallel]

    def _levels_of(self, settings: TrainSettings) -> int:
        if self.trials.maybe(settings, grad_checkpointing=True, checkpoint_layers=1) is not None:
            return self.num_blocks
        return int(self.trials.maybe(settings, grad_checkpointing=True) is not None)

    def run(self) -> list[Offer]:
        """What fits: as asked and with what is better anyway, then what only makes room, where it is worth it."""
        start = Family(self.asked, ())
        better = self.improved_start = self.improved(start)
        self._try(better)
        if better.changed:
            self._add(start, fastest)
        if self.asked.gpus > 1 or not self.offers:  # alone an engine divides nothing: it is there for its offload
            self._try(*self._divided(better))
        self._try(*self._singles(better))
        if not self.offers and better.changed:
            self._try(start, *self._divided(start))
        if not self.offers:
            self._try(self.least())
        return self.offers

    def join(self, other: Hunt) -> None:
        """Take over what another hunt found: where it found any that change the recipe, no more of these."""
        if other.offers:
            self.offers = [offer for offer in self.offers if offer[0].keeps_recipe] + other.offers
        self.considered += other.considered
        self.fitting += other.fitting

    def improved(self, start: Family) -> Family:
        """With every other value that is neither slower nor larger than what it replaces."""
        family = start
        for axis in self.axes:
            if axis.makes_room or not axis.keeps_recipe:
                continue
            for value in self._values(axis, family.settings):
                old, new = self.trials(family.settings), self.trials.maybe(family.settings, **value)
                if new is None:
                    continue
                if new.seconds <= old.seconds and new.requested_bytes <= old.requested_bytes:
                    family = Family(new.settings, (*family.changed, axis))
                else:
                    other = Family(new.settings, (*family.changed, axis))
                    self._count(other, self._grid(other))
        return family

    def nearest(self) -> Family:
        """Of every engine with every offload the one that misses the least: the smallest batch, all blocks
        checkpointed, from the request as it is and with what is better."""
        better = self.improved_start
        starts = [better, Family(self.asked, ())] if better.changed else [better]
        nearest, missing = better, float("inf")
        families = [family for start in starts for family in (start, *self._divided(start))]
        for family in sorted(families, key=self._at_least):
            if self._at_least(family) >= missing:
                break
            if (misses := self.trials(self.smallest(family)).missing_bytes) < missing:
                nearest, missing = family, misses
        return nearest

    def least(self) -> Family:
        """The nearest with whatever else takes off the most, one after the other."""
        family = self.nearest()
        for axis in self.axes:
            if axis.name in {"alloc_conf", "parallel", "offload"}:
                continue
            options = [family, *(Family(s, (*family.changed, axis)) for s in self._changed(axis, family.settings))]
            family = min(options, key=self._at_least)
        return family

    def smallest(self, family: Family) -> TrainSettings:
        """A family's candidate that misses the least."""
        grid = self._grid(family)
        ends = dict.fromkeys((grid.smallest, 0, grid.last))  # one may request less and reserve more
        confs = (family.settings.alloc_conf, *self.confs)
        tries = [grid.settings_at(place, grid.most, conf) for place in ends for conf in confs]
        return min(tries, key=lambda tried: self.trials(tried).missing_bytes)

    def _at_least(self, family: Family) -> float:
        """What a family's smallest candidate misses at least, however it is laid out; infinite where it is refused."""
        try:
            grid = self._grid(family)
            return -grid.at(grid.smallest, grid.most).slack_bytes
        except (InvalidRequest, NotModelled):
            return float("inf")

    def _divided(self, start: Family) -> Iterator[Family]:
        """States divided among the GPUs, then moved to the host: of one GPU only the latter."""
        for engine in (start, *self._each("parallel", start)):
            if engine is not start and self.asked.gpus > 1:
                yield engine
            yield from self._each("offload", engine)

    def _each(self, name: str, start: Family) -> Iterator[Family]:
        for axis in self._named(name):
            for settings in self._changed(axis, start.settings):
                yield Family(settings, (*start.changed, axis))

    def _singles(self, start: Family) -> Iterator[Family]:
        """One change of the recipe at a time."""
        for axis in self.axes:
            if not axis.keeps_recipe:
                changed = (*start.changed, axis)
                yield from (Family(settings, changed) for settings in self._changed(axis, start.settings))

    def _try(self, *families: Family) -> None:
        """All that the first family to fit has to offer; of a later one what is faster than anything before."""
        for family in families:
            self._try_one(family)

    def _try_one(self, family: Family) -> None:
        best = min((trial for _, trial in self.offers), key=lambda trial: trial.seconds, default=None)
        if best is None:
            doubtful = self.considered > 0
            self._add(family, lambda grid: search(grid, self.confs, doubtful=doubtful))
            return
        self._add(family, lambda grid: beyond(grid, best.settings, self.confs), lambda: self._bar(family, best))

    def _bar(self, family: Family, best: Trial) -> float:
        """What another family has to be faster than, clearly. An engine that trains a 16-bit model is faster by that
        alone, so that the gain of offload is what it has over such an engine without, at ``best``'s own place."""
        seconds, offloads = best.seconds, family.settings.offload != best.settings.offload
        if offloads and casts_model(family.settings) and not casts_model(best.settings):
            alike = (self.trials.maybe(engine.settings) for engine in self._each("parallel", Family(best.settings, ())))
            seconds = min([seconds, *(trial.seconds for trial in islice(filter(None, alike), 1))])
        return _CLEARLY * seconds

    def _add(self, family: Family, look: Callable[[Grid], Found], bar: Callable[[], float] = lambda: inf) -> None:
        """What the library refuses, or what is not modelled, is no candidate."""
        try:
            grid = self._grid(family)
            found = look(grid)
        except (InvalidRequest, NotModelled):
            return
        self._count(family, grid)
        self.fitting += found.fitting
        self.offers += [(family, offer) for offer in found.offers if offer.seconds < bar()]

    def _count(self, family: Family, grid: Grid) -> None:
        """Its candidates, with the allocator's options, are considered; once, however often they are asked about."""
        if family.settings not in self._counted:
            self._counted.add(family.settings)
            self.considered += len(grid) * (1 + len(self.confs))

    def _grid(self, family: Family) -> Grid:
        """Raises for settings that are refused."""
        resolved(family.settings)
        sizes = batches(family.settings, self.per_gpu) if self.may_split else [family.settings.bs]
        return Grid(self.trials, family, sizes, self.per_gpu, self.levels(family.settings))

    def _named(self, name: str) -> Iterator[Axis]:
        return (axis for axis in self.axes if axis.name == name)

    def _values(self, axis: Axis, settings: TrainSettings) -> list[dict[str, Any]]:
        return axis.values(settings, self.known)

    def _changed(self, axis: Axis, settings: TrainSettings) -> Iterator[TrainSettings]:
        return (dataclasses.replace(settings, **value) for value in self._values(axis, settings))
