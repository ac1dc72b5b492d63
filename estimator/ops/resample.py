"""Interpolation of position embeddings."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Shape, Tensor

__all__ = ["interpolate"]

Grads = list["Tensor | None"]


def _like(x: Tensor, target: Shape) -> Shape | None:
    """The output keeps the input's memory format: channels last where the channels are densest."""
    channels, height, width = target[1:]
    if x.strides[1] != 1 or channels == 1:
        return None
    return (channels * height * width, 1, channels * width, channels)


def interpolate(x: Tensor, height: int, width: int, *, mode: str = "bicubic", antialias: bool = False) -> Tensor:
    """``F.interpolate``: x [1, C, h, w] -> [1, C, height, width]; saves sizes only; on autocast's fp32 list.

    The bilinear kernels know channels last (backward from 4 channels on, and any that keeps its size). The bicubic
    ones read and write row-major: backward borrows a copy of its gradient, with ``antialias`` forward one of the input
    and one of the output (aten/src/ATen/native/cuda/UpSample{Bilinear,Bicubic}2d.cu).
    """
    wide = cast_to_float32(x)
    run, shape = x.run, x.shape
    target = (*shape[:2], height, width)
    out = Tensor.empty(run, target, wide.dtype, strides=_like(wide, target))
    borrowed = [y for y in (out, wide) if antialias and not y.is_contiguous]
    copies = run.workspace(*[y.num_bytes for y in borrowed])
    del borrowed, copies

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        strides = _like(grad, shape) if mode == "bilinear" else None
        out = Tensor.empty(run, shape, grad.dtype, strides=strides)
        narrow = strides is not None and shape[1] < 4 and shape != target
        zeros = run.workspace(out.num_bytes if narrow else 0)
        copy = run.workspace(grad.num_bytes if narrow or not (strides or grad.is_contiguous) else 0)
        del zeros, copy
        return (out,)

    return record(out, (wide,), backward)
