"""The kernel that CUDA picks behind ``scaled_dot_product_attention``, called as CUDA calls it.

Sources: torch 2.14, ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp. Each kernel is one operator here, so
what it borrows inside is not seen; what it saves is.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["SdpaChoice", "scaled_dot_product_attention"]

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT = 8


@dataclasses.dataclass(slots=True)
class SdpaChoice:
    """Which kernel is asked for (``auto``: by dtype and mask, generation sm80); ``calls`` counts what ran."""

    kernel: str = "auto"
    calls: Counter[str] = dataclasses.field(default_factory=Counter)

    def pick(self, query: Tensor, key: Tensor, mask: Tensor | None) -> str:
        """The first feasible kernel in CUDA's order: flash, efficient, math."""
        kernels = ("flash", "efficient") if self.kernel == "auto" else (self.kernel,)
        for kernel in kernels:
            if _feasible(kernel, query, mask):
                return kernel
        return "math"


def _feasible(kernel: str, query: Tensor, mask: Tensor | None) -> bool:
    width = query.shape[-1]
    half = query.dtype in _HALF
    if query.dim() != 4:
        return False
    if kernel == "flash":
        return half and mask is None and width <= 256
    if kernel == "efficient":
        return width % (8 if half else 4) == 0
    if kernel == "cudnn":
        return half and width % 8 == 0 and width <= 128 and (mask is None or not mask.requires_grad)
    return kernel == "math"


def scaled_dot_product_attention(
    choice: SdpaChoice,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``F.scaled_dot_product_attention`` as CUDA runs it."""
    kernel = choice.pick(query, key, attn_mask)
    choice.calls[kernel] += 1
    mask = _additive(attn_mask, query.dtype)
    if kernel == "math":
        return _math(query, key, value, mask, dropout_p, scale)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (query, key, value, mask))
    mask = _expanded(mask, query, key, pad=kernel == "efficient")
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, saves, dropout_p, is_causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, saves, dropout_p, is_causal, scale=scale
    )[0]


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, scale: float | None) -> Tensor:
    """Head widths are padded to a multiple of 8, the result is a slice (``pad_last_dim``)."""
    width = query.shape[-1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    excess = -width % 8
    if excess:
        query, key, value = (F.pad(t, (0, excess)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if excess else out


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask becomes 0 and -inf in the queries' type: one copy (``convert_boolean_attn_mask``)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _expanded(mask: Tensor | None, query: Tensor, key: Tensor, *, pad: bool) -> Tensor | None:
    """``preprocess_mask``: rows padded to a multiple of 8 elements if their strides are not, then a view per query."""
    if mask is None:
        return None
    if pad and any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:-1]) or pad and mask.stride(-1) != 1:
        last = mask.shape[-1]
        mask = F.pad(mask, (0, _MASK_ALIGNMENT - last % _MASK_ALIGNMENT))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """``_scaled_dot_product_attention_math``: 16-bit inputs are computed in fp32, the mask is added in place, and the
    probabilities are also returned in the inputs' type, which nobody asked for."""
    origin = query.dtype
    if origin in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scaled = query * root
    scores = torch.matmul(scaled, key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    scores = aten._safe_softmax(scores, -1)
    if dropout > 0:
        scores = torch.native_dropout(scores, dropout, True)[0]
    out = torch.matmul(scores, value).to(origin)
    scores = scores.to(origin)
    return out
