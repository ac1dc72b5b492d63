"""Interpolation of position embeddings."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Shape, Tensor

__all__ = ["interpolate"]

Grads = list["Tensor | None"]


def _like_its_input(x: Tensor, target: Shape) -> Shape | None:
    """The output keeps the input's memory format: channels last where the channels are densest."""
    channels, height, width = target[1:]
    if x.strides[1] != 1 or channels == 1:
        return None
    return (channels * height * width, 1, channels * width, channels)


def interpolate(x: Tensor, height: int, width: int) -> Tensor:
    """``F.interpolate`` bicubic: x [1, C, h, w] -> [1, C, height, width]; saves sizes only; on autocast's fp32 list."""
    wide = cast_to_float32(x)
    run, shape = x.run, x.shape
    target = (*shape[:2], height, width)
    out = Tensor.empty(run, target, wide.dtype, strides=_like_its_input(wide, target))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(run, shape, grad.dtype),)

    return record(out, (wide,), backward)
