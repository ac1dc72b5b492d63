"""RMS normalisation as CUDA runs it: one kernel that saves one fp32 number per row, not a composite of six operators.

``aten::_fused_rms_norm`` has a kernel for CUDA only (torch 2.14, ATen/native/layer_norm.cpp); the meta device would run
the composite and keep its intermediate results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["fused_rms_norm"]


class _FusedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, dims: int) -> Tensor:
        rows = x.shape[: x.dim() - dims]
        with torch.enable_grad():  # by its grad mode the tracker knows a recomputed forward; a Function's is off
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            rstd = torch.empty((*rows, *(1,) * dims), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        wants_x, wants_weight, _ = ctx.needs_input_grad
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device) if wants_x else None
        grad_weight = torch.empty_like(weight) if wants_weight else None
        return grad_x, grad_weight, None


def fused_rms_norm(x: Tensor, shape: Any, weight: Tensor | None) -> Tensor:
    """``torch.rms_norm(x, shape, weight)``: out like ``x`` but contiguous; saves ``x`` and fp32 [..., 1]."""
    out: Tensor = _FusedRmsNorm.apply(x, weight, len(shape))
    return out
