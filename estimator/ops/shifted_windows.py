"""What torchvision's shifted windows add: a mask made anew in each forward, and a clone of which a part is zeroed."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..units import DType
from .pointwise import add, like
from .shape import permute, reshape, view

__all__ = ["clone_with_zeros", "window_mask"]

Grads = list["Tensor | None"]


def clone_with_zeros(x: Tensor, count: int) -> Tensor:
    """``x.clone()`` with ``count`` of its elements set to zero through a view.

    Writing into a view puts ``CopySlices`` behind the clone (torch/csrc/autograd/functions/tensor.cpp): backward copies
    the gradient, clones the part that was written, and makes zeros for it.
    """
    out = Tensor.empty(x.run, x.shape, x.dtype)
    shape, strides, run = out.shape, out.strides, x.run

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        result = Tensor.empty(run, shape, grad.dtype, strides=strides)
        part = Tensor.empty(run, (count,), grad.dtype)
        zeros = Tensor.empty(run, (count,), grad.dtype)
        del part, zeros
        return (result,)

    return record(out, (x,), backward)


def window_mask(like_x: Tensor, grid: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """torchvision's ``attn_mask`` for a grid of whole windows: [windows, N, N] of x's type, without a gradient.

    Writes the numbers of nine regions in place and compares the tokens of each window.
    """
    (height, width), (rows, columns) = grid, window
    mask = Tensor.empty(like_x.run, grid, like_x.dtype)
    mask = view(mask, height // rows, rows, width // columns, columns)
    mask = reshape(permute(mask, 0, 2, 1, 3), -1, rows * columns)
    windows, tokens = mask.shape
    mask = add(view(mask, windows, 1, tokens), view(mask, windows, tokens, 1))
    return _masked_fill(_masked_fill(mask, mask), mask)


def _masked_fill(x: Tensor, compared: Tensor) -> Tensor:
    """``x.masked_fill(compared != 0, number)``."""
    chosen = Tensor.empty(x.run, compared.shape, DType.bool)
    out = like(x)
    del chosen
    return out
