"""Dropout of elements, of residual branches, and of tokens."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor, pointwise_strides
from ..units import DType
from .pointwise import like, mul
from .shape import gather

__all__ = [
    "bernoulli_scale",
    "dropout",
    "gather_tokens",
    "keep_random_tokens",
    "rand_floor_scale",
    "random_tokens",
]

Grads = list["Tensor | None"]


def dropout(x: Tensor, rate: float) -> Tensor:
    """``F.dropout``: the input itself at rate 0 and in evaluation; else saves a byte per element (native_dropout)."""
    if rate == 0 or not x.run.training:
        return x
    if x.run.kernels.on_cpu:
        return _unfused_dropout(x)
    mask = Tensor.empty(x.run, x.shape, DType.bool, strides=pointwise_strides(x.shape, (x,)))
    out = like(x)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (like(grad),)

    return record(out, (x,), backward, (mask,), saves_result=True)


def _unfused_dropout(x: Tensor) -> Tensor:
    """On the CPU ``x * noise``, of x's type, which is saved (aten/src/ATen/native/Dropout.cpp, _dropout_impl)."""
    return mul(x, like(x))


def bernoulli_scale(x: Tensor) -> Tensor:
    """Stochastic depth: ``x * mask`` with one random number per image, of x's type, which is saved.

    In evaluation it is the input.
    """
    if not x.run.training:
        return x
    mask = Tensor.empty(x.run, (x.shape[0], *(1,) * (len(x.shape) - 1)), x.dtype)
    return mul(x, mask)


def rand_floor_scale(x: Tensor) -> Tensor:
    """transformers' stochastic depth: ``x.div(keep) * floor(rand + keep)``; saves the mask of one number per image.

    In evaluation it is the input.
    """
    if not x.run.training:
        return x
    shape = (x.shape[0], *(1,) * (len(x.shape) - 1))
    random_tensor = Tensor.empty(x.run, shape, x.dtype)
    shifted = Tensor.empty(x.run, shape, x.dtype)
    floored = Tensor.empty(x.run, shape, x.dtype)
    del random_tensor, shifted
    return mul(mul(x, 1.0), floored)


def keep_random_tokens(x: Tensor, keep: int) -> Tensor:
    """timm's PatchDropout: x [B, L, C] -> [B, keep, C] by ``gather`` over an argsort of random numbers.

    Saves its input and the index expanded to every channel as a view: 8 bytes per token of the full sequence.
    """
    return gather_tokens(x, random_tokens(x, keep))


def random_tokens(x: Tensor, keep: int) -> Tensor:
    """The positions [B, keep] that PatchDropout keeps of x [B, L, C]: a view of an argsort of random numbers."""
    batch, length, _ = x.shape
    run = x.run
    noise = Tensor.empty(run, (batch, length), DType.float32)
    sorted_noise = Tensor.empty(run, (batch, length), DType.float32)
    order = Tensor.empty(run, (batch, length), DType.int64)
    positions = run.scratch(8 * length)  # the sort's own arange
    del noise, sorted_noise, positions
    return order.alias((batch, keep), (length, 1))


def gather_tokens(x: Tensor, positions: Tensor) -> Tensor:
    """x [..., L, C] at ``positions`` [B, keep] -> [..., keep, C]; the index is expanded to every other dimension."""
    (batch, keep), (step, _) = positions.shape, positions.strides
    middle = x.shape[1:-2]
    index = positions.alias((batch, *middle, keep, x.shape[-1]), (step, *(0,) * len(middle), 1, 0))
    return gather(x, index, len(x.shape) - 2)
