"""Views and copies. A view allocates nothing and its backward is a view; what is not a view is a full copy."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ..engine.autograd import Saved, record, record_all
from ..engine.tensor import Shape, Tensor, contiguous_strides
from .reduce import reduced

__all__ = [
    "cat", "chunk", "contiguous", "expand", "flatten", "gather", "narrow", "permute", "repeat", "reshape", "select",
    "split", "stack", "transpose", "unbind", "unsqueeze", "view", "view_strides",
]  # fmt: skip

Grads = list["Tensor | None"]


@lru_cache(maxsize=4096)
def view_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides of ``view(new_shape)``, or None when that needs a copy (aten/src/ATen/TensorUtils.cpp, computeStride)."""
    if prod(shape) == 0:
        return contiguous_strides(new_shape)
    result = [0] * len(new_shape)
    at = len(new_shape) - 1
    chunk_stride = strides[-1] if strides else 1
    from_size = to_size = 1
    for dim in range(len(shape) - 1, -1, -1):
        from_size *= shape[dim]
        if dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != from_size * chunk_stride):
            while at >= 0 and (to_size < from_size or new_shape[at] == 1):
                result[at] = to_size * chunk_stride
                to_size *= new_shape[at]
                at -= 1
            if to_size != from_size:
                return None
            if dim > 0:
                chunk_stride = strides[dim - 1]
                from_size = to_size = 1
    return tuple(result) if at == -1 else None


