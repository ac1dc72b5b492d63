"""What a plan changes, one setting after the other in the expert's order, each with what it saves and costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..settings import TrainSettings
from .axes import AXES, Axis
from .plan import Change
from .trials import Trial, Trials

__all__ = ["changes_of"]


def changes_of(trials: Trials, start: TrainSettings, end: TrainSettings) -> tuple[Change, ...]:
    """The way from ``start`` to ``end``."""
    return tuple(_changes(trials, start, end))


def _changes(trials: Trials, start: TrainSettings, end: TrainSettings) -> Iterator[Change]:
    """Where a step on the way has no figure, it is taken together with the next."""
    before = start
    waiting: dict[str, Any] = {}
    for axis in AXES:
        fields = {name: getattr(end, name) for name in axis.settings if getattr(end, name) != getattr(before, name)}
        if not fields or not _decides(axis, getattr(end, axis.settings[0])):
            continue
        waiting |= fields
        after = dataclasses.replace(before, **waiting)
        if trials.maybe(after) is None:
            continue
        yield _change(trials, axis, before, after, waiting)
        before, waiting = after, {}


def _decides(axis: Axis, value: object) -> bool:
    """Of two rows for one setting, the one that knows the value."""
    return None in axis.loses or value in axis.loses


def _change(
    trials: Trials, axis: Axis, before: TrainSettings, after: TrainSettings, changed: Mapping[str, Any]
) -> Change:
    old, new = trials(before), trials(after)
    name = axis.settings[0]
    relative = new.seconds / old.seconds
    return Change(
        setting=name,
        from_=getattr(before, name),
        to=getattr(after, name),
        settings=changed,
        saved_bytes=_saved(axis, old, new),
        relative_time=round(relative, 3),
        cost=_in_words(relative),
        loses=_loss(axis, new.has_batch_statistics, after),
        keeps_recipe=axis.keeps_recipe,
    )


def _saved(axis: Axis, old: Trial, new: Trial) -> int:
    """Of the peak that is asked of the allocator; what changes the allocator saves what that reserves where it is
    most: the verdict's phase, which need not be the steady step."""
    if axis.name not in {"alloc_conf", "eval_bs"}:
        return old.requested_bytes - new.requested_bytes
    return old.missing_bytes - new.missing_bytes


def _in_words(relative: float) -> str:
    percent = round(100 * (relative - 1))
    if not percent:
        return "no time"
    return f"{abs(percent)} % {'more' if percent > 0 else 'less'} time per step"


def _loss(axis: Axis, has_batch_statistics: bool, after: TrainSettings) -> str:
    if axis.name == "bs" and has_batch_statistics:
        return f"batch normalisation: its statistics are those of {after.bs} images, not of the whole batch"
    return axis.loss_of(after)
