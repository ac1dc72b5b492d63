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

    def converted(self, dtype: DType, *, kind: str | None = None) -> Tensor:
        """A copy of another type in the same memory order, without a place in the graph."""
        strides = dense_strides_like(self.shape, self.strides)
        return Tensor.empty(self.storage.run, self.shape, dtype, strides=strides, kind=kind)

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
    """Dense strides in the same order of dimensions: ``empty_like`` of a view (ATen, ``infer_dense_strides``)."""
    return strides if is_dense(shape, strides) else _iterated_strides(shape, (strides,))


@lru_cache(maxsize=4096)
def _iterated_strides(shape: Shape, operands: tuple[Shape, ...]) -> Shape:
    """``TensorIteratorBase::reorder_dimensions`` (aten/src/ATen/TensorIterator.cpp): an insertion sort of the
    dimensions by stride, each operand deciding what those before it leave open. What all leave open stays in order."""
    order = list(range(len(shape)))[::-1]  # fastest first
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            comparison = _compared(order[j], order[at], shape, operands)
            if comparison > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif comparison < 0:
                break
    result = [1] * len(shape)
    step = 1
    for dim in order:
        result[dim] = step
        step *= max(shape[dim], 1)
    return tuple(result)


def _compared(a: int, b: int, shape: Shape, operands: tuple[Shape, ...]) -> int:
    """1 if dimension ``a`` belongs outside ``b``, -1 if inside, 0 if nobody knows; broadcast dimensions say nothing."""
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


def _broadcast_strides(x: Tensor, shape: Shape) -> Shape:
    missing = len(shape) - len(x.shape)
    own = (0 if have == 1 and want != 1 else step for have, step, want in zip(x.shape, x.strides, shape[missing:]))
    return (*(0,) * missing, *own)


def pointwise_strides(shape: Shape, operands: tuple[Tensor, ...]) -> Shape:
    """Strides of an element-wise result: row-major if all operands are, else in the order of their dimensions."""
    if all(x.shape == shape for x in operands):
        if all(x.is_contiguous for x in operands):
            return contiguous_strides(shape)
        strides = operands[0].strides
        if all(x.strides == strides for x in operands):
            return dense_strides_like(shape, strides)
    return _iterated_strides(shape, tuple([_broadcast_strides(x, shape) for x in operands]))