def _resolved(x: Tensor, shape: Shape) -> Shape:
    if -1 not in shape:
        return shape
    known = -prod(shape)
    return tuple(x.numel // known if size == -1 else size for size in shape)


def view(x: Tensor, *shape: int) -> Tensor:
    """``x.view(shape)``: saves only sizes; the gradient is reshaped back, which copies when its layout demands it."""
    target = _resolved(x, shape)
    strides = view_strides(x.shape, x.strides, target)
    assert strides is not None, f"view({target}) of a tensor of shape {x.shape} and strides {x.strides} needs a copy"
    source = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (None if grad is None else _reshaped(grad, source),)

    return record(x.alias(target, strides), (x,), backward)


def _reshaped(x: Tensor, shape: Shape) -> Tensor:
    """``reshape`` outside the graph."""
    strides = view_strides(x.shape, x.strides, shape)
    if strides is None:
        return Tensor.empty(x.run, shape, x.dtype)
    return x.alias(shape, strides)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """``x.reshape(shape)``: a view where the layout allows it, else a contiguous copy of ``x`` that is then viewed."""
    target = _resolved(x, shape)
    if view_strides(x.shape, x.strides, target) is None:
        return view(_copied(x), *target)
    return view(x, *target)


def _copied(x: Tensor) -> Tensor:
    out = Tensor.empty(x.run, x.shape, x.dtype)
    return record(out, (x,), lambda saved, grads: tuple(grads))


def contiguous(x: Tensor) -> Tensor:
    """``x.contiguous()``: ``x`` itself or a row-major copy; saves nothing, the gradient passes through."""
    return x if x.is_contiguous else _copied(x)


def flatten(x: Tensor, start: int) -> Tensor:
    """``x.flatten(start)``: a reshape."""
    return reshape(x, *x.shape[:start], prod(x.shape[start:]))


def permute(x: Tensor, *order: int) -> Tensor:
    """``x.permute(order)``."""
    inverse = _inverse(order)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (None if grad is None else _permuted(grad, inverse),)

    return record(_permuted(x, order), (x,), backward)


@lru_cache(maxsize=256)
def _inverse(order: Shape) -> Shape:
    return tuple(order.index(i) for i in range(len(order)))


def _permuted(x: Tensor, order: Shape) -> Tensor:
    shape, strides = x.shape, x.strides
    return x.alias(tuple([shape[i] for i in order]), tuple([strides[i] for i in order]))


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """``x.transpose(a, b)``."""
    order = list(range(len(x.shape)))
    order[a], order[b] = order[b], order[a]
    return permute(x, *order)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """``x.unsqueeze(dim)``: a view whose new dimension steps over the one it stands before."""
    step = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
    out = x.alias((*x.shape[:dim], 1, *x.shape[dim:]), (*x.strides[:dim], step, *x.strides[dim:]))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (
            grad.alias((*grad.shape[:dim], *grad.shape[dim + 1 :]), (*grad.strides[:dim], *grad.strides[dim + 1 :])),
        )

    return record(out, (x,), backward)


def expand(x: Tensor, *shape: int) -> Tensor:
    """``x.expand(shape)``, -1 keeps a size, new dimensions come first; the gradient is summed over the expanded."""
    new = len(shape) - len(x.shape)
    sizes, steps = (1,) * new + x.shape, (0,) * new + x.strides
    target = tuple(have if want == -1 else want for have, want in zip(sizes, shape, strict=True))
    strides = tuple(
        0 if have == 1 and want != 1 else stride for have, want, stride in zip(sizes, target, steps, strict=True)
    )
    return record(x.alias(target, strides), (x,), lambda saved, grads: tuple(grads))


def repeat(x: Tensor, *counts: int) -> Tensor:
    """``x.repeat(counts)``: a new tensor; the gradient is viewed as repetitions x sizes and summed over the first
    (torch/csrc/autograd/FunctionsManual.cpp, repeat_backward)."""
    shape, run = x.shape, x.run
    out = Tensor.empty(run, tuple(size * count for size, count in zip(shape, counts, strict=True)), x.dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        apart = tuple(side for pair in zip(counts, shape) for side in pair)
        kept = tuple(side for size in shape for side in (1, size))
        grad = _reshaped(grad, apart)
        return (_reshaped(grad if apart == kept else reduced(grad, kept), shape),)

    return record(out, (x,), backward)


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """``x.unbind(dim)``: views; the gradients are stacked into one new tensor (UnbindBackward0)."""
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    strides = x.strides[:dim] + x.strides[dim + 1 :]
    outs = tuple(x.alias(shape, strides) for _ in range(x.shape[dim]))
    whole, dtype, run = x.shape, x.dtype, x.run

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        zeros = [Tensor.empty(run, shape, dtype) for grad in grads if grad is None]
        out = Tensor.empty(run, whole, dtype)
        del zeros
        return (out,)

    record_all(outs, (x,), backward)
    return outs


def split(x: Tensor, sizes: tuple[int, ...], dim: int) -> tuple[Tensor, ...]:
    """``torch.split(x, sizes, dim)``: views; the gradients are concatenated into one new tensor (SplitBackward0)."""
    outs = tuple(x.alias((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.strides) for size in sizes)
    whole, dtype, run = x.shape, x.dtype, x.run
    shapes = tuple(out.shape for out in outs)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        zeros = [Tensor.empty(run, shape, dtype) for grad, shape in zip(grads, shapes) if grad is None]
        out = Tensor.empty(run, whole, dtype)
        del zeros
        return (out,)

    record_all(outs, (x,), backward)
    return outs


def chunk(x: Tensor, count: int, dim: int) -> tuple[Tensor, ...]:
    """``x.chunk(count, dim)`` for a size that divides."""
    return split(x, (x.shape[dim] // count,) * count, dim)


def _scattered_backward(x: Tensor, out: Tensor) -> Tensor:
    """The gradient of a selected part is a full-size tensor of zeros with the part filled in."""
    shape, dtype, run = x.shape, x.dtype, x.run

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return (Tensor.empty(run, shape, dtype),)

    return record(out, (x,), backward)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """``x.select(dim, index)``; SelectBackward0 allocates the whole of ``x``."""
    del index
    out = x.alias(x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :])
    return _scattered_backward(x, out)


def narrow(x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
    """``x[start:stop:step]`` along ``dim``; SliceBackward0 allocates the whole of ``x``."""
    shape = (*x.shape[:dim], -((start - stop) // step), *x.shape[dim + 1 :])
    out = x.alias(shape, (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :]))
    return _scattered_backward(x, out)


def gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """``x.gather(dim, index)``: saves input and index; GatherBackward0 scatters into zeros like the input."""
    out = Tensor.empty(x.run, index.shape, x.dtype)
    shape, run = x.shape, x.run
    del dim

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(run, shape, grad.dtype),)

    return record(out, (x,), backward, (x, index))


def cat(tensors: list[Tensor], dim: int) -> Tensor:
    """``torch.cat``: one new tensor of the widest type; the gradients are views of its gradient."""
    first = tensors[0]
    dtype = max((t.dtype for t in tensors), key=lambda d: d.size)
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in tensors), *first.shape[dim + 1 :])
    sizes = tuple(t.shape[dim] for t in tensors)
    out = Tensor.empty(first.run, shape, dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return tuple(grad.alias((*shape[:dim], size, *shape[dim + 1 :]), grad.strides) for size in sizes)

    return record(out, tuple(tensors), backward)


def stack(tensors: list[Tensor], dim: int) -> Tensor:
    """``torch.stack`` along a new dimension ``dim``; the gradients are views of its gradient."""
    count, shape = len(tensors), tensors[0].shape
    out = Tensor.empty(tensors[0].run, (*shape[:dim], count, *shape[dim:]), tensors[0].dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        strides = (*grad.strides[:dim], *grad.strides[dim + 1 :])
        return tuple(grad.alias(shape, strides) for _ in range(count))

    return record(out, tuple(tensors), backward)
