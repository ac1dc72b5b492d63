"""``transformers.Adafactor`` (5.24, optimization.py) as Trainer makes it: factored, without momentum."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.tensor import Shape, Tensor, contiguous_strides
from ..ops.reduce import reduced
from ..units import DType
from .row import Group, Kept, Optimizer, StateOf

__all__ = ["ROWS"]


def _kept(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
    """The last two dimensions are factored. The step adds a scalar that it makes anew each time, see :func:`_step`."""
    if len(shape) < 2:
        return (Kept(shape, DType.float32),)
    return Kept(shape[:-1], DType.float32), Kept((*shape[:-2], shape[-1]), DType.float32)


def _step(groups: Sequence[Group], state_of: StateOf) -> None:
    """One parameter at a time; a name lives until it is bound again, for the next parameter or group."""
    grad = p_data_fp32 = update = None
    for group in groups:
        for p in group.parameters:
            grad = None
            grad = _fp32(p) if p.dtype.size == 2 else p.detach()
            state = state_of(p)
            p_data_fp32 = None
            p_data_fp32 = _fp32(p) if p.dtype.size == 2 else p.detach()
            state[:] = [_rms(p_data_fp32, "optimizer_state")]
            squared = _fp32(p)
            update = _fp32(p)
            del squared
            update = _factored(update) if len(p.shape) >= 2 else _fp32(p)
            _clip(update)
            negated = _fp32(p)
            del negated, state
    del grad, p_data_fp32, update


def _factored(update: Tensor) -> Tensor:
    """Means over the last dimension and the one before; then the product of a column and a row."""
    shape = update.shape
    row_mean = reduced(update, (*shape[:-1], 1))
    del row_mean
    column_mean = reduced(update, (*shape[:-2], 1, shape[-1]))
    del column_mean
    row_mean = reduced(update.alias(shape[:-1], contiguous_strides(shape[:-1])), (*shape[:-2], 1))  # of the state
    r_factor = Tensor.empty(update.run, (*shape[:-1], 1), DType.float32)
    del row_mean
    c_factor = Tensor.empty(update.run, (*shape[:-2], 1, shape[-1]), DType.float32)
    product = _fp32(update)
    del r_factor, c_factor
    return product


def _rms(x: Tensor, kind: str) -> Tensor:
    """``x.norm(2) / (x.numel() ** 0.5)``."""
    norm = reduced(x, (1,) * len(x.shape))
    return Tensor.empty(norm.run, (), DType.float32, kind=kind)


def _clip(update: Tensor) -> None:
    """``(rms / clip_threshold).clamp_(min=1.0)``."""
    rms = _rms(update, "temporaries")
    ratio = Tensor.empty(update.run, (), DType.float32)
    del rms, ratio


def _fp32(p: Tensor) -> Tensor:
    return Tensor.empty(p.run, p.shape, DType.float32)


ROWS = {"adafactor": Optimizer(source="transformers 5.24, optimization.py", kept=_kept, step=_step)}
