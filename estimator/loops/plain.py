"""The contract's hand-written loop: a plain PyTorch one."""

from __future__ import annotations

from .. import ops
from ..engine import Tensor
from ..step import Step
from . import evaluation
from .loop import Loop, named, scaled_update

__all__ = ["PLAIN"]


def _begin(step: Step) -> None:
    """Nothing is bound yet."""


def _play(step: Step) -> None:
    settings = step.settings
    for place in step.micro_steps:
        first = place == 0
        step.start("forward")
        batch = dict(zip(("x", "y"), step.batch(step.sizes[place])))
        step.names.update(batch)
        del batch
        if first and settings.zero_grad == "before-forward":
            step.zero_grad()
        step.strategy.before_forward(first=first)
        with step.autocast():
            if step.model.own_loss:
                step.names["loss"] = step.model(step.names["x"])[0]
            else:
                step.names["out"] = step.model(step.names["x"])
                step.names["loss"] = _cross_entropy(step, named(step, "out"), named(step, "y"))
            if settings.accum > 1:
                step.names["loss"] = ops.mul(named(step, "loss"), 1.0)
        if first and settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(named(step, "loss"))
    scaled_update(step, PLAIN)


def _cross_entropy(step: Step, out: Tensor, y: Tensor) -> Tensor:
    """``F.cross_entropy(out, y, label_smoothing=...)``."""
    smoothed = PLAIN.smooths(step.settings)
    if step.settings.mixup and step.run.training:
        return ops.dense_cross_entropy(out, y, smoothed=smoothed)
    return ops.smoothed_cross_entropy(out, y) if smoothed else ops.cross_entropy(out, y)


def _evaluate(step: Step) -> None:
    evaluation.plain(step, _cross_entropy)


PLAIN = Loop(
    optim="adamw_torch",
    begin=_begin,
    play=_play,
    evaluate=_evaluate,
    assumption="a plain PyTorch loop: x, y, out and loss stay bound until they are bound again",
    evaluation="in a function with names of its own under no_grad; the training's names stay bound",
    ema="torch.optim.swa_utils.AveragedModel, updated after step() and zero_grad()",
)
