"""transformers 5.24 ``Trainer._run_epoch`` and ``training_step`` with accelerate 1.15."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .ema import make_ema
from .job import STEPS, Job, Recorder, backward
from .recipe import clip_norm, label_smoothing

__all__ = ["run_trainer"]


def run_trainer(job: Job, recorder: Recorder) -> None:
    """All micro-batches of a step are fetched first; the loss is computed in the model, inside autocast.

    ``loss`` and ``norm`` are names of the loop: the last step's values live until they are rebound.
    """
    scaler = job.scaler()
    update_ema = make_ema(job, recorder)
    with recorder.during("loop"):
        total_loss = torch.tensor(0.0, device=job.device)
    for step in range(STEPS):
        recorder.step_begins(step)
        with recorder.during("forward"), recorder.inputs():
            batches, num_items = _fetch(job)
        for micro_step, inputs in enumerate(batches):
            job.zero("before-forward", micro_step)
            with recorder.during("forward"):
                loss = _trainer_loss(job, inputs, num_items)
                recorder.forward_ended(loss)
            job.zero("before-backward", micro_step)
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
            update_ema(step)


def _fetch(job: Job) -> tuple[list[dict[str, Tensor]], Tensor | None]:
    batches = []
    for _ in range(job.settings.accum):
        images, labels = job.batch()
        batches.append({"pixel_values": images} if labels is None else {"pixel_values": images, "labels": labels})
    num_items = sum((batch["labels"].ne(-100).sum() for batch in batches if "labels" in batch), start=0)
    return batches, num_items if isinstance(num_items, Tensor) else None


def _trainer_loss(job: Job, inputs: dict[str, Tensor], num_items: Tensor | None) -> Tensor:
    """``training_step`` up to the backward pass."""
    extra = {"num_items_in_batch": num_items} if job.built.takes_num_items else {}
    smoothing = label_smoothing(job.settings) if "labels" in inputs else 0.0
    labels = inputs["labels"] if smoothing else None
    with job.autocast():
        outputs = job.model(**({"pixel_values": inputs["pixel_values"]} if smoothing else inputs), **extra)
    if job.settings.precision in _MIXED:
        outputs = {name: _to_fp32(value) for name, value in outputs.items()}
    loss: Tensor = _smoothed(outputs, labels, smoothing, extra) if smoothing else outputs["loss"]
    return loss if job.built.takes_num_items else loss / job.settings.accum


def _smoothed(outputs: Any, labels: Tensor | None, smoothing: float, extra: dict[str, Any]) -> Tensor:
    """``label_smoothing_factor``: the labels did not go to the model."""
    from transformers import trainer_pt_utils

    smoother: Any = trainer_pt_utils.LabelSmoother(epsilon=smoothing)
    loss: Tensor = smoother(outputs, labels, **extra)
    return loss


_MIXED = ("fp16", "bf16")


def _to_fp32(value: Any) -> Any:
    """accelerate's ``convert_to_fp32``: 16-bit outputs get a copy."""
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _clip(job: Job, scaler: torch.amp.GradScaler) -> Tensor:
    """``accelerator.clip_grad_norm_``: unscale in place, then clip.

    ``_get_grad_norm`` takes the norm for the log by the same call where ``max_grad_norm`` is 0: it clips to infinity.
    """
    if scaler.is_enabled():
        scaler.unscale_(job.optimizer)
    return torch.nn.utils.clip_grad_norm_(job.model.parameters(), clip_norm(job.settings) or math.inf)
