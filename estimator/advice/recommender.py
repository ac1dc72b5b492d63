"""From a request to ranked plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ..collector import paused
from ..cost import ASSUMPTION, HOST_ASSUMPTION, LINK_ASSUMPTION
from ..errors import InvalidRequest, NotModelled
from ..gpus import load
from ..parallel import casts_model
from ..parallel.buckets import bucket_options
from ..parallel.zero_config import STAGES
from ..pipeline import estimate_settings, resolved
from ..settings import CHOICES, TrainSettings
from ..units import format_bytes
from .axes import Axis, allowed_axes
from .batches import batches, checked_accum, checked_share, with_batch
from .changes import changes_of
from .hunt import Hunt, Offer
from .ladder import ladder
from .lighter import lighter_models
from .plan import Nearest, Plan, Recommendation
from .trials import Trials

__all__ = ["recommend_settings"]

DEFAULT_PLANS = 5
_FEW_DIVISORS = 3
#: The part of the memory from which on images are worth a remark.
_MANY_INPUTS = 0.1


def recommend_settings(
    settings: TrainSettings,
    *,
    effective_batch: int | None = None,
    allow: Sequence[str] | None = None,
    forbid: Sequence[str] = (),
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
        raise InvalidRequest("what must it fit into? add --gpu rtx4090 or --memory 24GiB")
    if isinstance(num_plans, bool) or not isinstance(num_plans, int) or num_plans < 1:
        raise InvalidRequest(f"num_plans {num_plans!r} is not valid; it must be a whole number, at least 1")
    axes = allowed_axes(allow, forbid)
    whole = settings.bs * settings.accum * settings.gpus
    total = whole if effective_batch is None else effective_batch
    with paused():
        search_ = _Search(settings, total, axes)
        search_.hunt.run()
        if settings.eval_bs is None and not any(family.keeps_recipe for family, _ in search_.hunt.offers):
            search_ = search_.with_smaller_evaluation() or search_
        found = search_.recommendation(num_plans)
        rungs = ladder(search_.trials, search_.asked, search_.per_gpu) if with_ladder else ()
        wants_lighter = not found.plans if with_lighter is None else with_lighter
        lighter = lighter_models(search_.trials, search_.asked) if wants_lighter else ()
    return dataclasses.replace(found, ladder=rungs, lighter=lighter)


class _Search:
    """One request: where it starts, and what was found."""

    def __init__(self, settings: TrainSettings, effective_batch: int, axes: Sequence[Axis]) -> None:
        self.effective_batch = effective_batch
        self.per_gpu = checked_share(effective_batch, settings.gpus)
        if settings.parallel is not None:  # the user's own engine stays
            axes = [axis for axis in axes if axis.name != "parallel"]
        plan, settings = _with_parallel(settings)
        self.may_split = any(axis.name == "bs" for axis in axes)
        self.asked = self._asked(settings)
        self.trials = Trials(self.asked)
        self.asked = self._with_buckets(self.asked, plan)
        self.hunt = Hunt(self.trials, self.asked, plan, self.per_gpu, axes)
        self.axes, self.origin = axes, self.asked

    def with_smaller_evaluation(self) -> _Search | None:
        """The search again with an evaluation in smaller batches, where it is that which does not fit."""
        own, hunt = self.asked.eval_bs or 1, self.hunt
        if own == 1 or all(axis.name != "eval_bs" for axis in self.axes):
            return None
        for family in (lambda: hunt.improved_start, hunt.nearest, *([] if hunt.offers else [hunt.least])):
            least = hunt.smallest(family())
            if self._evaluates(least, 1):
                break
        else:
            return None
        sizes = (own // 2**times for times in range(1, own.bit_length()))
        eval_bs = next(size for size in sizes if self._evaluates(least, size))
        again = _Search(dataclasses.replace(self.asked, eval_bs=eval_bs), self.effective_batch, self.axes)
        again.origin = self.asked
        again.hunt.run()
        again.hunt.join(hunt)
        return again

    def _evaluates(self, settings: TrainSettings, eval_bs: int) -> bool:
        return self.trials(dataclasses.replace(settings, eval_bs=eval_bs)).fits

    def _asked(self, settings: TrainSettings) -> TrainSettings:
        """With the user's own micro-batch where it makes up the effective batch or may not change, else all at once."""
        if settings.bs * settings.accum == self.per_gpu:
            return settings
        if not self.may_split:
            accum = checked_accum(self.effective_batch, settings.gpus, settings.bs)
            return dataclasses.replace(settings, accum=accum)
        return with_batch(settings, self.per_gpu, self.per_gpu)

    def _with_buckets(self, settings: TrainSettings, plan: Any) -> TrainSettings:
        """An engine that was named without a DeepSpeed file has the buckets that it would have if it was found."""
        if settings.parallel not in STAGES or settings.deepspeed is not None or settings.zero_options:
            return settings
        plain = dataclasses.replace(settings, parallel="zero1", offload="none")  # stage 3 may refuse without options
        options = bucket_options(settings.parallel, settings, plan, self.trials(plain).largest_parameter)
        return dataclasses.replace(settings, zero_options=options)

    def recommendation(self, num_plans: int) -> Recommendation:
        """Ranked, with what each plan changes."""
        chosen = _ranked(self.hunt.offers, self.asked, num_plans)
        best = min((offer.seconds for _, offer in chosen), default=1.0)
        asked, hunt = self.asked, self.hunt
        return Recommendation(
            request=self.origin.to_dict(),
            effective_batch=self.effective_batch,
            gpu=asked.memory or self.trials.gpu.name if asked.gpu is None else self.trials.gpu.name,
            considered=hunt.considered,
            played=self.trials.num_played,
            fitting=hunt.fitting,
            plans=(plans := tuple(self._plan(rank, *offer, best) for rank, offer in enumerate(chosen, start=1))),
            nearest=(nearest := None if chosen else self._nearest()),
            ladder=(),
            lighter=(),
            notes=(*self._notes(), *_host_note(plans), *self._inputs_note(nearest or plans[0])),
        )

    def _plan(self, rank: int, family: Any, offer: Any, fastest: float) -> Plan:
        return Plan(
            rank=rank,
            settings=offer.settings.to_dict(),
            effective_batch=self.effective_batch,
            peak=offer.peak,
            headroom_bytes=offer.headroom_bytes,
            relative_step_time=round(offer.seconds / fastest, 3),
            step_flops=offer.step_flops,
            keeps_recipe=family.keeps_recipe,
            changes=changes_of(self.trials, self.origin, offer.settings),
            casts_model=_is_cast(offer.settings, self.asked),
        )

    def _nearest(self) -> Nearest:
        """Of the smallest candidates (everything checkpointed) the one that misses the least."""
        families = (self.hunt.least(), self.hunt.nearest())  # what requests less may reserve more
        least = min(map(self.hunt.smallest, families), key=lambda tried: self.trials(tried).missing_bytes)
        if any(axis.name == "eval_bs" for axis in self.axes):
            tries = (least, dataclasses.replace(least, eval_bs=1))
            least = min(tries, key=lambda tried: self.trials(tried).missing_bytes)
        nearest = self.trials(least)
        return Nearest(
            settings=least.to_dict(),
            peak=nearest.peak,
            missing_bytes=nearest.missing_bytes,
            gpu=_smallest_gpu(least, self.trials),
        )

    def _notes(self) -> Iterator[str]:
        yield ASSUMPTION + f"; rates of {self.trials.gpu.full_name}"
        if self.asked.gpus > 1:
            yield LINK_ASSUMPTION
        if self.asked.precision == "fp16" and self.trials.gpu.capability >= (8, 0):
            yield "fp16 ends at 65,504 and scales the loss; --precision bf16 does neither, in the same memory and time"
        if self.may_split and len(batches(self.asked, self.per_gpu)) < _FEW_DIVISORS < self.per_gpu:
            near = " or ".join(str((self.per_gpu + more) * self.asked.gpus) for more in (-1, 1))
            yield (
                f"{self.per_gpu} images per GPU have no divisors but 1 and {self.per_gpu}: other micro-batches would "
                f"change the effective batch; --effective-batch {near} can be divided: scale the learning rate by the "
                "same factor (SGD) or by its root (Adam)"
            )

    def _inputs_note(self, shown: Plan | Nearest) -> Iterator[str]:
        """Where the images of all micro-steps take a good part of the memory."""
        settings = TrainSettings.from_dict(shown.settings)
        if settings.loop != "trainer" or settings.accum == 1:
            return
        height, width = resolved(settings)[0].image_size
        images = self.per_gpu * 3 * height * width * (2 if settings.precision.startswith("pure") else 4)
        if images > _MANY_INPUTS * self.trials(self.asked).usable_bytes:
            yield (
                f"Trainer has the images of all {settings.accum} micro-steps of an update on the GPU, whatever the "
                f"micro-batch: {format_bytes(images)}; --loop plain has those of one"
            )


