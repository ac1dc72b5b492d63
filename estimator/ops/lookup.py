"""Tensors of indices: rows of an embedding table, and sorting orders."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..units import DType

__all__ = ["argsort", "embedding"]

Grads = list["Tensor | None"]

#: Up to here one kernel adds the gradient's rows; beyond, the indices are sorted and summed by segments.
_UNSORTED_INDICES = 3072


def embedding(weight: Tensor, index: Tensor) -> Tensor:
    """``F.embedding``: weight [T, C], index int64 [...] -> [..., C]; saves the index, backward adds into zeros.

    Many indices are sorted: two int64 and four more per index, and an fp32 copy of the gradient, are borrowed
    (aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu).
    """
    run, table, count = weight.run, weight.shape, index.numel
    out = Tensor.empty(run, (*index.shape, table[1]), weight.dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        many = count > _UNSORTED_INDICES
        copy = run.workspace(0 if grad.is_contiguous else grad.num_bytes)
        order = run.workspace(*(8 * count,) * 2) if many else []
        grad_weight = Tensor.empty(run, table, grad.dtype)
        segments = run.workspace(*(8 * count,) * 4, 4 * grad.numel) if many else []
        del copy, order, segments
        return (grad_weight,)

    return record(out, (weight,), backward, (index,))


def argsort(x: Tensor) -> Tensor:
    """``torch.argsort`` over the last dimension: int64 like ``x``; the sorted values are made too and dropped.

    The kernel borrows an arange of one row (aten/src/ATen/native/cuda/Sort.cpp, fillSliceWithIndex).
    """
    values = Tensor.empty(x.run, x.shape, x.dtype)
    order = Tensor.empty(x.run, x.shape, DType.int64)
    arange = x.run.workspace(8 * x.shape[-1])
    del values, arange
    return order
