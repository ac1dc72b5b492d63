"""Training loops: what each holds in its variables, and when gradients go.

A loop is one module that plays one optimizer step, and one row of ``LOOPS``. Names that a loop's Python variables
hold live in ``Step.names``, so that an old value dies when its name is bound again, after the new one exists.
"""

from __future__ import annotations

import dataclasses

from ..generations import Torch
from ..host import with_loader
from ..parallel import engine_of
from ..settings import TrainSettings
from .evaluation import BATCHES, TRAINER_EVAL_BATCH
from .loop import Loop, begin
from .plain import PLAIN
from .timm import TIMM
from .trainer import TRAINER

__all__ = ["LOOPS", "Loop", "begin", "own_optimizer", "with_defaults"]

LOOPS = {"trainer": TRAINER, "timm": TIMM, "plain": PLAIN}


def with_defaults(settings: TrainSettings) -> TrainSettings:
    """``settings`` with the loop's own optimizer, clipping, smoothing, moment of ``zero_grad``, evaluation and data
    loader where the user left them open."""
    loop, torch = LOOPS[settings.loop], Torch.parse(settings.torch)
    ranks = settings.gpus if engine_of(settings) != "none" else 1
    eval_bs = settings.eval_bs or (TRAINER_EVAL_BATCH if settings.loop == "trainer" else settings.bs)
    return dataclasses.replace(
        with_loader(settings),
        optim=settings.optim or own_optimizer(settings),
        zero_grad=settings.zero_grad or ("after-step" if torch.has("zero_grad_sets_none") else "keep"),
        clip_grad=loop.clip_grad if settings.clip_grad is None else settings.clip_grad,
        label_smoothing=loop.label_smoothing if settings.label_smoothing is None else settings.label_smoothing,
        parallel=engine_of(settings),  # type: ignore[arg-type]
        eval_bs=eval_bs,
        eval_samples=settings.eval_samples or BATCHES * eval_bs * ranks,
    )


def own_optimizer(settings: TrainSettings) -> str:
    """The loop's own; Trainer takes the fused AdamW from torch 2.8 on (transformers 5.24, training_args.py)."""
    name = LOOPS[settings.loop].optim
    return "adamw_torch" if name == "adamw_torch_fused" and Torch.parse(settings.torch).version < (2, 8) else name
