"""Training loops: what each holds in its variables, and when gradients go.

A loop is one function that plays one optimizer step, and one row of ``LOOPS``. Names that a loop's Python variables
hold live in ``Step.names``, so that an old value dies when its name is bound again, after the new one exists.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from . import ops
from .engine import Tensor
from .engine.autocast import to
from .optimizers import Group
from .settings import TrainSettings
from .step import LossOf, Step
from .units import DType

__all__ = ["LOOPS", "Loop", "begin", "with_defaults"]

#: transformers 5.24, trainer.py
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """``begin`` makes what the loop's names hold before the first step, ``play`` is one step.

    ``no_decay`` tells the parameters of the group without weight decay; without it there is one group.
    """

    optim: str
    begin: Callable[[Step], None]
    play: Callable[[Step], None]
    no_decay: Callable[[Step, str, Tensor], bool] | None = None
    weight_decay: bool = False
    no_decay_first: bool = False
    assumption: str


def begin(step: Step, loop: Loop) -> None:
    """What is there before the first step: the optimizer's own, then what the loop's names hold.

    A loop of one group hands all parameters over, the others those that require grad.
    """
    step.construct_optimizer(_groups(step, loop, step.scope.parameters if loop.no_decay is None else step.trained))
    loop.begin(step)


def _groups(step: Step, loop: Loop, trained: Mapping[str, Tensor]) -> list[Group]:
    if loop.no_decay is None:
        return [Group(parameters=tuple(trained.values()), decayed=loop.weight_decay)]
    plain = tuple(p for name, p in trained.items() if not loop.no_decay(step, name, p))
    bare = tuple(p for name, p in trained.items() if loop.no_decay(step, name, p))
    groups = [Group(parameters=plain, decayed=loop.weight_decay), Group(parameters=bare, decayed=False)]
    return groups[::-1] if loop.no_decay_first else groups


def _update(step: Step, loop: Loop, *, scaled: bool) -> None:
    step.optimizer_step(_groups(step, loop, step.updated), scaled=scaled)
    if step.settings.zero_grad in {None, "after-step"}:
        step.zero_grad()


def _scaled_update(step: Step, loop: Loop) -> None:
    """``scaler.step(optimizer)`` without clipping: found_inf lives until ``scaler.update()``."""
    step.start("optimizer_step")
    scaled = step.optimizer.takes_scaler and bool(step.scaler)
    found_inf = step.check_inf() if scaled else step.unscale()
    _update(step, loop, scaled=scaled)
    del found_inf


def _first_of(count: int) -> Iterator[bool]:
    """True for the first micro-step, then False: only the first finds an earlier step's gradients.

    The third and later ones repeat the second, allocation by allocation, and are not played.
    """
    return (micro_step == 0 for micro_step in range(min(count, 2)))


# --- plain: the contract's hand-written loop ------------------------------------------------------------------------


def _plain_begin(step: Step) -> None:
    """Nothing is bound yet."""


def _plain(step: Step) -> None:
    settings = step.settings
    for first in _first_of(settings.accum):
        step.start("forward")
        batch = dict(zip(("x", "y"), step.batch()))
        step.names.update(batch)
        del batch
        if first and settings.zero_grad == "before-forward":
            step.zero_grad()
        with step.autocast():
            if step.model.own_loss:
                step.names["loss"] = step.model(step.names["x"])[0]
            else:
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


def _trainer_begin(step: Step) -> None:
    step.names["tr_loss"] = step.scalars(1)[0]


def _trainer(step: Step) -> None:
    step.start("forward")
    batches = [step.batch() for _ in range(step.settings.accum)]
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
    _update(step, TRAINER, scaled=False)
    del found_inf


def _trainer_loss(step: Step, x: Tensor, y: Tensor | None) -> Tensor:
    """``compute_loss``: the model returns loss and logits, accelerate converts both to fp32, only the loss survives."""

    def loss_of(logits: Tensor) -> Tensor:
        assert y is not None
        loss = ops.cross_entropy(ops.view(logits, -1, logits.shape[-1]), y)
        divides = step.model.takes_loss_kwargs and step.model.uses_num_items
        return ops.div(loss, _tensor(step, "num_items")) if divides else loss

    with step.autocast():
        loss, logits, *others = _model_output(step, x, loss_of)
    converted = to(logits, DType.float32) if step.autocast_dtype else logits
    del logits
    loss = loss if step.model.takes_loss_kwargs else ops.mul(loss, 1.0)
    del converted, others
    return loss


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


def _trainer_no_decay(step: Step, name: str, parameter: Tensor) -> bool:
    """``Trainer.get_decay_parameter_names``: no decay for ``nn.LayerNorm`` by type, nor for what these names match."""
    return name in step.scope.layer_norms or _NO_DECAY.search(name.lower()) is not None


# --- timm: train.py ---------------------------------------------------------------------------------------------------


def _timm_begin(step: Step) -> None:
    """The loader's mean and std, and the first batch, which is fetched before the second."""
    names, run = step.names, step.run
    for name in ("mean", "std"):
        names[name] = Tensor.empty(run, (1, 3, 1, 1), DType.float32, kind="inputs")
    names["next_input"], names["next_target"] = _timm_batch(step)


def _timm_batch(step: Step) -> tuple[Tensor, Tensor]:
    """``PrefetchLoader``: bytes to the device, and a float batch from them, on a stream of its own."""
    with step.run.side_stream():
        pixels = step.images(DType.uint8)
        target = step.labels()
        batch = step.images()
        del pixels
    return batch, target


def _timm_fetch(step: Step) -> None:
    """The next batch first, and only then the current one moves on."""
    names = step.names
    batch, target = _timm_batch(step)
    names["input"], names["target"] = names["next_input"], names["next_target"]
    names["next_input"], names["next_target"] = batch, target


def _timm(step: Step) -> None:
    for first in _first_of(step.settings.accum):
        step.start("forward")
        _timm_fetch(step)
        if first and step.settings.zero_grad == "before-forward":
            step.zero_grad()
        with step.autocast():
            if step.model.own_loss:
                output, loss = None, step.model(step.names["input"])[0]
            else:
                output = step.model(step.names["input"])
                loss = ops.label_smoothing_cross_entropy(output, _tensor(step, "target"))
        if step.settings.accum > 1:
            loss = ops.div_(loss)
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
    begin=_timm_begin,
    play=_timm,
    no_decay=_timm_no_decay,
    weight_decay=True,
    no_decay_first=True,
    assumption="timm 1.0.31 train.py --amp: two batches on the GPU, label smoothing 0.1, no clipping",
)
PLAIN = Loop(
    optim="adamw_torch",
    begin=_plain_begin,
    play=_plain,
    assumption="a plain PyTorch loop: x, y, out and loss stay bound until they are bound again",
)
TRAINER = Loop(
    optim="adamw_torch_fused",
    begin=_trainer_begin,
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