def _host_note(plans: Sequence[Plan]) -> Iterator[str]:
    """What the first plan that offloads takes on the host."""
    for plan in plans:
        if plan.settings["offload"] != "none":
            host = estimate_settings(TrainSettings.from_dict(plan.settings)).host or {}
            yield HOST_ASSUMPTION
            yield f"plan {plan.rank} keeps {format_bytes(host.get('offload_bytes') or 0)} of host memory for each GPU"
            return


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


def _ranked(offers: list[Offer], asked: TrainSettings, num_plans: int) -> list[Offer]:
    """Plans that keep the recipe, those after them whose engine casts the model, which autocast keeps in fp32 where
    torch holds that to matter, then those that change it; of each the fastest first, and of each the first is shown.

    A changed recipe has to be faster than every kept one.
    """
    kept = [offer for offer in offers if offer[0].keeps_recipe]
    best = min((trial.seconds for _, trial in kept), default=float("inf"))
    changed = [offer for offer in offers if not offer[0].keeps_recipe and offer[1].seconds < best]
    cast = [offer for offer in kept if _is_cast(offer[1].settings, asked)]
    groups = [sorted(group, key=_place) for group in ([o for o in kept if o not in cast], cast, changed)]
    firsts = [group[0] for group in groups if group][:num_plans]
    others = [offer for group in groups for offer in group[1:]][: num_plans - len(firsts)]
    return [offer for group in groups for offer in group if offer in firsts or offer in others]


def _is_cast(settings: TrainSettings, asked: TrainSettings) -> bool:
    """Whether an engine trains a 16-bit model where that was not asked for."""
    return casts_model(settings) and not casts_model(asked)


def _place(offer: Offer) -> tuple[float, int, int]:
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
