"""What the loops do with labels and gradients where the settings leave it to them, and the targets of mixup."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from vitmem.settings import TrainSettings

__all__ = ["clip_norm", "collated_targets", "label_smoothing"]

#: train.py's ``--smoothing``, and Trainer's ``max_grad_norm``.
_SMOOTHING: Mapping[str, float] = {"timm": 0.1}
_CLIPPING: Mapping[str, float] = {"trainer": 1.0}


def label_smoothing(settings: TrainSettings) -> float:
    """The loop's own unless it is given."""
    given = settings.label_smoothing
    return _SMOOTHING.get(settings.loop, 0.0) if given is None else given


def clip_norm(settings: TrainSettings) -> float:
    """The loop's own unless it is given; 0 does not clip."""
    return _CLIPPING.get(settings.loop, 0.0) if settings.clip_grad is None else settings.clip_grad


def collated_targets(settings: TrainSettings, size: int, *, mixed: bool = True) -> Tensor:
    """What a collate function makes of a batch's labels on the host: class indices, or with mixup a target for each.

    The batches of an evaluation are not ``mixed``.
    timm's ``FastCollateMixup`` smooths them; torchvision's ``MixUp`` leaves that to the loss.
    """
    labels = torch.zeros(size, dtype=torch.int64, device="cpu")
    if not (settings.mixup and mixed):
        return labels
    if settings.loop == "timm":
        from timm.data.mixup import mixup_target

        smoothed: Tensor = mixup_target(labels, settings.num_classes, 0.5, label_smoothing(settings))  # type: ignore[no-untyped-call]
        return smoothed
    from torchvision.transforms import v2

    _, mixed = v2.MixUp(num_classes=settings.num_classes)(torch.zeros(size, 3, 1, 1, device="cpu"), labels)
    return torch.as_tensor(mixed)
