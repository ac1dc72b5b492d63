"""Convolution and batch normalisation as cuDNN runs them: in which memory format, and which kernel.

Meta tensors have no device, so torch lays every convolution's result out row-major and never picks cuDNN for batch
normalisation. Sources: torch 2.14, ATen/native/ConvUtils.h (cudnn_conv_suggest_memory_format) and Normalization.cpp
(_select_batch_norm_backend, _batch_norm_impl_index).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

__all__ = ["batch_norm", "in_cudnn_format"]

aten = torch.ops.aten

#: cuDNN's kernels index with 32 bits.
_MAX_ELEMENTS = 2**31 - 1


def in_cudnn_format(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution's result: channels-last where input or weight are."""
    if out.dim() != 4 or torch.channels_last not in (suggest_memory_format(x), suggest_memory_format(weight)):
        return out
    return torch.empty(out.shape, dtype=out.dtype, device=out.device, memory_format=torch.channels_last)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """``torch.batch_norm``. cuDNN also saves a reserve, whose size only cuDNN knows: it has no bytes here."""
    arguments: Any = (weight, bias, running_mean, running_var, training, momentum, eps)
    if not (cudnn_enabled and _runs_on_cudnn(x, weight, bias)):
        out: Tensor = torch.native_batch_norm(x, *arguments)[0]
        return out
    out = aten.cudnn_batch_norm(x.contiguous(memory_format=suggest_memory_format(x)), *arguments)[0]
    return out


def _runs_on_cudnn(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """fp32, and fp16 under fp32 parameters; bf16 never."""
    if weight is None or bias is None or torch.bfloat16 in (x.dtype, weight.dtype):
        return False
    return x.dim() >= 3 and x.numel() < _MAX_ELEMENTS and (x.dtype != torch.float16 or weight.dtype == torch.float32)
