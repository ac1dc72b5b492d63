"""Training loops: what each holds in its variables, and when gradients go.

A loop is one module that plays one optimizer step, and one row of ``LOOPS``. Names that a loop's Python variables
hold live in ``Step.names``, so that an old value dies when its name is bound again, after the new one exists.
"""

from __future__ import annotations

import dataclasses

from ..host import with_loader
from ..settings import TrainSettings
from .evaluation import BATCHES, TRAINER_EVAL_BATCH
from .loop import Loop, begin
from .plain import PLAIN
from .timm import TIMM
from .trainer import TRAINER

__all__ = ["LOOPS", "Loop", "begin", "with_defaults"]

LOOPS = {"trainer": TRAINER, "timm": TIMM, "plain": PLAIN}


def with_defaults(settings: TrainSettings) -> TrainSettings:
    """``settings`` with the loop's own optimizer and moment of ``zero_grad`` where the user left them open."""
    eval_bs = settings.eval_bs or (TRAINER_EVAL_BATCH if settings.loop == "trainer" else settings.bs)
    return dataclasses.replace(
        with_loader(settings),
        optim=settings.optim or LOOPS[settings.loop].optim,
        zero_grad=settings.zero_grad or "after-step",
        parallel=settings.parallel or "none",
        eval_bs=eval_bs,
        eval_samples=settings.eval_samples or BATCHES * eval_bs,
    )
