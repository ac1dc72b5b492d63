"""transformers 5.24 ``Trainer._run_epoch`` and ``training_step`` with accelerate 1.15."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .ema import make_ema
from .job import Job, Recorder, backward
from .recipe import clip_norm, label_smoothing
from .trainer_evaluation import evaluate, smoothed_loss, to_fp32

__all__ = ["run_trainer"]


def run_trainer(job: Job, recorder: Recorder) -> None:
    """All micro-batches of a step are fetched first; the loss is computed in the model, inside autocast.

    ``loss`` and ``norm`` are names of the loop: the last step's values live until they are rebound.
    """
    with recorder.during("resume"):
        job.load()
    scaler = job.scaler()
    ema = make_ema(job, recorder)
    with recorder.during("loop"):
        total_loss = torch.zeros((), device=job.device)  # torch.tensor would not be seen
    for step, sizes in enumerate(job.schedule()):
        if not sizes:
            evaluate(job, recorder)
            continue
        recorder.step_begins(step)
        with recorder.during("forward"), recorder.inputs():
            batches, num_items = _fetch(job, sizes)
        for micro_step, inputs in enumerate(batches):
            job.zero("before-forward", micro_step)
            with recorder.during("forward"):
                loss = _trainer_loss(job, inputs, num_items)
                recorder.forward_ended(loss)
            job.zero("before-backward", micro_step)
            job.synchronise(last=micro_step == len(batches) - 1)
            with recorder.during("backward"):
                backward(scaler.scale(loss))
                recorder.backward_ended()
            loss = loss.detach()
            total_loss += loss
        with recorder.during("optimizer_step"):
            norm = _clip(job, scaler)  # noqa: F841
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")
            ema.update(step)


def _fetch(job: Job, sizes: tuple[int, ...]) -> tuple[list[dict[str, Tensor]], Tensor | None]:
    batches = []
    for size in sizes:
        images, labels = job.batch(size)
        batches.append({"pixel_values": images} if labels is None else {"pixel_values": images, "labels": labels})
    counted = sum((batch["labels"].ne(-100).sum() for batch in batches if "labels" in batch), start=0)
    num_items = counted if isinstance(counted, Tensor) else None
    if num_items is not None and job.settings.gpus > 1:
        num_items = num_items / 1  # of all ranks, divided by the number of devices that share a batch
    return batches, num_items


def _trainer_loss(job: Job, inputs: dict[str, Tensor], num_items: Tensor | None) -> Tensor:
    """``training_step`` up to the backward pass: what the model returned is gone when the loss is divided."""
    loss = _compute_loss(job, inputs, num_items)
    return loss if job.built.takes_num_items else loss / job.settings.accum


def _compute_loss(job: Job, inputs: dict[str, Tensor], num_items: Tensor | None) -> Tensor:
    """``compute_loss``."""
    extra = {"num_items_in_batch": num_items} if job.built.takes_num_items else {}
    smoothing = label_smoothing(job.settings) if "labels" in inputs else 0.0
    labels = inputs["labels"] if smoothing else None
    with job.autocast():
        outputs = job.model(**({"pixel_values": inputs["pixel_values"]} if smoothing else inputs), **extra)
    outputs = to_fp32(job, outputs)
    loss: Tensor = smoothed_loss(outputs, labels, smoothing, extra) if smoothing else outputs["loss"]
    if job.built.takes_num_items and job.settings.gpus > 1 and "labels" in inputs:
        loss *= job.settings.gpus  # average_tokens_across_devices
    return loss


def _clip(job: Job, scaler: torch.amp.GradScaler) -> Tensor:
    """``accelerator.clip_grad_norm_``: unscale in place, then clip.

    ``_get_grad_norm`` takes the norm for the log by the same call where ``max_grad_norm`` is 0: it clips to infinity.
    """
    if scaler.is_enabled():
        scaler.unscale_(job.optimizer)
    return torch.nn.utils.clip_grad_norm_(job.model.parameters(), clip_norm(job.settings) or math.inf)
