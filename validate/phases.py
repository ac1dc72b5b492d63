"""The batches of an evaluation and of an epoch's last step, as the loops' data loaders cut them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vitmem.settings import TrainSettings

from .build import Built

__all__ = ["eval_sizes", "last_sizes", "on_host"]

#: Trainer's ``per_device_eval_batch_size`` (transformers 5.24, training_args.py); the other loops take the training's.
_TRAINER_EVAL_BATCH = 8

#: Without a size of the evaluation set: every name that can be bound to an older batch's value is.
_BATCHES = 3


def eval_sizes(settings: TrainSettings, built: Built) -> tuple[int, ...]:
    """The images of each batch of an evaluation; none where the rehearsal does not know the kernels.

    Outside autocast, ``nn.MultiheadAttention`` runs a fused kernel of its own on itself when no gradient is wanted.
    """
    fused = built.library == "torchvision" and any(isinstance(m, nn.MultiheadAttention) for m in built.model.modules())
    if fused and settings.precision not in ("fp16", "bf16"):
        return ()
    size = settings.eval_bs or (_TRAINER_EVAL_BATCH if settings.loop == "trainer" else settings.bs)
    return _cut(settings.eval_samples or _BATCHES * size, size)


def last_sizes(settings: TrainSettings) -> tuple[int, ...]:
    """The micro-batches of an epoch's last step where they differ from the others'; timm's loader drops the rest."""
    if settings.train_samples is None or settings.loop == "timm":
        return ()
    sizes = _cut(settings.train_samples, settings.bs)
    last = sizes[-(len(sizes) % settings.accum or settings.accum) :]
    return () if last == (settings.bs,) * settings.accum else last


def on_host(state: Any) -> Any:
    """The state of an optimizer as ``torch.load(..., map_location="cpu")`` returns it."""
    if isinstance(state, Tensor):
        made = torch.zeros if state.dim() == 0 else torch.empty  # a step count is read
        return made(state.shape, dtype=state.dtype, device="cpu")
    if isinstance(state, dict):
        return {key: on_host(value) for key, value in state.items()}
    return [on_host(value) for value in state] if isinstance(state, list) else state


def _cut(samples: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, samples - start) for start in range(0, samples, size))
