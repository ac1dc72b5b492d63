"""What windows need: cyclic shift, padding of the grid, rows of a table."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor

__all__ = ["pad_grid", "roll", "rows_of"]

Grads = list["Tensor | None"]


def roll(x: Tensor) -> Tensor:
    """``torch.roll`` over two dimensions: a new tensor, saves nothing; each way the kernel borrows one more for the
    first dimension (aten/src/ATen/native/TensorTransformations.h, roll_common)."""
    return record(_rolled(x), (x,), lambda saved, grads: tuple(None if g is None else _rolled(g) for g in grads))


def _rolled(x: Tensor) -> Tensor:
    first_dimension = x.run.workspace(x.num_bytes)
    out = Tensor.empty(x.run, x.shape, x.dtype)
    del first_dimension
    return out


def pad_grid(x: Tensor, height: int, width: int) -> Tensor:
    """``F.pad(x, (0, 0, 0, ...))`` of [B, H, W, C] to [B, height, width, C]: a copy, also when nothing is added
    (aten/src/ATen/native/PadNd.cpp, constant_pad_nd); the gradient is copied back to the size of ``x``."""
    batch, _, _, channels = x.shape
    out = Tensor.empty(x.run, (batch, height, width, channels), x.dtype)
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, shape, grad.dtype),)

    return record(out, (x,), backward)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``: table [T, H], index int64 [n] -> [n, H]; saves the index, backward adds into zeros."""
    out = Tensor.empty(table.run, (index.numel, table.shape[1]), table.dtype)
    shape = table.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, shape, grad.dtype),)

    return record(out, (table,), backward, (index,))
