"""Training loops: what each holds in its variables, and when gradients go.

A loop is one function that plays one optimizer step, and one row of ``LOOPS``. Names that a loop's Python variables
hold live in ``Step.names``, so that an old value dies when its name is bound again, after the new one exists.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from . import ops
from .engine import Tensor
from .engine.autocast import to
from .optimizers import Group
from .settings import TrainSettings
from .step import LossOf, Step
from .units import DType

__all__ = ["LOOPS", "Loop", "with_defaults"]

#: transformers 5.24, trainer.py
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``carry`` makes what an earlier step left in the loop's names, ``play`` is one step.

    ``no_decay`` tells the parameters of the group without weight decay; without it there is one group.
    """

    optim: str
    carry: Callable[[Step], None]
    play: Callable[[Step], None]
    no_decay: Callable[[Step, str, Tensor], bool] | None = None
    weight_decay: bool = False
    assumption: str


def _groups(step: Step, loop: Loop) -> list[Group]:
    trained = step.updated
    if loop.no_decay is None:
        return [Group(parameters=tuple(trained.values()), decayed=loop.weight_decay)]
    plain = tuple(p for name, p in trained.items() if not loop.no_decay(step, name, p))
    bare = tuple(p for name, p in trained.items() if loop.no_decay(step, name, p))
    return [Group(parameters=plain, decayed=loop.weight_decay), Group(parameters=bare, decayed=False)]


def _update(step: Step, loop: Loop) -> None:
    step.optimizer_step(_groups(step, loop))
    if step.settings.zero_grad in {None, "after-step"}:
        step.zero_grad()


def _scaled_update(step: Step, loop: Loop) -> None:
    """``scaler.step(optimizer)`` without clipping: found_inf lives until ``scaler.update()``."""
    step.start("optimizer_step")
    found_inf = step.unscale()
    _update(step, loop)
    del found_inf


def _first_of(count: int) -> Iterator[bool]:
    """True for the first micro-step, then False: only the first finds an earlier step's gradients.

    The third and later ones repeat the second, allocation by allocation, and are not played.
    """
    return (micro_step == 0 for micro_step in range(min(count, 2)))


# --- plain: the contract's hand-written loop ------------------------------------------------------------------------


def _plain_carry(step: Step) -> None:
    step.names["x"], step.names["y"] = step.images(), step.labels()
    step.names["out"], step.names["loss"] = _outputs(step)


def _outputs(step: Step) -> tuple[Tensor, Tensor]:
    """Logits and loss of an earlier step."""
    logits = (step.settings.bs, step.settings.num_classes)
    output = Tensor.empty(step.run, logits, step.autocast_dtype or step.dtype, kind="activations")
    return output, Tensor.empty(step.run, (), step.loss_dtype, kind="activations")


def _plain(step: Step) -> None:
    settings = step.settings
    for first in _first_of(settings.accum):
        step.start("forward")
        batch = {"x": step.images(), "y": step.labels()}
        step.names.update(batch)
        del batch
        if first and settings.zero_grad == "before-forward":
            step.zero_grad()
        with step.autocast():
            step.names["out"] = step.model(step.names["x"])
            step.names["loss"] = ops.cross_entropy(_tensor(step, "out"), _tensor(step, "y"))
            if settings.accum > 1:
                step.names["loss"] = ops.mul(_tensor(step, "loss"), 1.0)
        if first and settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(_tensor(step, "loss"))
    _scaled_update(step, PLAIN)


def _tensor(step: Step, name: str) -> Tensor:
    value = step.names[name]
    assert isinstance(value, Tensor)
    return value


# --- trainer: transformers' Trainer on accelerate -------------------------------------------------------------------


def _trainer_carry(step: Step) -> None:
    step.names["batches"] = [(step.images(), step.labels()) for _ in range(step.settings.accum)]
    step.names["num_items"] = step.num_items()
    step.names["tr_loss"] = step.scalars(1)[0]
    step.names["grad_norm"] = Tensor.empty(step.run, (), step.dtype, kind="temporaries")
    step.names["loss"] = Tensor.empty(step.run, (), step.loss_dtype, kind="activations")


def _trainer(step: Step) -> None:
    step.start("forward")
    batches = [(step.images(), step.labels()) for _ in range(step.settings.accum)]
    step.names["num_items"] = step.num_items()
    step.names["batches"] = batches
    if step.settings.zero_grad == "before-forward":
        step.zero_grad()
    for first, (x, y) in zip(_first_of(len(batches)), batches):
        step.start("forward")
        step.names["loss"] = _trainer_loss(step, x, y)
        if first and step.settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(_tensor(step, "loss"))
    step.start("optimizer_step")
    found_inf = step.unscale()
    step.names["grad_norm"] = step.clip_grad_norm()
    _update(step, TRAINER)
    del found_inf


