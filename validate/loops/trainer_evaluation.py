"""transformers 5.24 ``Trainer.evaluation_loop`` and ``prediction_step`` with accelerate 1.15, on one GPU.

``compute_metrics`` is given, so that logits and labels are kept; a model with its own loss is evaluated as in
transformers' ``run_mae.py``: ``label_names=["pixel_values"]`` and no metrics, so that only losses are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import trainer_pt_utils

from .job import Job, Recorder
from .recipe import label_smoothing

__all__ = ["evaluate", "smoothed_loss", "to_fp32"]

_MIXED = ("fp16", "bf16")

_nested_concat: Any = trainer_pt_utils.nested_concat


def evaluate(job: Job, recorder: Recorder) -> None:
    """One evaluation between two training steps; the next training step puts the model back into training mode."""
    with recorder.during("evaluation"):
        job.model.eval()
        if hasattr(job.optimizer, "eval"):
            job.optimizer.eval()
        _evaluation_loop(job, recorder)
        job.model.train()
        if hasattr(job.optimizer, "train"):
            job.optimizer.train()


def _evaluation_loop(job: Job, recorder: Recorder) -> None:
    batch_size = job.eval_sizes[0]
    all_losses = all_preds = all_labels = None
    for step, inputs in enumerate(_batches(job, recorder)):
        size = inputs["pixel_values"].shape[0]
        losses, logits, labels = _prediction_step(job, inputs)
        losses = losses.repeat(batch_size)[:size]
        all_losses = _add(all_losses, losses)
        if logits is not None and labels is not None:
            _pad_across_processes(logits)
            all_preds = _add(all_preds, logits)
            all_labels = _add(all_labels, labels)
        if job.settings.eval_accum is not None and (step + 1) % job.settings.eval_accum == 0:
            all_losses = all_preds = all_labels = None  # to_cpu_and_numpy
            del losses, logits, labels, inputs
            job.empty_cache()


def _batches(job: Job, recorder: Recorder) -> Iterator[dict[str, Tensor]]:
    """accelerate's ``DataLoaderShard``: its name ``current_batch`` moves on before the next batch goes to the GPU."""
    for size in job.eval_sizes:
        with recorder.inputs():
            images, labels = job.batch(size)
        current_batch = {"pixel_values": images} if labels is None else {"pixel_values": images, "labels": labels}
        del images, labels
        yield current_batch
        del current_batch


def _prediction_step(job: Job, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    labels = inputs["pixel_values" if job.built.own_loss else "labels"].detach()
    with torch.no_grad():
        extra = {}
        if job.built.takes_num_items:
            extra["num_items_in_batch"] = sum((batch["labels"].ne(-100).sum() for batch in [inputs]), start=0)
        smoothing = 0.0 if job.built.own_loss else label_smoothing(job.settings)
        with job.autocast():
            outputs = job.model(**({"pixel_values": inputs["pixel_values"]} if smoothing else inputs), **extra)
        outputs = to_fp32(job, outputs)
        loss = smoothed_loss(outputs, labels, smoothing, extra) if smoothing else outputs["loss"]
        loss = loss.detach().mean()
    return (loss, None, None) if job.built.own_loss else (loss, outputs["logits"].detach(), labels)


def smoothed_loss(outputs: Any, labels: Tensor | None, smoothing: float, extra: dict[str, Any]) -> Tensor:
    """``label_smoothing_factor``: the labels did not go to the model."""
    smoother: Any = trainer_pt_utils.LabelSmoother(epsilon=smoothing)
    loss: Tensor = smoother(outputs, labels, **extra)
    return loss


def _pad_across_processes(logits: Tensor) -> None:
    """accelerate asks every process for the shape; labels have no second dimension to ask for."""
    torch.zeros(logits.dim(), dtype=torch.int64, device=logits.device)[None]


def _add(kept: Tensor | None, new: Tensor) -> Tensor:
    """``EvalLoopContainer.add``."""
    return new if kept is None else _nested_concat(kept, new, padding_index=-100)


def to_fp32(job: Job, outputs: Any) -> Any:
    """accelerate's ``convert_to_fp32``: 16-bit outputs get a copy, but not FSDP2's, which it does not wrap so."""
    converts = job.settings.precision in _MIXED and job.settings.parallel != "fsdp"
    return {name: _copied(value) for name, value in outputs.items()} if converts else outputs


def _copied(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value
