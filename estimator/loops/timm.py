"""timm's train.py."""

from __future__ import annotations

from .. import ops
from ..engine import Tensor
from ..step import Step
from ..units import DType
from .ema import ModelEmaV3
from .loop import Loop, first_of, named, scaled_update

__all__ = ["TIMM"]


def _begin(step: Step) -> None:
    """The loader's mean and std, and the first batch, which is fetched before the second."""
    names, run = step.names, step.run
    for name in ("mean", "std"):
        names[name] = Tensor.empty(run, (1, 3, 1, 1), DType.float32, kind="inputs")
    names["next_input"], names["next_target"] = _batch(step)


def _batch(step: Step) -> tuple[Tensor, Tensor]:
    """``PrefetchLoader``: bytes to the device, and a float batch from them, on a stream of its own."""
    with step.run.side_stream():
        pixels = step.images(DType.uint8)
        target = step.labels()
        batch = step.images()
        del pixels
    return batch, target


def _fetch(step: Step) -> None:
    """The next batch first, and only then the current one moves on."""
    names = step.names
    batch, target = _batch(step)
    names["input"], names["target"] = names["next_input"], names["next_target"]
    names["next_input"], names["next_target"] = batch, target


def _play(step: Step) -> None:
    for first in first_of(step.settings.accum):
        step.start("forward")
        _fetch(step)
        if first and step.settings.zero_grad == "before-forward":
            step.zero_grad()
        step.strategy.before_forward(first=first)
        with step.autocast():
            if step.model.own_loss:
                output, loss = None, step.model(step.names["input"])[0]
            else:
                output = step.model(step.names["input"])
                loss = _criterion(step, output, named(step, "target"))
        if step.settings.accum > 1:
            loss = ops.div_(loss)
        step.names["output"], step.names["loss"] = output, loss  # an earlier result lives until this one is whole
        del output, loss
        if first and step.settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(named(step, "loss"))
    scaled_update(step, TIMM)


def _criterion(step: Step, output: Tensor, target: Tensor) -> Tensor:
    """``create_classification_loss``: with mixup the loader's dense targets are smoothed already."""
    if step.settings.mixup:
        return ops.soft_target_cross_entropy(output, target)
    if TIMM.smooths(step.settings):
        return ops.label_smoothing_cross_entropy(output, target)
    return ops.cross_entropy(output, target)


def _no_decay(step: Step, name: str, parameter: Tensor) -> bool:
    """``param_groups_weight_decay``: vectors, biases, and what the model names."""
    return len(parameter.shape) <= 1 or name.endswith(".bias") or name in step.model.no_weight_decay


TIMM = Loop(
    optim="sgd-nesterov",
    begin=_begin,
    play=_play,
    no_decay=_no_decay,
    weight_decay=True,
    no_decay_first=True,
    make_ema=ModelEmaV3,
    label_smoothing=0.1,
    assumption="timm 1.0.31 train.py --amp: two batches on the GPU",
    ema="timm.utils.ModelEmaV3, updated after step() and zero_grad()",
)
