"""Batch normalisation over the images and positions of [B, C, H, W]."""

from __future__ import annotations

from ..engine.autograd import Saved, record
from ..engine.run import Storage
from ..engine.tensor import Tensor, dense_strides_like
from ..units import DType
from .linear import refuse_mixed
from .memory_format import format_strides, has_format, is_channels_last

__all__ = ["batch_norm"]

Grads = list["Tensor | None"]

#: cuDNN's kernels index with 32 bits (aten/src/ATen/native/Normalization.cpp, _select_batch_norm_backend).
_CUDNN_MAX_ELEMENTS = 2**31 - 1


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.batch_norm``: at the input's own type, running statistics are updated in place, or read in an evaluation.

    Saves input, fp32 mean and reciprocal standard deviation of each channel; the native kernels make these two in an
    evaluation as well, cuDNN's do not (cudnn_batch_norm returns them empty). cuDNN runs fp32, and fp16 under fp32
    parameters; the native kernels run the rest.
    """
    if x.run.buffer_dtype is not weight.dtype and weight.dtype is not DType.float32:
        refuse_mixed(x, x.run.buffer_dtype)
    cudnn = x.dtype is not DType.bfloat16 and weight.dtype is DType.float32 and x.numel < _CUDNN_MAX_ELEMENTS
    return _cudnn(x, weight, bias) if cudnn else _native(x, weight, bias)


def _cudnn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Input and output gradient are laid out alike: what is not is copied, and the input's copy is what is saved.

    All three gradients are made, wanted or not. cuDNN's reserve, which is saved too, and its workspaces are not known
    (aten/src/ATen/native/cudnn/BatchNorm.cpp).
    """
    last = is_channels_last(x)
    x = _formatted(x, channels_last=last)
    run, shape, channels = x.run, x.shape, x.shape[1]
    out = Tensor.empty(run, shape, x.dtype, strides=format_strides(shape, channels_last=last))
    channels_kept = channels if run.training else 0
    mean, rstd = (Tensor.empty(run, (channels_kept,), DType.float32) for _ in range(2))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        assert grad is not None
        grad = _formatted(grad, channels_last=last)
        grad_x = Tensor.empty(run, shape, saved[0].dtype, strides=format_strides(shape, channels_last=last))
        return grad_x, Tensor.empty(run, (channels,), DType.float32), Tensor.empty(run, (channels,), DType.float32)

    return record(out, (x, weight, bias), backward, (x, mean, rstd))


def _formatted(x: Tensor, *, channels_last: bool) -> Tensor:
    """``x.contiguous(memory_format)``; the gradient passes through."""
    if has_format(x, channels_last=channels_last):
        return x
    out = Tensor.empty(x.run, x.shape, x.dtype, strides=format_strides(x.shape, channels_last=channels_last))
    return record(out, (x,), lambda saved, grads: tuple(grads))


def _native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Channels-last kernels reduce over blocks through a staging buffer; the row-major ones borrow nothing
    (aten/src/ATen/native/cuda/Normalization.{cu,cuh})."""
    run, shape, channels = x.run, x.shape, x.shape[1]
    out = Tensor.empty(run, shape, x.dtype, strides=dense_strides_like(shape, x.strides))
    mean, rstd = _statistics(x), _statistics(x)
    last = is_channels_last(x)
    staging = _staging(x, 4) if last and run.training else []  # an evaluation reduces nothing
    del staging
    wants = tuple(t.requires_grad for t in (x, weight, bias))
    affine, out_strides = weight.dtype, out.strides

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        sums = run.workspace(4 * channels, 4 * channels) if last else []
        staging = _staging(saved[0], 2) if last else []
        del staging
        grad_x = Tensor.empty(run, shape, grad.dtype, strides=out_strides) if wants[0] else None
        grad_weight = Tensor.empty(run, (channels,), affine) if wants[1] else None
        grad_bias = Tensor.empty(run, (channels,), affine) if wants[2] else None
        del sums
        return grad_x, grad_weight, grad_bias

    return record(out, (x, weight, bias), backward, (x, mean, rstd))


def _statistics(x: Tensor) -> Tensor:
    return Tensor.empty(x.run, (x.shape[1],), DType.float32)


def _staging(x: Tensor, numbers: int) -> list[Storage]:
    return x.run.workspace(*x.run.kernels.batch_norm_staging(x.numel // x.shape[1], x.shape[1], numbers))
