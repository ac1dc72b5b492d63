"""Reductions and softmax."""

from __future__ import annotations

from ..engine.autocast import to
from ..engine.autograd import Saved, record
from ..engine.tensor import Shape, Tensor, pointwise_strides
from ..units import DType

__all__ = ["amax", "kept_input", "mean", "reduced", "softmax", "sum_", "sum_all"]

Grads = list["Tensor | None"]


def reduced(x: Tensor, shape: Shape) -> Tensor:
    """``x`` summed to the broadcastable ``shape``, outside the graph (``at::sum_to``).

    The kernel may borrow scratch for a reduction that spans blocks (aten/src/ATen/native/cuda/Reduce.cuh).
    """
    out = Tensor.empty(x.run, shape, x.dtype)
    scratch = x.run.workspace(*x.run.kernels.sum_scratch(x.shape, x.strides, shape))
    del scratch
    return out


def _reduce(x: Tensor, dim: int, dtype: DType) -> Tensor:
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    keep = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    out = Tensor.empty(x.run, shape, dtype)
    scratch = x.run.workspace(*x.run.kernels.sum_scratch(x.shape, x.strides, keep))
    del scratch
    return out


def sum_(x: Tensor, dim: int) -> Tensor:
    """``x.sum(dim)``: saves nothing; the gradient is the incoming one expanded, a view.

    Autocast asks for an fp32 result (``fp32_set_opt_dtype``), which the kernel makes without copying its input.
    """
    dtype = DType.float32 if x.run.autocasts_to_float32 else x.dtype
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (grad.alias(shape, (*grad.strides[:dim], 0, *grad.strides[dim:])),)

    return record(_reduce(x, dim, dtype), (x,), backward)


def sum_all(x: Tensor) -> Tensor:
    """``x.sum()``: as :func:`sum_` over every dimension, to a scalar."""
    dtype = DType.float32 if x.run.autocasts_to_float32 else x.dtype
    out = Tensor.empty(x.run, (), dtype)
    scratch = x.run.workspace(*x.run.kernels.sum_scratch(x.shape, x.strides, (1,) * len(x.shape)))
    del scratch
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (grad.alias(shape, (0,) * len(shape)),)

    return record(out, (x,), backward)


def mean(x: Tensor, *dims: int) -> Tensor:
    """``x.mean(dims)``: saves nothing; the gradient is expanded and divided, one full-size tensor (MeanBackward1)."""
    shape, run = x.shape, x.run
    out = Tensor.empty(run, tuple(size for dim, size in enumerate(shape) if dim not in dims), x.dtype)
    keep = tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    scratch = run.workspace(*run.kernels.sum_scratch(shape, x.strides, keep))
    del scratch

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        left = iter(grad.strides)
        expanded = grad.alias(shape, tuple(0 if dim in dims else next(left) for dim in range(len(shape))))
        return (Tensor.empty(run, shape, grad.dtype, strides=pointwise_strides(shape, (expanded,))),)

    return record(out, (x,), backward)


def amax(x: Tensor, dim: int) -> Tensor:
    """``x.amax(dim)``: saves input and result; backward divides by the count of maxima (scale_grad_by_count)."""
    out = _reduce(x, dim, x.dtype)
    run, shape = x.run, x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        mask = Tensor.empty(run, shape, DType.bool)
        count = Tensor.empty(run, (*shape[:dim], 1, *shape[dim + 1 :]), DType.int64)
        widened = run.scratch(8 * mask.numel)
        del widened
        share = Tensor.empty(run, count.shape, grad.dtype)
        grad_x = Tensor.empty(run, shape, grad.dtype)
        del mask, count, share
        return (grad_x,)

    return record(out, (x,), backward, (x, out))


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """``x.softmax(-1, dtype=dtype)``: saves its output, at the output's type; on autocast's fp32 list.

    Before torch 1.11 it saves its input as well.

    Half goes to float inside one kernel; bfloat16 is copied to float first (aten/src/ATen/native/SoftMax.cpp).
    An input that is not row-major is copied for the kernel only; the result is row-major.
    Backward borrows a full-size product of gradient and output (aten/src/ATen/native/cuda/SoftMax.cu).
    """
    target = dtype or (DType.float32 if x.run.autocasts_to_float32 else x.dtype)
    source = x.dtype
    fused = source is DType.float16 and target is DType.float32 and not x.run.kernels.on_cpu
    operand = x if fused else to(x, target)
    out = Tensor.empty(x.run, x.shape, target)
    copy = x.run.scratch(0 if operand.is_contiguous else operand.num_bytes)
    del copy
    run, shape = x.run, x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copy = run.scratch(0 if grad.is_contiguous else grad.num_bytes)
        grad_x = Tensor.empty(run, shape, source if fused else target)
        workspace = run.workspace(grad.num_bytes)
        del copy, workspace
        return (grad_x,)

    return record(out, (operand,), backward, (out, *kept_input(operand)))


def kept_input(x: Tensor) -> tuple[Tensor, ...]:
    """What softmax and log-softmax save beside their result: their input, before torch 1.11."""
    return () if x.run.kernels.torch.has("softmax_keeps_its_result_only") else (x,)
