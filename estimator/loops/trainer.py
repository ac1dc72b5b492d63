"""transformers' Trainer on accelerate."""

from __future__ import annotations

import re
from functools import lru_cache

from .. import ops
from ..engine import Tensor
from ..engine.autocast import to
from ..step import LossOf, Step
from ..units import DType
from . import evaluation
from .loop import Loop, average, named, update

__all__ = ["TRAINER"]

#: transformers 5.24, trainer.py
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def _begin(step: Step) -> None:
    step.names["tr_loss"] = step.scalars(1)[0]


def _play(step: Step) -> None:
    step.start("forward")
    batches = [step.batch(size) for size in step.sizes]
    step.names["num_items"] = step.num_items(step.sizes)
    step.names["batches"] = batches
    if step.settings.zero_grad == "before-forward":
        step.zero_grad()
    for place in step.micro_steps:
        first, (x, y) = place == 0, batches[place]
        step.start("forward")
        step.strategy.before_forward(first=first)
        step.names["loss"] = _loss(step, step.strategy.prepared(x), y)
        if first and step.settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(named(step, "loss"))
        step.names["loss"] = named(step, "loss").detach()  # what training_step returns: the graph is gone
    step.start("optimizer_step")
    if step.strategy.updates:
        step.strategy.update()
        average(step)
        return
    found_inf = step.unscale()
    step.names["grad_norm"] = step.clip_grad_norm()  # with max_grad_norm 0 it clips to infinity, for the log
    update(step, TRAINER, scaled=False)
    del found_inf
    average(step)


def _loss(step: Step, x: Tensor, y: Tensor | None) -> Tensor:
    """``compute_loss``: the model returns loss and logits, accelerate converts both to fp32, only the loss survives."""

    if TRAINER.smooths(step.settings) and y is not None:
        return _smoothed_loss(step, x, y)

    def loss_of(logits: Tensor) -> Tensor:
        assert y is not None
        loss = ops.cross_entropy(ops.view(logits, -1, logits.shape[-1]), y)
        divides = step.model.takes_loss_kwargs and step.model.uses_num_items
        return ops.div(loss, named(step, "num_items")) if divides else loss

    with step.autocast():
        loss, logits, *others = _model_output(step, x, loss_of)
    converted = to(logits, DType.float32) if step.autocast_dtype else logits
    del logits
    loss, converted, *others = step.strategy.outputs(loss, converted, *others)
    del converted, others
    return _averaged(step, loss)


def _averaged(step: Step, loss: Tensor) -> Tensor:
    """What ``compute_loss`` and ``training_step`` do to a loss: by the number of micro-steps, or, where the model has
    divided by the labels of all GPUs, by that of GPUs in place (``average_tokens_across_devices``)."""
    if not step.model.takes_loss_kwargs:
        return ops.mul(loss, 1.0)
    return loss if step.settings.gpus == 1 or step.model.own_loss else ops.div_(loss)


def _evaluate(step: Step) -> None:
    step.start("evaluation")
    evaluation.trainer(step, _predict)


def _predict(step: Step, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """``prediction_step``: the mean of one loss is a copy; a model with its own is asked for no more."""
    takes = step.model.takes_loss_kwargs and y is not None
    num_items = step.num_items(x.shape[:1]) if takes else None
    if TRAINER.smooths(step.settings) and y is not None:
        return _smoothed_prediction(step, x, y, num_items)

    def loss_of(logits: Tensor) -> Tensor:
        assert y is not None
        loss = ops.cross_entropy(ops.view(logits, -1, logits.shape[-1]), y)
        return ops.div(loss, num_items) if num_items and step.model.uses_num_items else loss

    with step.autocast():
        loss, logits, *others = _model_output(step, x, loss_of)
    converted = to(logits, DType.float32) if step.autocast_dtype else logits
    del logits
    loss = ops.mean(loss)
    del others
    return loss, None if step.model.own_loss else converted


def _smoothed_prediction(step: Step, x: Tensor, labels: Tensor, num_items: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = _smoothed_logits(step, x)
    loss = ops.mean(ops.label_smoother(logits, labels, num_items))
    return loss, logits


def _smoothed_loss(step: Step, x: Tensor, labels: Tensor) -> Tensor:
    """With ``label_smoothing_factor`` the model gets no labels, and ``LabelSmoother`` works on its fp32 logits."""
    logits = _smoothed_logits(step, x)
    (logits,) = step.strategy.outputs(logits)
    num_items = named(step, "num_items") if step.model.takes_loss_kwargs else None
    loss = ops.label_smoother(logits, labels, num_items)
    return _averaged(step, loss)


def _smoothed_logits(step: Step, x: Tensor) -> Tensor:
    with step.autocast():
        logits = step.model(x)
    return to(logits, DType.float32) if step.autocast_dtype else logits


def _model_output(step: Step, x: Tensor, loss_of: LossOf) -> tuple[Tensor, ...]:
    """The fields of the model's output that are tensors."""
    if step.model.own_loss:
        output: tuple[Tensor, ...] = step.model(x)
        return output
    return step.model(x, loss_of) if step.model.takes_loss_kwargs else _timm_wrapper(step, x, loss_of)


def _timm_wrapper(step: Step, x: Tensor, loss_of: LossOf) -> tuple[Tensor, Tensor]:
    """``TimmWrapperForImageClassification.forward``: takes no loss arguments (``accepts_loss_kwargs = False``)."""
    logits = step.model(x)
    return loss_of(logits), logits


def _no_decay(step: Step, name: str, parameter: Tensor) -> bool:
    """``Trainer.get_decay_parameter_names``: no decay for ``nn.LayerNorm`` by type, nor for what these names match."""
    return name in step.scope.layer_norms or _is_exempt(name)


@lru_cache(maxsize=4096)
def _is_exempt(name: str) -> bool:
    return _NO_DECAY.search(name.lower()) is not None


TRAINER = Loop(
    optim="adamw_torch_fused",
    begin=_begin,
    play=_play,
    evaluate=_evaluate,
    no_decay=_no_decay,
    clip_grad=1.0,
    assumption="transformers 5.24 Trainer with accelerate 1.15",
    unclipped="gradients not clipped: Trainer takes their norm all the same, for its log",
    evaluation="of which losses, logits and labels stay on the GPU for compute_metrics (a model's own loss: losses)",
    ema="torch.optim.swa_utils.AveragedModel in a callback, updated in on_step_end",
)
