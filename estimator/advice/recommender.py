"""From a request to ranked plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ..cost import ASSUMPTION
from ..errors import InvalidRequest, NotModelled
from ..gpus import load
from ..pipeline import resolved
from ..settings import CHOICES, TrainSettings
from .axes import Axis, allowed_axes
from .changes import changes_of
from .ladder import ladder
from .lighter import lighter_models
from .plan import Nearest, Plan, Recommendation
from .search import Family, Found, Grid, batches, beyond, checked_share, product_of, search, singles_of, with_batch
from .trials import Trial, Trials

__all__ = ["recommend_settings"]

DEFAULT_PLANS = 5
_FEW_DIVISORS = 3


def recommend_settings(
    settings: TrainSettings,
    *,
    effective_batch: int | None = None,
    allow: tuple[str, ...] | None = None,
    forbid: tuple[str, ...] = (),
    num_plans: int = DEFAULT_PLANS,
    with_ladder: bool = False,
    with_lighter: bool | None = False,
) -> Recommendation:
    """The plans for ``settings`` that fit its GPU, those first that keep the recipe, then the fastest.

    Raises InvalidRequest and NotModelled as an estimate of ``settings`` does; where nothing fits, ``nearest`` says how
    far off it is. ``with_ladder`` and ``with_lighter`` add the ladder and the lighter models, these for
    None only where nothing fits.
    """
    if settings.gpu is None and settings.memory is None:
        raise InvalidRequest("recommend needs what it must fit into; add --gpu rtx4090 or --memory 24GiB")
    axes = allowed_axes(allow, forbid)
    whole = settings.bs * settings.accum * settings.gpus
    total = whole if effective_batch is None else effective_batch
    search_ = _Search(settings, total, axes)
    found = search_.recommendation(num_plans)
    rungs = ladder(search_.trials, search_.asked, search_.per_gpu) if with_ladder else ()
    wants_lighter = not found.plans if with_lighter is None else with_lighter
    lighter = lighter_models(search_.trials, search_.asked) if wants_lighter else ()
    return dataclasses.replace(found, ladder=rungs, lighter=lighter)


class _Search:
    """One request: where it starts, what was found, and how much was tried."""

    def __init__(self, settings: TrainSettings, effective_batch: int, axes: Sequence[Axis]) -> None:
        self.effective_batch, self.axes = effective_batch, axes
        self.per_gpu = checked_share(effective_batch, settings.gpus)
        self.trials = Trials(settings)
        plan, settings = _with_parallel(settings)
        allowed = {axis.name for axis in axes}
        self.may_checkpoint = "grad_checkpointing" in allowed and not settings.grad_checkpointing
        self.num_blocks = len(plan.blocks) if self.may_checkpoint else 0
        self.may_split = "bs" in allowed
        self.asked = self._asked(settings)
        self.confs = [
            value for axis in axes if axis.name == "alloc_conf" for value in axis.values(settings, self.trials.gpu)
        ]
        self.counts = Found([], 0, 0)

    def _asked(self, settings: TrainSettings) -> TrainSettings:
        """With the user's own micro-batch where it makes up the effective batch, else all at once."""
        own = settings.bs * settings.accum == self.per_gpu
        return settings if own else with_batch(settings, self.per_gpu, self.per_gpu)

    def families(self) -> Iterator[Family]:
        """Those that keep the recipe in every combination, then one change of the recipe at a time."""
        keeping = [axis for axis in self.axes if axis.keeps_recipe and axis.name != "alloc_conf"]
        changing = [axis for axis in self.axes if not axis.keeps_recipe]
        base = product_of(self.asked, keeping, self.trials)
        yield from base
        yield from singles_of(self.asked, changing, self.trials)

    def offers(self) -> list[tuple[Family, Trial]]:
        """What every family has to offer; a changed recipe is worth its change where it is faster than any that is
        kept."""
        found: list[tuple[Family, Trial]] = []
        for family in self.families():
            if (blocks := self._blocks_of(family)) is None:
                continue
            kept = [trial for other, trial in found if other.keeps_recipe]
            grid = Grid(self.trials, family, self.sizes_of(family), self.per_gpu, blocks)
            if kept and not family.keeps_recipe:
                seen = beyond(grid, min(kept, key=lambda trial: trial.seconds).settings)
            else:
                seen = search(grid, self.confs)
            found += [(family, offer) for offer in seen.offers]
            self.counts = Found([], self.counts.considered + seen.considered, self.counts.fitting + seen.fitting)
        return found

    def sizes_of(self, family: Family) -> list[int]:
        """The micro-batches that may be tried."""
        return batches(family.settings, self.per_gpu) if self.may_split else [family.settings.bs]

    def _blocks_of(self, family: Family) -> int | None:
        """How many blocks can be checkpointed; None where the family has no figure at all."""
        if self.trials.maybe(family.settings) is None:
            return None
        if not self.num_blocks or self.trials.maybe(family.settings, grad_checkpointing=True) is None:
            return 0
        return self.num_blocks

    def recommendation(self, num_plans: int) -> Recommendation:
        """Ranked, with what each plan changes."""
        asked = self.trials(self.asked)  # raises what an estimate would
        offers = _ranked(self.offers())
        chosen = offers[:num_plans]
        fastest = min((offer.seconds for _, offer in offers), default=1.0)
        return Recommendation(
            request=self.asked.to_dict(),
            effective_batch=self.effective_batch,
            gpu=asked.settings.memory or self.trials.gpu.name if asked.settings.gpu is None else self.trials.gpu.name,
            considered=self.counts.considered,
            played=self.trials.num_played,
            fitting=self.counts.fitting,
            plans=tuple(self._plan(rank, *offer, fastest) for rank, offer in enumerate(chosen, start=1)),
            nearest=None if chosen else self._nearest(),
            ladder=(),
            lighter=(),
            notes=tuple(self._notes()),
        )

    def _plan(self, rank: int, family: Family, offer: Trial, fastest: float) -> Plan:
        return Plan(
            rank=rank,
            settings=offer.settings.to_dict(),
            effective_batch=self.effective_batch,
            peak=offer.peak,
            headroom_bytes=offer.headroom_bytes,
            relative_step_time=round(offer.seconds / fastest, 3),
            step_flops=offer.glance.cost.flops,
            keeps_recipe=family.keeps_recipe,
            changes=changes_of(self.trials, self.asked, offer.settings),
        )

    def _nearest(self) -> Nearest:
        """The smallest candidate: one image at a time, everything checkpointed, and what saves most on top."""
        least = self.asked
        if self.may_split:
            least = with_batch(least, batches(least, self.per_gpu)[0], self.per_gpu)
        if self.num_blocks and self.trials.maybe(least, grad_checkpointing=True):
            least = dataclasses.replace(least, grad_checkpointing=True)
        for axis in self.axes:
            tries = [
                self.trials.maybe(least, **{axis.settings[0]: value}) for value in axis.values(least, self.trials.gpu)
            ]
            best = min([self.trials(least), *filter(None, tries)], key=lambda trial: -trial.headroom_bytes)
            least = best.settings
        nearest = self.trials.whole(least)
        return Nearest(
            settings=least.to_dict(),
            peak=nearest.peak,
            missing_bytes=nearest.missing_bytes,
            gpu=_smallest_gpu(least, self.trials),
        )

    def _notes(self) -> Iterator[str]:
        yield ASSUMPTION + f"; rates of {self.trials.gpu.full_name}"
        if self.may_split and len(batches(self.asked, self.per_gpu)) < _FEW_DIVISORS < self.per_gpu:
            yield (
                f"{self.per_gpu} images per GPU have no divisors but 1 and {self.per_gpu}: other micro-batches would "
                f"change the effective batch; {self.per_gpu + 1} or {self.per_gpu - 1} can be divided"
            )


