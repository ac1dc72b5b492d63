"""The kernel that CUDA picks behind ``scaled_dot_product_attention``, called as CUDA calls it.

Sources: torch 2.14, ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp. Each kernel is one operator here, so
what it borrows inside is not seen; what it saves is.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from vitmem.errors import InvalidRequest

__all__ = ["SdpaChoice", "scaled_dot_product_attention", "with_host_seeds"]

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT = 8


@dataclasses.dataclass(slots=True)
class SdpaChoice:
    """Which kernel is asked for (``auto``: by dtype and mask, generation sm80); ``calls`` counts what ran."""

    kernel: str = "auto"
    calls: Counter[str] = dataclasses.field(default_factory=Counter)

    def pick(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
        """The first feasible kernel in CUDA's order: flash, efficient, math.

        All but math want the last dimension of queries, keys and values dense (check_last_dim_stride_equals_1_dense).
        """
        dense = all(tensor.stride(-1) == 1 for tensor in (query, key, value))
        for kernel in ("flash", "efficient", "math") if self.kernel == "auto" else (self.kernel,):
            if _feasible(kernel, query, mask) and (dense or kernel == "math"):
                return kernel
        raise InvalidRequest(
            f"the {self.kernel} attention kernel cannot run {query.dtype} heads of width {query.shape[-1]}"
            f"{' with a mask' if mask is not None else ''}{'' if dense else ' whose channels are apart in memory'}; "
            "leave sdpa_kernel on auto"
        )


def _feasible(kernel: str, query: Tensor, mask: Tensor | None) -> bool:
    width = query.shape[-1]
    half = query.dtype in _HALF
    if query.dim() != 4:
        return kernel == "math"
    if kernel == "flash":
        return half and mask is None and width <= 256
    if kernel == "efficient":
        return width % (8 if half else 4) == 0
    if kernel == "cudnn":
        return half and width % 8 == 0 and width <= 128 and (mask is None or not mask.requires_grad)
    return kernel == "math"


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """The arguments in the order of ``F.scaled_dot_product_attention``."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def scaled_dot_product_attention(choice: SdpaChoice, *args: Any, **kwargs: Any) -> Tensor:
    """``F.scaled_dot_product_attention`` as CUDA runs it."""
    call = _Call(*args, **kwargs)
    kernel = choice.pick(call.query, call.key, call.value, call.attn_mask)
    choice.calls[kernel] += 1
    return _KERNELS[kernel](call)


def _flash(call: _Call) -> Tensor:
    """Head widths are padded to a multiple of 8, the result is a slice (``pad_last_dim``)."""
    query, key, value = call.query, call.key, call.value
    width = query.shape[-1]
    scale = 1 / math.sqrt(width) if call.scale is None else call.scale
    excess = -width % 8
    if excess:
        query, key, value = (F.pad(tensor, (0, excess)) for tensor in (query, key, value))
    outputs = aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout_p, call.is_causal, False, scale=scale
    )
    out: Tensor = outputs[0]
    return out[..., :width] if excess else out


def _efficient(call: _Call) -> Tensor:
    mask = _expanded(_aligned(_additive(call.attn_mask, call.query.dtype)), call)
    outputs = aten._scaled_dot_product_efficient_attention(
        call.query, call.key, call.value, mask, _saves(call), call.dropout_p, call.is_causal, scale=call.scale
    )
    out: Tensor = outputs[0]
    return out


def with_host_seeds(outputs: Any, args: Any) -> Any:
    """What the efficient kernel returns, given its arguments: with dropout, seed and offset are scalars of the host
    unless a graph is captured (ATen/native/transformers/cuda/attention.cu)."""
    dropout_p = args[5] if len(args) > 5 else 0.0
    if not dropout_p:
        return outputs
    out, log_sum_exp, *seeds = outputs
    return (out, log_sum_exp, *(torch.zeros((), dtype=seed.dtype, device="cpu") for seed in seeds))


def _cudnn(call: _Call) -> Tensor:
    mask = _expanded(_additive(call.attn_mask, call.query.dtype), call)
    outputs = aten._scaled_dot_product_cudnn_attention(
        call.query, call.key, call.value, mask, _saves(call), call.dropout_p, call.is_causal, False, scale=call.scale
    )
    out: Tensor = outputs[0]
    return out


def _saves(call: _Call) -> bool:
    """Whether the kernel writes the log-sum-exp that a backward pass needs: also for a mask alone that is learnt."""
    tensors = (call.query, call.key, call.value, call.attn_mask)
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _math(call: _Call) -> Tensor:
    """``_scaled_dot_product_attention_math``: 16-bit inputs are computed in fp32, the mask is added in place, and the
    probabilities are also returned in the inputs' type, which nobody asked for."""
    query, key, value = call.query, call.key, call.value
    origin = query.dtype
    mask = _additive(call.attn_mask, origin)
    if origin in _HALF:
        query, key, value = query.float(), key.float(), value.float()
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if call.scale is None else call.scale)
    scaled = query * root
    scores = torch.matmul(scaled, key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    scores = aten._safe_softmax(scores, -1)
    if call.dropout_p > 0:
        scores = torch.native_dropout(scores, call.dropout_p, True)[0]
    out = torch.matmul(scores, value).to(origin)
    scores = scores.to(origin)
    return out


_KERNELS: Mapping[str, Callable[[_Call], Tensor]] = {
    "flash": _flash,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "math": _math,
}


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask becomes 0 and -inf in the queries' type: one copy (``convert_boolean_attn_mask``)."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def _aligned(mask: Tensor | None) -> Tensor | None:
    """``pad_bias``: a copy with rows padded to a multiple of 8 elements, if the mask's strides are not."""
    if mask is None or (mask.stride(-1) == 1 and all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1])):
        return mask
    last = mask.shape[-1]
    return F.pad(mask, (0, _MASK_ALIGNMENT - last % _MASK_ALIGNMENT))[..., :last]


def _expanded(mask: Tensor | None, call: _Call) -> Tensor | None:
    return None if mask is None else mask.expand(*call.query.shape[:3], call.key.shape[2])
