"""CUDA autocast: one half-precision copy per weight, kept until the outermost context ends.

Source: aten/src/ATen/autocast_mode.cpp (``cached_cast``), torch 2.14: only fp32 leaves that require grad and are not
views are cached, and only when cast to the lower dtype. In inference mode none is.
"""

from __future__ import annotations

from ..units import DType
from .autograd import record
from .tensor import Tensor

__all__ = ["cast_loss_to_float32", "cast_to_float32", "cast_to_lower", "to"]


def to(x: Tensor, dtype: DType, *, kind: str | None = None) -> Tensor:
    """``x.to(dtype)``: ``x`` itself when it has that type, else a copy in the same memory order."""
    if x.dtype is dtype:
        return x
    out = x.converted(dtype, kind=kind)
    source = x.dtype

    def backward(saved: tuple[Tensor, ...], grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (None if grad is None else to(grad, source),)

    return record(out, (x,), backward)


def cast_to_lower(x: Tensor) -> Tensor:
    """The ``lower_precision_fp`` policy: matrix products, convolutions, attention."""
    if (autocast := x.run.autocast) is None or not x.dtype.is_floating or x.dtype is autocast.dtype:
        return x
    cacheable = x.dtype is DType.float32 and x.requires_grad and x.node is None and not x.is_view
    if not cacheable or not x.run.caches_casts:
        return to(x, autocast.dtype)
    cached = autocast.weights.get(id(x))
    if cached is None:
        cached = autocast.weights[id(x)] = to(x, autocast.dtype, kind="autocast_weights")
    return cached


def cast_to_float32(x: Tensor) -> Tensor:
    """The ``fp32`` policy: normalisations, losses, interpolation; on the CPU see :func:`cast_loss_to_float32`."""
    return to(x, DType.float32) if x.run.autocasts_to_float32 and x.dtype.is_floating else x


def cast_loss_to_float32(x: Tensor) -> Tensor:
    """``cross_entropy_loss`` is on the CPU's fp32 list as a whole: its input is cast, where CUDA casts inside."""
    return to(x, DType.float32) if x.run.autocast is not None and x.run.kernels.on_cpu else x
