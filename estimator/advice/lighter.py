"""Models of the catalogue that fit where the one that was asked for does not: of its family first, then others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .. import catalog
from ..pipeline import resolved
from ..settings import TrainSettings
from .plan import LighterModel
from .trials import Trials

__all__ = ["lighter_models"]

_OTHER_TASKS = frozenset({"hf_vit_mae"})  # pre-training on pixels
_PER_GROUP = 3
_TRIES = 8


def lighter_models(trials: Trials, asked: TrainSettings) -> tuple[LighterModel, ...]:
    """The largest that fit with the settings as they are, at the same resolution: up to three of the same family and
    three of others. Of equal numbers of parameters one stands for all."""
    plan = resolved(asked)[0]
    at_size = dataclasses.replace(asked, res=plan.image_size)
    known = [row for row in map(catalog.resolve, catalog.names()) if row.family not in _OTHER_TASKS]
    most = plan.model.num_parameters or max(row.num_parameters or 0 for row in known)
    smaller = {row.num_parameters: row for row in reversed(known) if 0 < (row.num_parameters or 0) < most}
    ranked = [smaller[count] for count in sorted(smaller, key=lambda count: -(count or 0))]
    own = [row.name for row in ranked if row.family == plan.model.family]
    others = [row.name for row in ranked if row.family.split("_")[-1] != plan.model.family.split("_")[-1]]
    return (*_fitting(trials, at_size, own), *_fitting(trials, at_size, others))


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
        yield LighterModel(
            name=name,
            num_parameters=catalog.resolve(name).num_parameters or 0,
            step_flops=trial.step_flops,
            peak_bytes=trial.requested_bytes,
            headroom_bytes=trial.headroom_bytes,
        )
