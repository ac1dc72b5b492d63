"""The average of the weights that people add to each loop, made by its library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from .job import Job, Recorder

__all__ = ["Ema", "make_ema"]

#: Called after an optimizer step, with its number from 0 on.
Update = Callable[[int], None]


class Ema(NamedTuple):
    """The averaged model, where there is one, and its update."""

    model: nn.Module | None
    update: Update


def make_ema(job: Job, recorder: Recorder) -> Ema:
    """The average; its update follows an optimizer step and its ``zero_grad``, and without ``ema`` does nothing.

    timm's train.py has ``ModelEmaV3``. A plain loop has torch's ``AveragedModel``, and so has a callback of Trainer's,
    which updates it in ``on_step_end``.
    """
    if not job.settings.ema:
        return Ema(None, lambda step: None)
    with recorder.during("loop"):
        averages, update = (_timm if job.settings.loop == "timm" else _torch)(job)
    recorder.averages(averages)
    return Ema(averages, update)


def _timm(job: Job) -> tuple[nn.Module, Update]:
    from timm.utils.model_ema import ModelEmaV3

    make: Any = ModelEmaV3
    with mock.patch("torch.Generator", _generator):
        averages = make(job.model, decay=0.9998)
    return averages.module, lambda step: averages.update(job.model, step=step + 1)


_make_generator = torch.Generator


def _generator(device: torch.device) -> torch.Generator:
    """The meta device has none of its own, and takes the host's."""
    return _make_generator("cpu" if device.type == "meta" else device)


def _torch(job: Job) -> tuple[nn.Module, Update]:
    from torch.optim import swa_utils

    make_average: Any = swa_utils.get_ema_multi_avg_fn
    averages = swa_utils.AveragedModel(job.model, multi_avg_fn=make_average(0.999))
    return averages.module, lambda step: averages.update_parameters(job.model)
