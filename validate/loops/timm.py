"""timm 1.0.31 ``train.py`` with the prefetching loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..build import DTYPES
from .ema import make_ema
from .job import STEPS, Job, Recorder, backward
from .recipe import collated_targets, label_smoothing

__all__ = ["run_timm"]


def run_timm(job: Job, recorder: Recorder) -> None:
    """``train.py --amp``: the loader has fetched the next batch before it hands out the current one."""
    scaler = job.scaler()
    update_ema = make_ema(job, recorder)
    batches = _prefetched(job, recorder)
    for step in range(STEPS):
        recorder.step_begins(step)
        for micro_step in range(job.settings.accum):
            with recorder.during("forward"):
                with recorder.inputs():
                    images, target = next(batches)
                job.zero("before-forward", micro_step)
                outputs = _timm_forward(job, images, target)
                loss = outputs[-1]
                recorder.forward_ended(*outputs)
            job.zero("before-backward", micro_step)
            with recorder.during("backward"):
                backward(scaler.scale(loss))
                recorder.backward_ended()
        with recorder.during("optimizer_step"):
            job.clip(scaler)
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")
            update_ema(step)


def _timm_forward(job: Job, images: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Logits and loss; or the model's own loss, where the loader's targets are not used."""
    import timm.loss

    losses: Any = timm.loss
    with job.autocast():
        if job.built.own_loss:
            outputs: tuple[Tensor, ...] = (job.model(images).loss,)
        else:
            output = job.model(images)
            output = getattr(output, "logits", output)
            smoothing, mixup = label_smoothing(job.settings), job.settings.mixup
            criterion = losses.create_classification_loss(smoothing=smoothing, soft_targets=mixup)
            outputs = output, criterion(output, target)
    loss = outputs[-1]
    if job.settings.accum > 1:
        loss /= job.settings.accum
    return outputs


def _prefetched(job: Job, recorder: Recorder) -> Iterator[tuple[Tensor, Tensor]]:
    """timm's own loader over byte images, as its collate function makes them on the host."""
    from timm.data.loader import PrefetchLoader

    shape = (job.settings.bs, 3, *job.built.image_size)
    images = torch.empty(shape, dtype=torch.uint8, device="cpu").expand(shape)
    labels = collated_targets(job.settings)
    host: Any = ((images, labels) for _ in range(STEPS * job.settings.accum + 1))
    with recorder.inputs():
        loader = PrefetchLoader(host, device=torch.device(job.device))
    loader.img_dtype = DTYPES.get(job.settings.precision, torch.float32)  # mean and std stay fp32
    return iter(loader)
