"""A tensor without data: a storage, a shape, strides in elements, and its place in the autograd graph."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ..units import DType
from .run import Run, Storage

if TYPE_CHECKING:
    from .autograd import AccumulateGrad, Node

__all__ = ["Shape", "Tensor", "contiguous_strides", "dense_strides_like", "is_dense", "pointwise_strides"]

Shape = tuple[int, ...]


class Tensor:
    """Made by :func:`empty`, by views, or by the operators in ``vitmem.ops``; ``strides`` count elements."""

    # class-wide defaults: most tensors are views and gradients that never change them
    requires_grad = False
    is_view = False
    node: Node | None = None
    output_nr = 0
    accumulator: AccumulateGrad | None = None

    def __init__(self, storage: Storage, shape: Shape, strides: Shape, dtype: DType) -> None:
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.dtype = dtype

    @classmethod
    def empty(
        cls, run: Run, shape: Shape, dtype: DType, *, strides: Shape | None = None, kind: str | None = None
    ) -> Tensor:
        """A new allocation of ``prod(shape) * dtype.size`` bytes, dense in the order that ``strides`` give."""
        storage = Storage(run, prod(shape) * dtype.size, kind)
        return cls(storage, shape, strides or contiguous_strides(shape), dtype)

    @property
    def run(self) -> Run:
        """The play that this tensor belongs to."""
        return self.storage.run

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements shown (a view's storage may hold more)."""
        return prod(self.shape) * self.dtype.size

    @property
    def is_contiguous(self) -> bool:
        """Row-major and dense, sizes of one ignored, as ``Tensor.is_contiguous``."""
        expected = contiguous_strides(self.shape)
        return self.strides == expected or all(
            size == 1 or stride == want for size, stride, want in zip(self.shape, self.strides, expected)
        )

    def alias(self, shape: Shape, strides: Shape) -> Tensor:
        """The same storage seen with another geometry, without a place in the graph."""
        view = Tensor(self.storage, shape, strides, self.dtype)
        view.is_view = True
        return view

    def detach(self) -> Tensor:
        """The same storage and geometry without the graph: what autograd saves."""
        return Tensor(self.storage, self.shape, self.strides, self.dtype)


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Shape) -> Shape:
    """Row-major strides, sizes of zero or one counted as one (c10/util/strides.h)."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


@lru_cache(maxsize=4096)
def is_dense(shape: Shape, strides: Shape) -> bool:
    """Non-overlapping and dense: some order of the dimensions is row-major (c10/core/Contiguity.h)."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


@lru_cache(maxsize=4096)
def dense_strides_like(shape: Shape, strides: Shape) -> Shape:
    """Dense strides in the same order of dimensions: ``empty_like`` of a view, and an element-wise result.

    ``infer_dense_strides`` and ``TensorIteratorBase::reorder_dimensions`` (aten/src/ATen) sort by stride and keep the
    order of ties; broadcast dimensions (stride 0) stay where they are among their neighbours.
    """
    if is_dense(shape, strides):
        return strides
    order = list(range(len(shape)))[::-1]  # fastest first
    for i in range(1, len(order)):
        j = i
        while j > 0 and _is_faster(order[j], order[j - 1], shape, strides):
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    result = [1] * len(shape)
    step = 1
    for dim in order:
        result[dim] = step
        step *= max(shape[dim], 1)
    return tuple(result)


def _is_faster(a: int, b: int, shape: Shape, strides: Shape) -> bool:
    if strides[a] == 0 or strides[b] == 0:
        return False
    if strides[a] != strides[b]:
        return strides[a] < strides[b]
    return shape[a] < shape[b]


def pointwise_strides(shape: Shape, operands: tuple[Tensor, ...]) -> Shape:
    """Strides of an element-wise result: those of the first operand of full shape, made dense."""
    for operand in operands:
        if operand.shape == shape:
            return dense_strides_like(shape, operand.strides)
    return contiguous_strides(shape)
