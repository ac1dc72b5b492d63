"""What cosine attention adds: normalised vectors, a clamped scale, and an activation in place."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..units import DType
from .pointwise import elementwise, like
from .shape import expand

__all__ = ["clamp", "exp", "normalize", "relu_"]

Grads = list["Tensor | None"]


def normalize(x: Tensor) -> Tensor:
    """``F.normalize(x, dim=-1)``: the norm [..., 1], its clamp, and a division that saves input and clamped norm.

    On autocast's list of fp32 results, the norm of a 16-bit input is fp32, and so is the quotient.
    """
    denominator = expand(clamp(_vector_norm(x)), *x.shape)
    return _quotient(x, denominator)


def _vector_norm(x: Tensor) -> Tensor:
    """``linalg_vector_norm`` over the last dimension: saves input and result; backward divides, masks the zeros, and
    multiplies (torch/csrc/autograd/FunctionsManual.cpp, norm_backward)."""
    run = x.run
    dtype = DType.float32 if run.autocasts_to_float32 else x.dtype
    out = Tensor.empty(run, (*x.shape[:-1], 1), dtype)
    scratch = run.workspace(*run.kernels.sum_scratch(x.shape, x.strides, out.shape))
    del scratch

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        direction = elementwise(saved[0], saved[1])
        is_zero = Tensor.empty(run, saved[1].shape, DType.bool)
        grad_x = elementwise(grad, direction)
        del direction, is_zero
        return (grad_x,)

    return record(out, (x,), backward, (x, out))


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` with both gradients: saves both. That of ``b`` is ``-grad * ((a / b) / b)``, all four at once, and is
    made first (FunctionsManual.cpp, div_tensor_other_backward)."""

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        once = elementwise(saved[0], saved[1])
        twice = elementwise(once, saved[1])
        negated = like(grad)
        grad_b = elementwise(negated, twice)
        del once, twice, negated
        return elementwise(grad, saved[1]), grad_b

    return record(elementwise(a, b), (a, b), backward, (a, b))


def clamp(x: Tensor) -> Tensor:
    """``clamp`` to one bound: saves its input; backward selects by a byte mask between gradient and a zero scalar."""
    run = x.run

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        zero = Tensor.empty(run, (), grad.dtype)
        inside = Tensor.empty(run, saved[0].shape, DType.bool)
        grad_x = like(grad)
        del zero, inside
        return (grad_x,)

    return record(like(x), (x,), backward, (x,))


def exp(x: Tensor) -> Tensor:
    """``x.exp()``: saves its output (ExpBackward0); on autocast's fp32 list."""
    wide = cast_to_float32(x)
    out = like(wide)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (elementwise(grad, saved[0]),)

    return record(out, (wide,), backward, (out,))


def relu_(x: Tensor) -> Tensor:
    """``F.relu(x, inplace=True)``: nothing new, the result is saved.

    A linear layer returns a view. Writing into one puts ``CopySlices`` behind its base and ``AsStridedBackward0``
    behind the view (torch/csrc/autograd/{variable,functions/tensor}.cpp): backward fills a base of zeros, copies it,
    clones the part that was written, and copies the part's gradient in.
    """
    if not x.is_view:
        return _relu_of_base(x)
    run, shape, strides = x.run, x.shape, x.strides
    written = x.alias(shape, strides)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        result = Tensor.empty(run, shape, grad.dtype, strides=strides)
        part = like(result)
        grad_part = elementwise(part, saved[0])
        del part, grad_part
        return (result,)

    record(written, (x,), backward, (written,))
    return record(x.alias(shape, strides), (written,), _zeros_with_the_part)


def _relu_of_base(x: Tensor) -> Tensor:
    """What owns its memory gets the operator's own node: threshold_backward makes the gradient."""
    written = x.detach()

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (elementwise(grad, saved[0]),)

    return record(written, (x,), backward, (written,))


def _zeros_with_the_part(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
    """``as_strided_backward`` of a view that shows its whole base: new zeros, and the gradient copied in."""
    (grad,) = grads
    assert grad is not None
    return (Tensor.empty(grad.run, grad.shape, grad.dtype),)
