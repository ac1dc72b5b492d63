"""Interpolation of position embeddings."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor

__all__ = ["interpolate"]

Grads = list["Tensor | None"]


def interpolate(x: Tensor, height: int, width: int) -> Tensor:
    """``F.interpolate`` bicubic: x [1, C, h, w] -> [1, C, height, width]; saves sizes only; on autocast's fp32 list."""
    wide = cast_to_float32(x)
    run, shape = x.run, x.shape
    out = Tensor.empty(run, (*shape[:2], height, width), wide.dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(run, shape, grad.dtype),)

    return record(out, (wide,), backward)
