"""``torch.optim`` on the CPU, where torch 2.14 picks no foreach: one parameter after the other, by name.

A name of ``_single_tensor_*`` lives until the next parameter binds it again; step counts are fp32 scalars of the host,
which is the device here.
"""

from __future__ import annotations

from ..engine.tensor import Shape, Tensor
from ..units import DType
from .row import Group, Kept, KeptOf, Optimizer, StateOf, copies, each, in_place

__all__ = ["ROWS", "UNKNOWN"]

_SOURCE = "torch 2.14, torch/optim/"


def _counted(count: int) -> KeptOf:
    def kept(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
        return Kept((), DType.float32), *(Kept(shape, dtype),) * count

    return kept


def _adamw(group: Group, state_of: StateOf) -> None:
    """``denom = (exp_avg_sq.sqrt() / correction).add_(eps)``: two at once, beside the last parameter's."""
    denom: Tensor | None = None
    state_of.all(group.parameters)
    for p in group.parameters:
        root = _like(p)
        quotient = _like(p)
        denom = quotient
        del root, quotient
    del denom


def _sgd(group: Group, state_of: StateOf) -> None:
    """Weight decay adds the parameter to the gradient in a new tensor."""
    grad: Tensor | None = None
    for p in group.parameters:
        if group.decayed:
            grad = _like(p)
        state_of(p)
    del grad


def _nesterov(group: Group, state_of: StateOf) -> None:
    """A second new tensor, the gradient with its momentum, takes the place of the decayed gradient."""
    grad: Tensor | None = None
    for p in group.parameters:
        if group.decayed:
            grad = _like(p)
        state_of(p)
        grad = _like(p)
    del grad


def _like(p: Tensor) -> Tensor:
    return Tensor.empty(p.run, p.shape, p.dtype)


ROWS = {
    "adamw_torch": Optimizer(source=f"{_SOURCE}adam.py", kept=_counted(2), step=each(_adamw)),
    "adamw_torch_fused": Optimizer(source=f"{_SOURCE}adam.py", kept=_counted(2), step=in_place, takes_scaler=True),
    "sgd": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(0), step=each(_sgd)),
    "sgd-momentum": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(1), step=each(_sgd)),
    "sgd-nesterov": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(1), step=each(_nesterov)),
}

UNKNOWN = Optimizer(source="", refused=f"its update is not known there; choose one of {', '.join(ROWS)}")