def _trainer_loss(step: Step, x: Tensor, y: Tensor) -> Tensor:
    """``compute_loss``: the model returns loss and logits, accelerate converts both to fp32, only the loss survives."""

    def loss_of(logits: Tensor) -> Tensor:
        loss = ops.cross_entropy(ops.view(logits, -1, logits.shape[-1]), y)
        divides = step.model.takes_loss_kwargs and step.model.uses_num_items
        return ops.div(loss, _tensor(step, "num_items")) if divides else loss

    with step.autocast():
        loss, logits = step.model(x, loss_of) if step.model.takes_loss_kwargs else _timm_wrapper(step, x, loss_of)
    converted = to(logits, DType.float32) if step.autocast_dtype else logits
    del logits
    loss = loss if step.model.takes_loss_kwargs else ops.mul(loss, 1.0)
    del converted
    return loss


def _timm_wrapper(step: Step, x: Tensor, loss_of: LossOf) -> tuple[Tensor, Tensor]:
    """``TimmWrapperForImageClassification.forward``: takes no loss arguments (``accepts_loss_kwargs = False``)."""
    logits = step.model(x)
    return loss_of(logits), logits


def _trainer_no_decay(step: Step, name: str, parameter: Tensor) -> bool:
    """``Trainer.get_decay_parameter_names``: no decay for ``nn.LayerNorm`` by type, nor for what these names match."""
    return name in step.scope.layer_norms or _NO_DECAY.search(name.lower()) is not None


# --- timm: train.py ---------------------------------------------------------------------------------------------------


def _timm_carry(step: Step) -> None:
    names, run = step.names, step.run
    for name in ("mean", "std"):
        names[name] = Tensor.empty(run, (1, 3, 1, 1), DType.float32, kind="inputs")
    for name in ("", "next_"):
        names[f"{name}input"], names[f"{name}target"] = step.images(), step.labels()
    names["output"], names["loss"] = _outputs(step)


def _timm_fetch(step: Step) -> None:
    """``PrefetchLoader``: bytes to the device, a float batch from them, and only then the current batch moves on."""
    names = step.names
    pixels = step.images(DType.uint8)
    target = step.labels()
    batch = step.images()
    del pixels
    names["input"], names["target"] = names["next_input"], names["next_target"]
    names["next_input"], names["next_target"] = batch, target


def _timm(step: Step) -> None:
    for first in _first_of(step.settings.accum):
        step.start("forward")
        _timm_fetch(step)
        if first and step.settings.zero_grad == "before-forward":
            step.zero_grad()
        with step.autocast():
            output = step.model(step.names["input"])
            loss = ops.label_smoothing_cross_entropy(output, _tensor(step, "target"))
        step.names["output"], step.names["loss"] = output, loss  # an earlier result lives until this one is whole
        del output, loss
        if first and step.settings.zero_grad == "before-backward":
            step.zero_grad()
        step.start("backward")
        step.backward(_tensor(step, "loss"))
    _scaled_update(step, TIMM)


def _timm_no_decay(step: Step, name: str, parameter: Tensor) -> bool:
    """``param_groups_weight_decay``: vectors, biases, and what the model names."""
    return len(parameter.shape) <= 1 or name.endswith(".bias") or name in step.model.no_weight_decay


TIMM = Loop(
    optim="sgd-nesterov",
    carry=_timm_carry,
    play=_timm,
    no_decay=_timm_no_decay,
    weight_decay=True,
    assumption="timm 1.0.31 train.py --amp: two batches on the GPU, label smoothing 0.1, no clipping",
)
PLAIN = Loop(
    optim="adamw_torch",
    carry=_plain_carry,
    play=_plain,
    assumption="a plain PyTorch loop: x, y, out and loss stay bound until they are bound again",
)
TRAINER = Loop(
    optim="adamw_torch_fused",
    carry=_trainer_carry,
    play=_trainer,
    no_decay=_trainer_no_decay,
    assumption="transformers 5.24 Trainer with accelerate 1.15 on torch 2.14",
)
LOOPS = {"trainer": TRAINER, "timm": TIMM, "plain": PLAIN}


def with_defaults(settings: TrainSettings) -> TrainSettings:
    """``settings`` with the loop's own optimizer and moment of ``zero_grad`` where the user left them open."""
    return dataclasses.replace(
        settings,
        optim=settings.optim or LOOPS[settings.loop].optim,
        zero_grad=settings.zero_grad or "after-step",
        parallel=settings.parallel or "none",
    )
