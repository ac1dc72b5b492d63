"""Convolution on cuDNN."""

from __future__ import annotations

from math import prod

from ..engine.autocast import cast_to_lower
from ..engine.autograd import Saved, record
from ..engine.run import Run
from ..engine.tensor import Shape, Tensor
from ..units import DType
from .memory_format import format_copy, format_strides, is_channels_last

__all__ = ["conv2d"]

Grads = list["Tensor | None"]


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int] = (0, 0)
) -> Tensor:
    """``F.conv2d``: x [B, C, H, W], weight [N, C / groups, kh, kw] -> [B, N, H', W'].

    Saves input and weight (with autocast: their casts). Input or weight decide the format of the result and of both
    gradients; an operand in another format is copied for the kernel only. Backward makes the input's gradient, the
    weight's, and sums the bias's (aten/src/ATen/native/Convolution.cpp, convolution_backward; cudnn/ConvShared.cpp).
    cuDNN's own workspace is not known, only a bound: see :func:`_workspace_bound`.
    """
    lower_bias = None if bias is None else cast_to_lower(bias)
    lower_weight, lower_x = cast_to_lower(weight), cast_to_lower(x)
    pixels = _output_size(x, weight, stride, padding)
    if lower_x.dtype is DType.bfloat16 and not x.run.kernels.has_bfloat16 and weight.shape[1] == x.shape[1]:
        return _slow_conv2d(lower_x, lower_weight, lower_bias, pixels)
    return _cudnn_conv2d(lower_x, lower_weight, lower_bias, pixels)


def _cudnn_conv2d(lower_x: Tensor, lower_weight: Tensor, lower_bias: Tensor | None, pixels: tuple[int, int]) -> Tensor:
    run = lower_x.run
    last = is_channels_last(lower_x) or is_channels_last(lower_weight)
    shape = (lower_x.shape[0], lower_weight.shape[0], *pixels)
    copies = format_copy(lower_x, channels_last=last)
    flops = 2 * prod(shape) * prod(lower_weight.shape[1:])  # also of either gradient
    out = _convolved(run, shape, lower_x.dtype, last, flops)
    copies += format_copy(lower_weight, channels_last=last)
    run.unknown_workspace(_workspace_bound(lower_x, lower_weight, out))
    del copies
    wants_x, wants_weight, wants_bias = (t is not None and t.requires_grad for t in (lower_x, lower_weight, lower_bias))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copies = format_copy(saved[0], channels_last=last) + format_copy(grad, channels_last=last)
        grad_x = grad_weight = grad_bias = None
        if wants_x:
            weight_copy = format_copy(saved[1], channels_last=last)
            grad_x = _convolved(run, saved[0].shape, grad.dtype, last, flops)
            del weight_copy
        if wants_weight:
            grad_weight = _convolved(run, saved[1].shape, grad.dtype, last, flops)
        run.unknown_workspace(_workspace_bound(saved[0], saved[1], grad))
        del copies
        if wants_bias:
            grad_bias = Tensor.empty(run, (shape[1],), grad.dtype)
            scratch = run.workspace(*run.kernels.sum_scratch(grad.shape, grad.strides, (1, shape[1], 1, 1)))
            del scratch
        return grad_x, grad_weight, grad_bias

    return record(out, (lower_x, lower_weight, lower_bias), backward, (lower_x, lower_weight))


def _slow_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, pixels: tuple[int, int]) -> Tensor:
    """Without bf16 in cuDNN, one image after the other goes through cuBLAS, as columns [C kh kw, H' W'] that are
    borrowed (aten/src/ATen/native/cuda/ConvolutionMM2d.cu); row-major only."""
    run, count, source = x.run, weight.shape[0], x.shape
    out = Tensor.empty(run, (source[0], count, *pixels), x.dtype)
    flops = 2 * out.numel * prod(weight.shape[1:])  # also of either gradient
    run.count_flops(out.storage, flops, x.dtype)
    columns_bytes = prod(weight.shape[1:]) * prod(pixels) * x.dtype.size
    columns = run.workspace(columns_bytes)
    run.use_cublas()
    del columns
    wants_x, wants_weight, wants_bias = (t is not None and t.requires_grad for t in (x, weight, bias))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copy = format_copy(grad, channels_last=False)
        grad_x = Tensor.empty(run, source, grad.dtype) if wants_x else None
        columns = run.workspace(columns_bytes if wants_x else 0)
        grad_bias = Tensor.empty(run, (count,), grad.dtype) if wants_bias else None
        grad_weight = Tensor.empty(run, saved[1].shape, grad.dtype) if wants_weight else None
        for made in (grad_x, grad_weight):
            if made is not None:
                run.count_flops(made.storage, flops, made.dtype)
        columns = columns or run.workspace(columns_bytes)
        run.use_cublas()
        del copy, columns
        return grad_x, grad_weight, grad_bias

    return record(out, (x, weight, bias), backward, (x, weight))


def _workspace_bound(x: Tensor, weight: Tensor, out: Tensor) -> int:
    """At most so many bytes does a convolution borrow: the explicit matrix of the input, a row of C kh kw for every
    output position (the largest of cuDNN's GEMM algorithms), beside input, weight and result in channels last with C
    filled up to 8, which tensor cores want (cuDNN developer guide, cudnnConvolutionFwdAlgo_t and tensor core
    operations); weights in fp32, as partial sums are. Fast Fourier transforms do not apply to strided patches."""
    batch, channels, *pixels = x.shape
    positions = out.shape[0] * prod(out.shape[2:])
    filled = -(-channels // 8) * 8
    matrix = positions * prod(weight.shape[1:]) * x.dtype.size
    in_channels_last = batch * filled * prod(pixels) * x.dtype.size
    return matrix + in_channels_last + 4 * weight.shape[0] * filled * prod(weight.shape[2:]) + out.num_bytes


def _convolved(run: Run, shape: Shape, dtype: DType, channels_last: bool, flops: int) -> Tensor:
    out = Tensor.empty(run, shape, dtype, strides=format_strides(shape, channels_last=channels_last))
    run.count_flops(out.storage, flops, dtype)
    return out


def _output_size(x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> tuple[int, int]:
    rows, columns = (
        (size + 2 * pad - kernel) // step + 1
        for size, pad, kernel, step in zip(x.shape[2:], padding, weight.shape[2:], stride)
    )
    return rows, columns
