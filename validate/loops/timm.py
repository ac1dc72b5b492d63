"""timm 1.0.31 ``train.py`` with the prefetching loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..build import DTYPES
from .ema import Ema, make_ema
from .job import Job, Recorder, backward
from .recipe import collated_targets, label_smoothing

__all__ = ["run_timm"]


def run_timm(job: Job, recorder: Recorder) -> None:
    """``train.py --amp``: epochs are calls of ``train_one_epoch`` and ``validate``, whose names go when they return."""
    with recorder.during("resume"):
        job.load()
    scaler = job.scaler()
    ema = make_ema(job, recorder)
    schedule = job.schedule()
    place = schedule.index(()) if () in schedule else len(schedule)
    loader = _loader(job, recorder, schedule[:place])
    _train_one_epoch(job, recorder, scaler, ema, loader, schedule[:place], first=0)
    if place == len(schedule):
        return
    _validate(job, recorder, ema.model)
    if schedule[place + 1 :]:
        loader.loader = _Host(job, schedule[place + 1 :])
        _train_one_epoch(job, recorder, scaler, ema, loader, schedule[place + 1 :], first=place)


def _train_one_epoch(
    job: Job,
    recorder: Recorder,
    scaler: torch.amp.GradScaler,
    ema: Ema,
    loader: Any,
    steps: Sequence[tuple[int, ...]],
    first: int,
) -> None:
    job.model.train()
    batches = iter(loader)
    for step, sizes in enumerate(steps, first):
        recorder.step_begins(step)
        for micro_step in range(len(sizes)):
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
            ema.update(step)


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


def _validate(job: Job, recorder: Recorder, averages: nn.Module | None) -> None:
    """``validate``, of the model and of its average: ``loss_fn`` is ``nn.CrossEntropyLoss``, and every name but the
    loader's lives until it is bound again.

    The loader is made here, so that training without an evaluation has the same bytes as with one.
    """
    with recorder.during("evaluation"):
        loader = _loader(job, recorder, [job.eval_sizes], last=True)
        job.model.eval()
        for model in (job.model, averages):
            if model is not None:
                with job.inference():
                    _validate_batches(job, recorder, model, loader)
        job.model.train()


def _validate_batches(job: Job, recorder: Recorder, model: nn.Module, loader: Any) -> None:
    from timm.utils import metrics

    accuracy: Any = metrics.accuracy
    batches = iter(loader)
    for _ in job.eval_sizes:
        with recorder.inputs():
            images, target = next(batches)
        with job.autocast():
            if job.built.own_loss:
                loss = model(images).loss
            else:
                output = model(images)
                output = getattr(output, "logits", output)
                loss = F.cross_entropy(output, target)
        if not job.built.own_loss:
            percentages = accuracy(output, target, topk=(1, 5))  # noqa: F841
        reduced_loss = loss.data  # noqa: F841


class _Host:
    """Byte images and labels as timm's collate function makes them on the host, batch by batch."""

    def __init__(self, job: Job, steps: Sequence[tuple[int, ...]], *, last: bool = False) -> None:
        self.job = job
        self.sizes, self.mixed = [size for sizes in steps for size in sizes], not last
        if not last:  # the epoch goes on: the loader finds a next batch
            self.sizes.append(job.settings.bs)

    def __iter__(self) -> Any:
        for size in self.sizes:
            shape = (size, 3, *self.job.built.image_size)
            images = torch.empty(shape, dtype=torch.uint8, device="cpu").expand(shape)
            yield images, collated_targets(self.job.settings, size, mixed=self.mixed)


def _loader(job: Job, recorder: Recorder, steps: Sequence[tuple[int, ...]], *, last: bool = False) -> Any:
    """timm's own loader."""
    from timm.data.loader import PrefetchLoader

    host: Any = _Host(job, steps, last=last)
    with recorder.inputs():
        loader = PrefetchLoader(host, device=torch.device(job.device))
    loader.img_dtype = DTYPES.get(job.settings.precision, torch.float32)  # mean and std stay fp32
    return loader
