"""timm's train.py."""

from __future__ import annotations

from .. import ops
from ..engine import Tensor
from ..step import Step
from ..units import DType
from . import evaluation
from .ema import ModelEmaV3
from .loop import Loop, named, scaled_update

__all__ = ["TIMM"]


def _begin(step: Step) -> None:
    """The loader's mean and std, and the first batch, which is fetched before the second."""
    names, run = step.names, step.run
    for name in ("mean", "std"):
        names[name] = Tensor.empty(run, (1, 3, 1, 1), DType.float32, kind="inputs")
    if run.kernels.on_cpu:
        names["host_images"] = step.images(step.sizes[0], DType.uint8)  # the loader's own, in the same memory
    names["next_input"], names["next_target"] = evaluation.prefetched(step, step.sizes[0])


def _fetch(step: Step) -> None:
    """The next batch first, and only then the current one moves on."""
    names = step.names
    batch, target = evaluation.prefetched(step, step.sizes[0])
    names["input"], names["target"] = names["next_input"], names["next_target"]
    names["next_input"], names["next_target"] = batch, target


def _play(step: Step) -> None:
    for place in step.micro_steps:
        first = place == 0
        step.start("forward")
        _fetch(step)
        if first and step.settings.zero_grad == "before-forward":
            step.zero_grad()
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


def _evaluate(step: Step) -> None:
    """``train_one_epoch`` has returned, and its names are gone; behind ``validate`` the next epoch's loader begins."""
    step.start("evaluation")
    for name in ("input", "target", "next_input", "next_target", "output", "loss"):
        step.names.pop(name, None)
    evaluation.timm(step)
    step.start("loop")
    step.names["next_input"], step.names["next_target"] = evaluation.prefetched(step, step.settings.bs)


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
    evaluate=_evaluate,
    no_decay=_no_decay,
    weight_decay=True,
    no_decay_first=True,
    make_ema=ModelEmaV3,
    label_smoothing=0.1,
    assumption="timm 1.0.31 train.py --amp: two batches on the GPU",
    evaluation="by train.py's validate: a loader of its own, inference_mode, nothing kept",
    ema="timm.utils.ModelEmaV3, updated after step() and zero_grad()",
)
