"""Optimizers of one package each: timm's Lion, optimi's StableAdamW, GrokAdamW, torchdistx's AnyPrecisionAdamW."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..engine.tensor import Shape, Tensor
from ..ops.clip import clip_grad_norm
from ..units import DType
from .row import Group, Kept, Optimizer, StateOf, copies, each, like

__all__ = ["ROWS"]


def _lion(group: Group, state_of: StateOf) -> None:
    """timm 1.0.31, optim/lion.py: the signs of the interpolated momentum, chunk by chunk."""
    state_of.all(group.parameters)
    for chunk in _chunks(group.parameters):
        updates = like(chunk)
        del updates


def _chunks(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """A quarter of the L2 cache at a time, unless that is less than 2**22 elements (timm 1.0.31, optim/_helpers.py)."""
    limit = parameters[0].run.kernels.gpu.l2_cache_bytes // (4 * parameters[0].dtype.size) if parameters else 0
    chunk: list[Tensor] = []
    for p in parameters:
        if chunk and limit >= 2**22 and sum(other.numel for other in (*chunk, p)) > limit:
            yield chunk
            chunk = []
        chunk.append(p)
    if chunk:
        yield chunk


def _stable_adamw(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
    """The averages, the squared epsilon, Kahan's compensation for 16-bit parameters, and the mean square.

    The Triton kernels, which it takes wherever Triton is installed, update in place (optimi/stableadamw.py).
    """
    compensation = Kept(shape, dtype) if dtype.size == 2 else Kept((1,), DType.uint8)
    return Kept(shape, dtype), Kept(shape, dtype), Kept((), dtype), compensation, Kept((1,), DType.float32)


def _grokadamw(group: Group, state_of: StateOf) -> None:
    """One parameter at a time: its state comes from the host and goes back; names live until they are bound again."""
    exp_avg = exp_avg_sq = grok_ema = grok_grad = None
    for p in group.parameters:
        exp_avg, exp_avg_sq = like([p, p])
        (grok_ema,) = like([p])
        total_norm = clip_grad_norm([p])
        del total_norm
        (scaled,) = like([p])
        (grok_grad,) = like([p])
        del scaled
        (root,) = like([p])
        del root
    del exp_avg, exp_avg_sq, grok_ema, grok_grad


def _any_precision(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
    """Trainer asks for fp32 averages whatever the parameter's type is."""
    return Kept(shape, DType.float32), Kept(shape, DType.float32)


def _any_precision_step(groups: Sequence[Group], state_of: StateOf) -> None:
    """One parameter at a time; the denominator lives until that of the next parameter is made."""
    centered_variance = None
    for group in groups:
        for p in group.parameters:
            state_of(p)
            root = Tensor.empty(p.run, p.shape, DType.float32)
            centered_variance = Tensor.empty(p.run, p.shape, DType.float32)
            del root
    del centered_variance


ROWS = {
    "lion": Optimizer(source="timm 1.0.31, optim/lion.py", kept=copies(1), step=each(_lion)),
    "stable_adamw": Optimizer(source="torch-optimi 0.3.3 with Triton", kept=_stable_adamw),
    "grokadamw": Optimizer(
        source="grokadamw 0.1.2, which keeps its state (three copies of the parameters) in host memory",
        step=each(_grokadamw),
    ),
    "adamw_anyprecision": Optimizer(
        source="torchdistx 0.3.0.dev, optimizers/anyprecision_optimizer.py",
        kept=_any_precision,
        step=_any_precision_step,
    ),
}
