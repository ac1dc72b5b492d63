"""``torch.optim`` of torch 2.14: the foreach path that it picks on CUDA, name by name, and the fused one.

Every ``_multi_tensor_*`` function is called once per group and loops over lists of one type: what a name of it holds
lives until the next list binds the name again. The gradients' name is bound to the next list's own at once.
"""

from __future__ import annotations

from ..engine.tensor import Shape, Tensor
from ..units import DType
from .row import Group, Kept, Optimizer, StateOf, by_dtype, copies, each, in_place, like

__all__ = ["ROWS"]

_SOURCE = "torch 2.14, torch/optim/"


def _adamw(group: Group, state_of: StateOf) -> None:
    """Decoupled weight decay scales the parameters in place."""
    state_of.all(group.parameters)
    roots: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        roots = like(parameters)
    del roots


def _adam(group: Group, state_of: StateOf) -> None:
    """Weight decay adds to a copy of the gradients, dropped before the square roots are made; RAdam does the same."""
    state_of.all(group.parameters)
    roots: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        grads = like(parameters) if group.decayed else []
        del grads
        roots = like(parameters)
    del roots


def _gradients_and_roots(group: Group, state_of: StateOf) -> None:
    """NAdam and RMSprop: the decayed copy of the gradients lives on beside the square roots."""
    state_of.all(group.parameters)
    grads: list[Tensor] = []
    roots: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        grads = []
        grads = like(parameters) if group.decayed else []
        roots = like(parameters)
    del grads, roots


def _adamax(group: Group, state_of: StateOf) -> None:
    """Absolute values of the gradients: in their decayed copy, or in a new one."""
    state_of.all(group.parameters)
    grads: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        grads = []
        grads = like(parameters)
    del grads


def _adagrad(group: Group, state_of: StateOf) -> None:
    """Square roots, and the scaled gradients: in their decayed copy, or in a new one."""
    grads: list[Tensor] = []
    roots: list[Tensor] = []
    numerator: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        grads = []
        grads = like(parameters) if group.decayed else []
        roots = like(parameters)
        numerator = grads or like(parameters)
    del grads, roots, numerator


def _sgd(group: Group, state_of: StateOf) -> None:
    """The first step's momentum is a clone of what the gradients are by then; Nesterov adds it in place."""
    grads: list[Tensor] = []
    for parameters in by_dtype(group.parameters):
        grads = []
        grads = like(parameters) if group.decayed else []
        state_of.all(parameters)
    del grads


def _fused_adam(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
    """fused=True keeps the step count on the device, one fp32 scalar per parameter."""
    return Kept((), DType.float32), Kept(shape, dtype), Kept(shape, dtype)


ROWS = {
    "adamw_torch": Optimizer(source=f"{_SOURCE}adamw.py", kept=copies(2), step=each(_adamw)),
    "adamw_torch_fused": Optimizer(source=f"{_SOURCE}adamw.py", kept=_fused_adam, step=in_place, takes_scaler=True),
    "sgd": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(0), step=each(_sgd)),
    "sgd-momentum": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(1), step=each(_sgd)),
    "sgd-nesterov": Optimizer(source=f"{_SOURCE}sgd.py", kept=copies(1), step=each(_sgd)),
    "adagrad": Optimizer(source=f"{_SOURCE}adagrad.py", kept=copies(1), step=each(_adagrad), at_construction=True),
    "rmsprop": Optimizer(source=f"{_SOURCE}rmsprop.py", kept=copies(1), step=each(_gradients_and_roots)),
    "adam": Optimizer(source=f"{_SOURCE}adam.py", kept=copies(2), step=each(_adam)),
    "nadam": Optimizer(source=f"{_SOURCE}nadam.py", kept=copies(2), step=each(_gradients_and_roots)),
    "radam": Optimizer(source=f"{_SOURCE}radam.py", kept=copies(2), step=each(_adam)),
    "adamax": Optimizer(source=f"{_SOURCE}adamax.py", kept=copies(2), step=each(_adamax)),
}
