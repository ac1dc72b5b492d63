"""Layer normalisation's backward as CUDA's kernel lays it out.

Meta tensors run a decomposition whose input gradient has the layout of the output's gradient. The kernel makes it
row-major (torch 2.14, ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["in_row_major"]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def in_row_major(gradients: Gradients) -> Gradients:
    """The gradients of input, weight and bias, the first row-major."""
    grad_x, *affine = gradients
    if grad_x is None or grad_x.is_contiguous():
        return gradients
    return (torch.empty_like(grad_x, memory_format=torch.contiguous_format), affine[0], affine[1])
