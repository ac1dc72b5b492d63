"""Models that fit where the one that was asked for does not: smaller ones of its family, a Swin against a ViT at this
resolution, and the model itself with parts left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .. import catalog
from ..engine import Run, Scope
from ..families import Plan as ModelPlan
from ..kernels import Kernels
from ..pipeline import resolved
from ..searching import last_that
from ..settings import TrainSettings
from ..units import DType
from .plan import LighterModel
from .trials import Trial, Trials

__all__ = ["lighter_models"]

_OTHER_TASKS = frozenset({"hf_vit_mae"})  # pre-training on pixels
_PER_GROUP = 3
_TRIES = 8
#: What people weigh against each other: attention in windows and over everything.
_RIVALS = ("swin", "vit")
_BLOCKS = "{} of {} blocks: accuracy falls at once and comes back by training; the script of --write cuts the weights"
_HEADS = "wider heads: scores take less, weights keep their shapes and attention is learnt anew"
_UNITS = "half of each MLP's units, those with the largest weights: trained on to recover; --write cuts the weights"


def lighter_models(trials: Trials, asked: TrainSettings) -> tuple[LighterModel, ...]:
    """The largest that fit with the settings as they are, at the same resolution: up to three of the same family and of
    each rival, and what is left when blocks, heads or MLP units of the model are pruned.

    Of equal numbers of parameters one stands for all.
    """
    plan = resolved(asked)[0]
    at_size = dataclasses.replace(asked, res=plan.image_size)
    whole = dataclasses.replace(at_size, **dict.fromkeys(_ARCHITECTURE))  # type: ignore[arg-type]
    known = [row for row in map(catalog.resolve, catalog.names()) if row.family not in _OTHER_TASKS]
    most = _num_parameters(plan)
    smaller = {row.num_parameters: row for row in reversed(known) if 0 < (row.num_parameters or 0) < most}
    ranked = [smaller[count] for count in sorted(smaller, key=lambda count: -(count or 0))]
    groups = [[row.name for row in ranked if row.family == plan.model.family]]
    for rival in _RIVALS:
        if _kind(plan.model.family) != rival:
            groups.append([row.name for row in ranked if _kind(row.family) == rival])
    found = (model for group in groups for model in _fitting(trials, whole, group))
    return (*found, *_pruned(trials, at_size, plan))


#: Sizes of the model that was asked for, which another one has not.
_ARCHITECTURE = ("patch", "window", "dim", "depth", "heads", "mlp_ratio")


def _kind(family: str) -> str:
    """``timm_swin`` and ``hf_swinv2`` are Swins, ``hf_vit`` and ``torchvision_vit`` are ViTs."""
    name = family.partition("_")[2]
    return "swin" if name.startswith("swin") else name


def _fitting(trials: Trials, settings: TrainSettings, names: list[str]) -> Iterator[LighterModel]:
    """The largest first; what is not much smaller than one that does not fit is not tried."""
    found = 0
    per_image = catalog.bytes_per_image()
    limit: float = float("inf")
    tries = 0
    for name in names:
        if found == _PER_GROUP or tries == _TRIES:
            return
        if per_image.get(name, 0) >= limit:
            continue
        tries += 1
        trial = trials.maybe(settings, model=name)
        if trial is None:
            continue
        if not trial.fits:
            limit = min(limit, 0.8 * per_image.get(name, 0)) if name in per_image else limit
            continue
        found += 1
        yield _model(name, {}, "", trial)


def _pruned(trials: Trials, settings: TrainSettings, plan: ModelPlan) -> Iterator[LighterModel]:
    """The most blocks that fit, and half of the heads or of the MLP's width where that fits; a model in stages has no
    single number of blocks and heads."""
    blocks, sizes = len(plan.blocks), plan.resolved
    if "depth" in sizes and trials.maybe(settings, depth=1) is not None:
        most = last_that(lambda depth: _fits(trials, settings, depth=depth), blocks // 2, 1, max(blocks - 1, 1))
        if most is not None and most < blocks:
            yield from _cut(trials, settings, {"depth": most}, _BLOCKS.format(most, blocks))
    if sizes.get("heads", 1) % 2 == 0:
        yield from _cut(trials, settings, {"heads": sizes["heads"] // 2}, _HEADS)
    if "mlp_ratio" in sizes:
        yield from _cut(trials, settings, {"mlp_ratio": sizes["mlp_ratio"] / 2}, _UNITS)


def _fits(trials: Trials, settings: TrainSettings, **changes: Any) -> bool:
    trial = trials.maybe(settings, **changes)
    return trial is not None and trial.fits


def _cut(trials: Trials, settings: TrainSettings, changes: dict[str, Any], loses: str) -> Iterator[LighterModel]:
    trial = trials.maybe(settings, **changes)
    if trial is not None and trial.fits:
        yield _model(settings.model, changes, loses, trial)


def _model(name: str, changes: dict[str, Any], loses: str, trial: Trial) -> LighterModel:
    return LighterModel(
        name=name,
        changes=changes,
        loses=loses,
        num_parameters=_num_parameters(resolved(trial.settings)[0]),
        step_flops=trial.step_flops,
        peak_bytes=trial.requested_bytes,
        headroom_bytes=trial.headroom_bytes,
    )


def _num_parameters(plan: ModelPlan) -> int:
    """As it is built at this size."""
    scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
    plan.build(scope)
    return sum(parameter.numel for parameter in scope.parameters.values())
