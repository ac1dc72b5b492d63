"""Training loops: what each holds in its variables, and when gradients go.

A loop is one module that plays one optimizer step, and one row of ``LOOPS``. Names that a loop's Python variables
hold live in ``Step.names``, so that an old value dies when its name is bound again, after the new one exists.
"""

from __future__ import annotations

import dataclasses

from ..settings import TrainSettings
from .loop import Loop, begin
from .plain import PLAIN
from .timm import TIMM
from .trainer import TRAINER

__all__ = ["LOOPS", "Loop", "begin", "with_defaults"]

LOOPS = {"trainer": TRAINER, "timm": TIMM, "plain": PLAIN}


def with_defaults(settings: TrainSettings) -> TrainSettings:
    """``settings`` with the loop's own optimizer, clipping, smoothing and moment of ``zero_grad`` where the user left
    them open."""
    loop = LOOPS[settings.loop]
    return dataclasses.replace(
        settings,
        optim=settings.optim or loop.optim,
        zero_grad=settings.zero_grad or "after-step",
        clip_grad=loop.clip_grad if settings.clip_grad is None else settings.clip_grad,
        label_smoothing=loop.label_smoothing if settings.label_smoothing is None else settings.label_smoothing,
        parallel=settings.parallel or ("ddp" if settings.gpus > 1 else "none"),
    )