def _with_parallel(settings: TrainSettings) -> tuple[Any, TrainSettings]:
    """The plan of the model; with several GPUs the first strategy that is modelled, unless one was asked for."""
    if settings.gpus == 1 or settings.parallel is not None:
        return resolved(settings)
    refusal: NotModelled | None = None
    for parallel in CHOICES["parallel"][1:]:
        try:
            return resolved(dataclasses.replace(settings, parallel=parallel))  # type: ignore[arg-type]
        except NotModelled as reason:
            refusal = refusal or reason
    assert refusal is not None
    raise refusal


def _ranked(offers: list[tuple[Family, Trial]]) -> list[tuple[Family, Trial]]:
    """Plans that keep the recipe, then the fastest; a changed recipe has to be faster than every kept one."""
    kept = [offer for offer in offers if offer[0].keeps_recipe]
    best = min((trial.seconds for _, trial in kept), default=float("inf"))
    changed = [offer for offer in offers if not offer[0].keeps_recipe and offer[1].seconds < best]
    return sorted(kept, key=_place) + sorted(changed, key=_place)


def _place(offer: tuple[Family, Trial]) -> tuple[float, int, int]:
    family, trial = offer
    return trial.seconds, len(family.changed), -trial.headroom_bytes


def _smallest_gpu(settings: TrainSettings, trials: Trials) -> str | None:
    """The GPU with the least memory that holds these settings; None where no known one does."""
    known = sorted(load().values(), key=lambda row: (row.memory_bytes, row.tensor_tflops))
    needed = trials(settings).requested_bytes
    for row in known:
        if row.memory_bytes > needed and row.capability >= (7, 5):
            trial = trials.maybe(settings, gpu=row.name, memory=None)
            if trial is not None and trial.fits:
                return row.name
    return None
