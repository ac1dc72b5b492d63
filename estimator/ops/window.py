"""What windows need: cyclic shift, padding of the grid, rows of a table."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor, dense_strides_like

__all__ = ["pad_grid", "pad_start", "roll", "rows_of", "rows_of_host_index"]

Grads = list["Tensor | None"]


def roll(x: Tensor) -> Tensor:
    """``torch.roll`` over two dimensions: a new tensor, saves nothing; each way the kernel borrows one more for the
    first dimension (aten/src/ATen/native/TensorTransformations.h, roll_common)."""
    return record(_rolled(x), (x,), lambda saved, grads: tuple(None if g is None else _rolled(g) for g in grads))


def _rolled(x: Tensor) -> Tensor:
    first_dimension = x.run.scratch(x.num_bytes)
    out = Tensor.empty(x.run, x.shape, x.dtype)
    del first_dimension
    return out


def pad_grid(x: Tensor, height: int, width: int) -> Tensor:
    """``F.pad(x, (0, 0, 0, ...))`` of [B, H, W, C] to [B, height, width, C]: a copy, also when nothing is added, and
    then in the order of ``x``; the gradient is copied back to the size of ``x`` in its own order
    (aten/src/ATen/native/PadNd.cpp, constant_pad_nd)."""
    batch, _, _, channels = shape = x.shape
    padded = (batch, height, width, channels)
    strides = dense_strides_like(shape, x.strides) if padded == shape else None
    out = Tensor.empty(x.run, padded, x.dtype, strides=strides)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, shape, grad.dtype, strides=dense_strides_like(shape, grad.strides)),)

    return record(out, (x,), backward)


def pad_start(x: Tensor, count: int) -> Tensor:
    """``F.pad(x, (count, 0, count, 0))``: the last two dimensions grow at their start, a row-major copy; the gradient
    is sliced back and cloned (aten/src/ATen/native/PadNd.cpp, constant_pad_nd)."""
    out = Tensor.empty(x.run, (*x.shape[:-2], x.shape[-2] + count, x.shape[-1] + count), x.dtype)
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, shape, grad.dtype, strides=dense_strides_like(shape, grad.strides)),)

    return record(out, (x,), backward)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``: table [T, H], index int64 [n] -> [n, H]; saves the index, backward adds into zeros in an order
    that it sorts."""
    out = Tensor.empty(table.run, (index.numel, table.shape[1]), table.dtype)
    shape = table.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        grad_table = Tensor.empty(grad.run, shape, grad.dtype)
        _accumulate_rows(grad, shape[0])
        return (grad_table,)

    return record(out, (table,), backward, (index,))


def _accumulate_rows(grad: Tensor, rows: int) -> None:
    """What ``index_put_(accumulate=True)`` borrows to add ``grad`` [n, H] into a table of ``rows``: the wrapped index,
    the linear one from it, a row-major copy, the sorted index, an arange, the order, and what cub sorts them with
    (aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel)."""
    wrapped = grad.run.workspace(8 * grad.shape[0])
    linear = grad.run.workspace(8 * grad.shape[0])
    del wrapped
    _sorted_sum(grad, rows)
    del linear


def _sorted_sum(grad: Tensor, rows: int) -> None:
    run, count = grad.run, grad.shape[0]
    copy = run.workspace(0 if grad.is_contiguous else grad.num_bytes)
    order = run.workspace(8 * count, 8 * count, 8 * count, run.kernels.sort_scratch(count, rows))
    del copy, order


def rows_of_host_index(table: Tensor, count: int) -> Tensor:
    """``table[index]`` with an int64 index [count] in host memory: table [T, H] -> [count, H].

    Autograd saves the index where it is, so nothing on the device; forward and backward each borrow a device copy of
    it (aten/src/ATen/native/TensorAdvancedIndexing.cpp, ``make_info``, and IndexingUtils.h): backward of the linear
    index, which is made on the host.
    """
    run, shape = table.run, table.shape
    on_device = run.workspace(8 * count)
    out = Tensor.empty(run, (count, shape[1]), table.dtype)
    del on_device

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        out = Tensor.empty(run, shape, grad.dtype)
        on_device = run.workspace(8 * count)
        _sorted_sum(grad, shape[0])
        del on_device
        return (out,)

    return record(out, (table,), backward)
