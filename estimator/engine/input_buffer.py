"""Where the gradients of a node's outputs are summed (torch/csrc/autograd/input_buffer.cpp of torch 2.14)."""

from __future__ import annotations

from sys import getrefcount

from .tensor import Tensor, is_dense, pointwise_strides

__all__ = ["add"]


def add(buffer: list[Tensor | None], position: int, outputs: list[Tensor | None], i: int) -> None:
    """InputBuffer::add. The sum reuses the first gradient's memory when the buffer is its only owner.

    A view's base owns the memory too: also without grad mode, the view remembers it (VariableTypeUtils.h, as_view).
    """
    new, outputs[i] = outputs[i], None
    if new is None:
        return
    if buffer[position] is None:
        buffer[position] = new
        return
    old_is_ours = getrefcount(buffer[position]) == 2 and getrefcount(buffer[position].storage) == 2  # type: ignore[union-attr]
    old = buffer[position]
    assert old is not None
    if old_is_ours and not old.is_view and is_dense(old.shape, old.strides):
        return
    strides = pointwise_strides(old.shape, (old, new))
    buffer[position] = Tensor.empty(old.run, old.shape, old.dtype, strides=strides)
