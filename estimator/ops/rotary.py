"""What rotary position embeddings are made of: sine and cosine, a change of sign, repeated channels or heads."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from .pointwise import elementwise, like, sub_from
from .shape import contiguous, expand, view

__all__ = ["cos", "neg", "repeat_interleave", "sin"]

Grads = list["Tensor | None"]


def neg(x: Tensor) -> Tensor:
    """``-x``: saves nothing; the gradient is negated, one new tensor (NegBackward0)."""
    return sub_from(x)


def sin(x: Tensor) -> Tensor:
    """``x.sin()``: saves its input; backward makes the cosine first (SinBackward0)."""

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        cosine = like(saved[0])
        return (elementwise(grad, cosine),)

    return record(like(x), (x,), backward, (x,))


def cos(x: Tensor) -> Tensor:
    """``x.cos()``: saves its input; backward makes the sine and its negative first (CosBackward0)."""

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        sine = like(saved[0])
        negative = like(sine)
        return (elementwise(grad, negative),)

    return record(like(x), (x,), backward, (x,))


def repeat_interleave(x: Tensor, repeats: int, dim: int) -> Tensor:
    """``x.repeat_interleave(repeats, dim)`` for ``repeats`` > 1: a copy of an expanded view, saves nothing.

    The gradient is summed over the repeats (aten/src/ATen/native/Repeat.cpp).
    """
    before, after = x.shape[: dim + 1], x.shape[dim + 1 :]
    copies = contiguous(expand(view(x, *before, 1, *after), *before, repeats, *after))
    return view(copies, *before[:-1], before[-1] * repeats, *after)
