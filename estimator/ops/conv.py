"""The patch embedding's convolution."""

from __future__ import annotations

from ..engine.autocast import cast_to_lower
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor

__all__ = ["conv2d"]

Grads = list["Tensor | None"]


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int]) -> Tensor:
    """``F.conv2d`` without padding: x [B, C, H, W], weight [N, C, kh, kw] -> [B, N, H', W'].

    Saves input and weight (with autocast: their casts). Backward copies an output gradient that is not row-major,
    makes the weight's gradient, and sums the bias's (aten/src/ATen/native/Convolution.cpp, convolution_backward).
    cuDNN's own workspace is not known: see ``not_modelled``.
    """
    lower_bias = None if bias is None else cast_to_lower(bias)
    lower_weight, lower_x = cast_to_lower(weight), cast_to_lower(x)
    run = x.run
    batch, _, height, width = x.shape
    channels, _, kernel_h, kernel_w = weight.shape
    rows, columns = (height - kernel_h) // stride[0] + 1, (width - kernel_w) // stride[1] + 1
    out = Tensor.empty(run, (batch, channels, rows, columns), lower_x.dtype)
    wants_x, wants_weight, wants_bias = (t is not None and t.requires_grad for t in (lower_x, lower_weight, lower_bias))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copy = run.workspace(0 if grad.is_contiguous else grad.num_bytes)
        grad_x = Tensor.empty(run, saved[0].shape, grad.dtype) if wants_x else None
        grad_weight = Tensor.empty(run, saved[1].shape, grad.dtype) if wants_weight else None
        del copy
        grad_bias = Tensor.empty(run, (channels,), grad.dtype) if wants_bias else None
        scratch = run.workspace(*run.kernels.sum_scratch(grad.shape, grad.strides, (1, channels, 1, 1)))
        del scratch
        return grad_x, grad_weight, grad_bias

    return record(out, (lower_x, lower_weight, lower_bias), backward, (lower_x, lower_weight))
