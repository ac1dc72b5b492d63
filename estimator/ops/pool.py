"""Pooling over the grid."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from .reduce import mean
from .shape import view

__all__ = ["adaptive_avg_pool2d"]

Grads = list["Tensor | None"]


def adaptive_avg_pool2d(x: Tensor) -> Tensor:
    """``F.adaptive_avg_pool2d(x, 1)``: [B, C, H, W] -> [B, C, 1, 1], a mean.

    A channels-last input gets its result back by ``as_strided``, whose gradient is copied into new zeros
    (aten/src/ATen/native/AdaptiveAveragePooling.cpp; FunctionsManual.cpp, as_strided_backward).
    """
    batch, channels, _, _ = x.shape
    out = mean(x, 2, 3)
    if x.strides[1] != 1 or channels == 1:
        return view(out, batch, channels, 1, 1)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, (batch, channels), grad.dtype),)

    return record(out.alias((batch, channels, 1, 1), (channels, 1, channels, channels)), (out,), backward)
