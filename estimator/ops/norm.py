"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.run import Run, Storage
from ..engine.tensor import Shape, Tensor
from ..units import DType

__all__ = ["layer_norm", "rms_norm"]

Grads = list["Tensor | None"]


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int = 1) -> Tensor:
    """``F.layer_norm`` over the last ``dims`` dimensions; on autocast's fp32 list.

    Saves the input and fp32 mean and reciprocal standard deviation, 4 bytes per row each, also for 16-bit input
    (aten/src/ATen/native/cuda/layer_norm_kernel.cu). An input that is not contiguous is copied for the kernel only.
    Backward makes the input's gradient and both parameter gradients in one call.
    """
    wide = cast_to_float32(x)
    run, shape = x.run, x.shape
    rows = shape[: len(shape) - dims]
    copy = _contiguous_copy(wide)
    out = Tensor.empty(run, shape, wide.dtype)
    of_statistics = _statistics_dtype(wide, weight)
    mean = Tensor.empty(run, (*rows, *(1,) * dims), of_statistics)
    rstd = Tensor.empty(run, (*rows, *(1,) * dims), of_statistics)
    del copy
    wants = tuple(t is not None and t.requires_grad for t in (wide, weight, bias))
    affine = None if weight is None else weight.dtype

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copies = [_contiguous_copy(saved[0])]
        grad_x = Tensor.empty(run, shape, saved[0].dtype) if wants[0] else None
        inner = shape[len(rows) :]
        blocks = run.kernels.layer_norm_blocks(prod(rows), prod(inner)) if affine else 0
        wanted = [affine is not None and want for want in wants[1:]]
        if blocks and affine:
            results = run.workspace(*(prod(inner) * affine.size for want in wanted if want))
            copies.append(_contiguous_copy(grad))
            made = _sums_of_blocks(run, inner, affine, blocks, results, wanted)
        else:
            made = [Tensor.empty(run, inner, affine) if want and affine else None for want in wanted]
            copies.append(_contiguous_copy(grad))
        del copies
        return grad_x, *made

    return record(out, (wide, weight, bias), backward, (wide, mean, rstd))


def _sums_of_blocks(
    run: Run, shape: Shape, dtype: DType, blocks: int, results: list[Storage], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of weight and bias for tall inputs: partial sums of both, then the sum of each."""
    partial = run.workspace(*(blocks * prod(shape) * dtype.size for want in wanted if want))
    made = [_sum_of_blocks(run, shape, dtype, blocks, results) if want else None for want in wanted]
    del partial
    return made


def _sum_of_blocks(run: Run, shape: Shape, dtype: DType, blocks: int, results: list[Storage]) -> Tensor:
    """``dgamma_blocks.sum(0)`` in the place of the first of ``results``, which goes when the sum is there."""
    out = Tensor.empty(run, shape, dtype)
    width = prod(shape)
    scratch = run.workspace(*run.kernels.sum_scratch((blocks, width), (width, 1), (1, width)))
    del scratch, results[0]
    return out


def _statistics_dtype(x: Tensor, weight: Tensor | None) -> DType:
    """fp32 on a GPU; the CPU keeps the input's type, unless that is not the weight's
    (aten/src/ATen/native/cpu/mixed_data_type.h)."""
    mixed = weight is not None and weight.dtype is not x.dtype
    return x.dtype if x.run.kernels.on_cpu and not mixed else DType.float32


def _contiguous_copy(x: Tensor) -> list[Storage]:
    """What the kernel borrows for an operand that is not row-major."""
    return [] if x.is_contiguous else x.run.scratch(x.num_bytes)


def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    """``F.rms_norm`` over the last dimension: saves the input and one fp32 number per row (_fused_rms_norm).

    Backward is layer norm's: over more than 65,536 rows the weight's gradient is made in partial sums.
    """
    wide = cast_to_float32(x)
    run, shape = x.run, x.shape
    copy = _contiguous_copy(wide)
    out = Tensor.empty(run, shape, wide.dtype)
    rstd = Tensor.empty(run, (*shape[:-1], 1), DType.float32)
    del copy
    wants = tuple(t is not None and t.requires_grad for t in (wide, weight))
    affine = None if weight is None else weight.dtype

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copies = [_contiguous_copy(grad), _contiguous_copy(saved[0])]
        grad_x = Tensor.empty(run, shape, saved[0].dtype) if wants[0] else None
        grad_weight = _grad_of_weight(run, shape, affine) if wants[1] and affine else None
        del copies
        return grad_x, grad_weight

    return record(out, (wide, weight), backward, (wide, rstd))


def _grad_of_weight(run: Run, shape: Shape, dtype: DType) -> Tensor | None:
    """As layer norm's, without a bias (the same ConfigureAndLaunchGammaBetaBackwardKernel)."""
    inner = shape[-1:]
    blocks = run.kernels.layer_norm_blocks(prod(shape[:-1]), prod(inner))
    if not blocks:
        return Tensor.empty(run, inner, dtype)
    results = run.workspace(prod(inner) * dtype.size)
    return _sums_of_blocks(run, inner, dtype, blocks, results, (True,))[0]
