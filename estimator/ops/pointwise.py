"""Element-wise operators and activations."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.run import Storage
from ..engine.tensor import Shape, Tensor, pointwise_strides
from ..units import DType

__all__ = [
    "add",
    "add_to_view_",
    "div",
    "div_",
    "gelu",
    "mul",
    "power",
    "quick_gelu",
    "relu",
    "sigmoid",
    "silu",
    "sub_from",
    "tanh",
]

Grads = list["Tensor | None"]

_WIDTH = {
    DType.bool: 0,
    DType.uint8: 1,
    DType.int64: 2,
    DType.float16: 3,
    DType.bfloat16: 3,
    DType.float32: 4,
    DType.float64: 5,
}


def promoted(a: Tensor, b: Tensor) -> DType:
    """Type promotion between tensors: a scalar tensor does not widen a tensor of its own category."""
    if a.dtype is b.dtype:
        return a.dtype
    if not a.shape and b.shape and b.dtype.is_floating:
        return b.dtype
    if not b.shape and a.shape and a.dtype.is_floating:
        return a.dtype
    if _WIDTH[a.dtype] == _WIDTH[b.dtype]:
        return DType.float32
    return max(a.dtype, b.dtype, key=lambda d: _WIDTH[d])


def _broadcast(a: Shape, b: Shape) -> Shape:
    length = max(len(a), len(b))
    a, b = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    return tuple(max(x, y) if 0 not in (x, y) else 0 for x, y in zip(a, b))


def elementwise(a: Tensor, b: Tensor) -> Tensor:
    """The result of a binary kernel, outside the graph.

    The CPU casts operands of two types before it begins (aten/src/ATen/TensorIterator.cpp, ``compute_types``); CUDA's
    kernels cast element by element.
    """
    shape = a.shape if a.shape == b.shape else _broadcast(a.shape, b.shape)
    dtype = promoted(a, b)
    casts = _casts((a, b), dtype) if a.dtype is not b.dtype and a.run.kernels.on_cpu else ()
    out = Tensor.empty(a.run, shape, dtype, strides=pointwise_strides(shape, (a, b)))
    del casts
    return out


def _casts(operands: tuple[Tensor, ...], dtype: DType) -> list[Storage]:
    return operands[0].run.scratch(*(x.numel * dtype.size for x in operands if x.dtype is not dtype))


def like(x: Tensor) -> Tensor:
    """The result of a unary kernel, outside the graph."""
    return Tensor.empty(x.run, x.shape, x.dtype, strides=pointwise_strides(x.shape, (x,)))


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b`` (or ``a - b``): saves nothing; both gradients are the incoming one, cast and summed to each input."""
    return record(elementwise(a, b), (a, b), lambda saved, grads: (grads[0], grads[0]))


def add_to_view_(x: Tensor, other: Tensor) -> Tensor:
    """``x += other`` of one shape and type, where ``x`` is a view of all of a tensor that is not a leaf.

    Backward makes the view's gradient whole (AsStridedBackward0), copies it for the viewed tensor, and clones it for
    ``other`` (CopySlices, torch/csrc/autograd/functions/tensor.cpp).
    """
    shape, run = x.shape, x.run

    def copy_slices(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return Tensor.empty(run, shape, grad.dtype), Tensor.empty(run, shape, grad.dtype)

    def as_strided(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(run, shape, grad.dtype),)

    changed = record(x.alias(shape, x.strides), (x, other), copy_slices)
    return record(x.alias(shape, x.strides), (changed,), as_strided)


def mul(a: Tensor, b: Tensor | float) -> Tensor:
    """``a * b``: each operand is saved only for the other's gradient; a number saves nothing."""
    if not isinstance(b, Tensor):
        return _scaled(a)
    keep_a, keep_b = b.requires_grad, a.requires_grad
    saved = (*((a,) if keep_a else ()), *((b,) if keep_b else ()))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        grad_b = elementwise(grad, saved[0]) if keep_a else None
        grad_a = elementwise(grad, saved[-1]) if keep_b else None
        return grad_a, grad_b

    return record(elementwise(a, b), (a, b), backward, saved)


def _scaled(x: Tensor) -> Tensor:
    return record(like(x), (x,), lambda saved, grads: tuple(None if g is None else like(g) for g in grads))


def div_(x: Tensor) -> Tensor:
    """``x /= number``: in place, saves nothing; backward makes the gradient divided."""
    divided = x.alias(x.shape, x.strides)
    return record(divided, (x,), lambda saved, grads: tuple(None if g is None else like(g) for g in grads))


def power(x: Tensor) -> Tensor:
    """``x ** n`` for a number, on autocast's fp32 list: saves its input; backward makes ``x ** (n - 1)``, n times that,
    and the gradient (torch/csrc/autograd/FunctionsManual.cpp, pow_backward)."""
    wide = cast_to_float32(x)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        lower = like(saved[0])
        derivative = like(saved[0])
        grad_x = elementwise(grad, derivative)
        del lower, derivative
        return (grad_x,)

    return record(like(wide), (wide,), backward, (wide,))


def div(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` where only ``a`` needs a gradient: saves ``b``."""

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return elementwise(grad, saved[0]), None

    return record(elementwise(a, b), (a, b), backward, (b,))


def sub_from(x: Tensor) -> Tensor:
    """``number - x`` or ``-x``."""
    return _scaled(x)


def _activation(x: Tensor, *, saves_output: bool) -> Tensor:
    """One new tensor forward, one new tensor backward, and either the input or the output is saved."""
    out = like(x)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (elementwise(grad, saved[0]),)

    return record(out, (x,), backward, (out if saves_output else x,))


def gelu(x: Tensor) -> Tensor:
    """``F.gelu``, exact or tanh: saves its input (GeluBackward0)."""
    return _activation(x, saves_output=False)


def silu(x: Tensor) -> Tensor:
    """``F.silu``: saves its input (SiluBackward0)."""
    return _activation(x, saves_output=False)


def relu(x: Tensor) -> Tensor:
    """``F.relu``: saves its output (ReluBackward0)."""
    return _activation(x, saves_output=True)


def sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid``: saves its output (SigmoidBackward0)."""
    return _activation(x, saves_output=True)


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh``: saves its output (TanhBackward0)."""
    return _activation(x, saves_output=True)


def quick_gelu(x: Tensor) -> Tensor:
    """``x * torch.sigmoid(1.702 * x)`` as CLIP writes it."""
    return mul(x, sigmoid(mul(x, 1.702)))
