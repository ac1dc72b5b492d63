"""``F.cross_entropy`` under autocast, part by part as ATen composes it, so that each part meets autocast.

Source: torch 2.14, ATen/native/LossNLL.cpp. What is a local variable there is a name here, and lives as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vitmem.errors import NotModelled

__all__ = ["cross_entropy_loss"]


def cross_entropy_loss(x: Tensor, target: Tensor, *options: Any, **named: Any) -> Tensor:
    """The mean over [B, K] logits, with class indices [B] or probabilities [B, K] for targets.

    ``log_softmax`` is asked for the logits' own type and keeps it, ``nll_loss`` takes an fp32 copy.
    """
    defaults: tuple[Any, ...] = (None, 1, -100, 0.0)
    weight, reduction, ignore_index, smoothing = options + defaults[len(options) :]
    dense = target.shape == x.shape
    if named or x.dim() != 2 or weight is not None or (reduction != 1 and (dense or smoothing)):
        raise NotModelled("this kind of cross-entropy inside a model under autocast")
    if dense:
        return _with_probabilities(x, target, smoothing)
    if smoothing:
        return _smoothed(x, target, ignore_index, smoothing)
    log_probabilities = torch.log_softmax(x, 1, dtype=x.dtype)
    loss: Tensor = torch._C._nn.nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index)
    return loss


def _with_probabilities(x: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """``cross_entropy_loss_prob_target``."""
    log_probabilities = torch.log_softmax(x, 1, dtype=x.dtype)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[1]
    product = log_probabilities * target
    total = product.sum()
    negated = -total
    return negated / x.shape[0]


def _smoothed(x: Tensor, target: Tensor, ignore_index: int, smoothing: float) -> Tensor:
    """``cross_entropy_loss_label_smoothing``; g++ evaluates the operands of a binary operator from the right."""
    log_probabilities = torch.log_softmax(x, 1, dtype=x.dtype)
    nll_loss: Any = torch._C._nn.nll_loss_nd
    nll: Tensor = nll_loss(log_probabilities, target, None, 1, ignore_index)
    smooth = -log_probabilities.sum(1)
    ignored = target == ignore_index
    smooth.masked_fill_(ignored, 0.0)
    kept = ~ignored
    count = kept.sum()
    total = smooth.sum()
    mean = total / count
    del kept, count, total
    scaled_mean = mean * (smoothing / x.shape[1])
    scaled_nll = nll * (1 - smoothing)
    return scaled_nll + scaled_mean
