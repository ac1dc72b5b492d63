"""Earlier updates of ``torch.optim``: the loop over the parameters before torch 2.0, and the first foreach Adam."""

from __future__ import annotations

from collections.abc import Mapping

from ..engine.tensor import Tensor
from .row import Group, Optimizer, StateOf, by_dtype, copies, each, like

__all__ = ["FIRST_FOREACH", "FOR_LOOP", "UNCHANGED"]


def _like(p: Tensor) -> Tensor:
    return Tensor.empty(p.run, p.shape, p.dtype)


def _adam_of_lists(group: Group, state_of: StateOf) -> None:
    """Square roots, and a second list: they are divided in place, and eps is added out of place."""
    state_of.all(group.parameters)
    roots: list[Tensor] = []
    denominators: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        roots = like(parameters)
        denominators = like(parameters)
    del roots, denominators


def _adam(group: Group, state_of: StateOf) -> None:
    """The square root and what it is divided to, one by one; Adam's decay adds to a copy of the gradient."""
    state_of.all(group.parameters)
    for p in group.parameters:
        grad = _like(p) if group.decayed else None
        root = _like(p)
        denominator = _like(p)
        del grad, root, denominator


def _adamw(group: Group, state_of: StateOf) -> None:
    """As Adam, with the parameters decayed in place."""
    _adam(Group(parameters=group.parameters, decayed=False), state_of)


def _sgd(group: Group, state_of: StateOf) -> None:
    """The decayed gradient is a new tensor; the first momentum is a clone of it."""
    for p in group.parameters:
        grad = _like(p) if group.decayed else None
        state_of(p)
        del grad


def _nesterov(group: Group, state_of: StateOf) -> None:
    """As SGD, and the momentum is added to a new tensor."""
    for p in group.parameters:
        grad = _like(p) if group.decayed else None
        state_of(p)
        ahead = _like(p)
        del grad, ahead


_SOURCE = "torch before 2.0, torch/optim/"

FOR_LOOP: Mapping[str, Optimizer] = {
    "adam": Optimizer(source=f"{_SOURCE}adam.py, _single_tensor_adam", kept=copies(2), step=each(_adam)),
    "adamw_torch": Optimizer(source=f"{_SOURCE}adamw.py, _single_tensor_adamw", kept=copies(2), step=each(_adamw)),
    "sgd": Optimizer(source=f"{_SOURCE}sgd.py, _single_tensor_sgd", kept=copies(0), step=each(_sgd)),
    "sgd-momentum": Optimizer(source=f"{_SOURCE}sgd.py, _single_tensor_sgd", kept=copies(1), step=each(_sgd)),
    "sgd-nesterov": Optimizer(source=f"{_SOURCE}sgd.py, _single_tensor_sgd", kept=copies(1), step=each(_nesterov)),
}

FIRST_FOREACH: Mapping[str, Optimizer] = {
    name: Optimizer(source=f"torch 2.0, torch/optim/{file}", kept=copies(2), step=each(_adam_of_lists))
    for name, file in (("adam", "adam.py"), ("adamw_torch", "adamw.py"))
}

#: What torch 2.0 updates as today: the fused kernel, and SGD, whose one list is that of the decayed gradients.
UNCHANGED = frozenset({"adamw_torch_fused", "sgd", "sgd-momentum", "sgd-nesterov"})
