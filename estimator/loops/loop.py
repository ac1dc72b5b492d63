"""What a training loop is, and what all of them share: parameter groups, the update, the names that they bind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ..engine import Tensor
from ..optimizers import Group
from ..settings import TrainSettings
from ..step import Step
from .ema import AveragedModel, MakeEma

__all__ = ["Loop", "average", "begin", "named", "scaled_update", "update"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``begin`` makes what the loop's names hold before the first step, ``play`` is one step.

    ``evaluate`` is an evaluation between two steps, of which ``evaluation`` says how it is done.
    ``no_decay`` tells the parameters of the group without weight decay; without it there is one group. The texts say
    what the loop is, what it does without clipping, and whose EMA ``make_ema`` is.
    """

    optim: str
    begin: Callable[[Step], None]
    play: Callable[[Step], None]
    evaluate: Callable[[Step], None]
    no_decay: Callable[[Step, str, Tensor], bool] | None = None
    weight_decay: bool = False
    no_decay_first: bool = False
    make_ema: MakeEma = AveragedModel
    clip_grad: float = 0.0
    label_smoothing: float = 0.0
    assumption: str
    evaluation: str
    unclipped: str = "no gradient clipping"
    ema: str

    def clips(self, settings: TrainSettings) -> bool:
        """Whether gradients are clipped."""
        return (self.clip_grad if settings.clip_grad is None else settings.clip_grad) > 0

    def smooths(self, settings: TrainSettings) -> bool:
        """Whether the loss smooths labels."""
        return (self.label_smoothing if settings.label_smoothing is None else settings.label_smoothing) > 0


def begin(step: Step, loop: Loop) -> None:
    """What is there before the first step: the optimizer's own, what the engine that wraps the model makes, the EMA
    copy, then what the loop's names hold.

    A loop of one group hands all parameters over, the others those that require grad.
    """
    step.construct_optimizer(groups_of(step, loop, step.scope.parameters if loop.no_decay is None else step.trained))
    step.strategy.wrap(groups_of(step, loop, step.trained))
    step.run.start_phase("loop", kind="temporaries")
    if step.settings.ema:
        step.names["ema"] = loop.make_ema(step)
    loop.begin(step)


def groups_of(step: Step, loop: Loop, trained: Mapping[str, Tensor]) -> list[Group]:
    """The parameter groups that the loop makes of these parameters."""
    if loop.no_decay is None:
        return [Group(parameters=tuple(trained.values()), decayed=loop.weight_decay)]
    plain: list[Tensor] = []
    bare: list[Tensor] = []
    for name, p in trained.items():
        if (exempt := step.no_decay.get(name)) is None:
            exempt = step.no_decay[name] = loop.no_decay(step, name, p)
        (bare if exempt else plain).append(p)
    groups = [
        Group(parameters=tuple(plain), decayed=loop.weight_decay),
        Group(parameters=tuple(bare), decayed=False),
    ]
    return groups[::-1] if loop.no_decay_first else groups


def update(step: Step, loop: Loop, *, scaled: bool) -> None:
    """``optimizer.step()`` and, where it comes after the step, ``zero_grad()``."""
    step.optimizer_step(groups_of(step, loop, step.updated), scaled=scaled)
    if step.settings.zero_grad in {None, "after-step"}:
        step.zero_grad()


def average(step: Step) -> None:
    """The update of the EMA copy, where there is one: the last that an optimizer step does."""
    if step.settings.ema:
        ema: Any = step.names["ema"]
        ema.update()


def scaled_update(step: Step, loop: Loop) -> None:
    """``scaler.step(optimizer)``: found_inf lives until ``scaler.update()``.

    Clipping unscales the gradients first, so that the optimizer is not handed the scale; nobody keeps the norm.
    """
    step.start("optimizer_step")
    clips = loop.clips(step.settings)
    takes_scale = step.optimizer.takes_scaler and not step.strategy.updates_on_host
    scaled = takes_scale and bool(step.scaler) and not clips
    found_inf = step.check_inf() if scaled else step.unscale()
    if clips:
        norm = step.clip_grad_norm()
        del norm
    update(step, loop, scaled=scaled)
    del found_inf
    average(step)


def named(step: Step, name: str) -> Tensor:
    """The tensor that a name of the loop holds."""
    value = step.names[name]
    assert isinstance(value, Tensor)
    return value
