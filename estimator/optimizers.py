"""Optimizers: what each keeps per parameter and what its step borrows.

One row of ``OPTIMIZERS`` is one optimizer under the name that Trainer's ``optim`` or the contract gives it.
Source: torch/optim/*.py of torch 2.14 (the foreach path that torch picks on CUDA, and the fused one), transformers 5.24
``optimization.py`` (Adafactor).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .engine.tensor import Shape, Tensor
from .units import DType

__all__ = ["OPTIMIZERS", "Group", "Optimizer"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A parameter group with gradients; ``decayed`` tells whether its weight decay is not zero."""

    parameters: tuple[Tensor, ...]
    decayed: bool


#: The tensors that an optimizer keeps for one parameter: shapes and types.
StateOf = Callable[[Shape, DType], "tuple[tuple[Shape, DType], ...]"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """``state`` per parameter, kept from the first step on; ``step`` plays what one group's update borrows."""

    state: StateOf
    step: Callable[[Group], None]


def _copies(count: int) -> StateOf:
    return lambda shape, dtype: ((shape, dtype),) * count


def _in_place(group: Group) -> None:
    """An update that borrows nothing."""


def _one_list(group: Group) -> None:
    """A foreach temporary: one tensor like each parameter of the group, all at once."""
    temporaries = [Tensor.empty(p.run, p.shape, p.dtype) for p in group.parameters]
    del temporaries


def _decayed_gradients(group: Group) -> None:
    """``_foreach_add(grads, params, alpha=weight_decay)`` is out of place; without decay nothing is borrowed."""
    if group.decayed:
        _one_list(group)


def _fused_adam(shape: Shape, dtype: DType) -> tuple[tuple[Shape, DType], ...]:
    """fused=True keeps the step count on the device, one fp32 scalar per parameter (torch/optim/adam.py)."""
    return ((), DType.float32), (shape, dtype), (shape, dtype)


def _adafactor_state(shape: Shape, dtype: DType) -> tuple[tuple[Shape, DType], ...]:
    """The last two dimensions are factored, beta1=None keeps no momentum; RMS is a scalar of each parameter."""
    rms = ((), DType.float32)
    if len(shape) < 2:
        return rms, (shape, DType.float32)
    return rms, (shape[:-1], DType.float32), ((*shape[:-2], shape[-1]), DType.float32)


def _adafactor_step(group: Group) -> None:
    """One parameter at a time, written as ``Adafactor.step``: ``update`` of the last parameter outlives its turn."""
    update = None
    for p in group.parameters:
        grad = _fp32(p) if p.dtype.size == 2 else None
        p_data_fp32 = _fp32(p) if p.dtype.size == 2 else None
        squared = _fp32(p)
        update = Tensor.empty(p.run, p.shape, DType.float32)
        del squared
        if len(p.shape) >= 2:
            row = Tensor.empty(p.run, (*p.shape[:-1], 1), DType.float32)
            column = Tensor.empty(p.run, (*p.shape[:-2], 1, p.shape[-1]), DType.float32)
            update = _fp32(p)
            del row, column
        else:
            update = _fp32(p)
        negated = _fp32(p)
        del negated, grad, p_data_fp32
    del update


def _fp32(p: Tensor) -> Tensor:
    return Tensor.empty(p.run, p.shape, DType.float32)


OPTIMIZERS: dict[str, Optimizer] = {
    # _multi_tensor_adamw: exp_avg_sq_sqrt is a list the size of the group
    "adamw_torch": Optimizer(state=_copies(2), step=_one_list),
    "adamw_torch_fused": Optimizer(state=_fused_adam, step=_in_place),
    # _multi_tensor_sgd
    "sgd": Optimizer(state=_copies(0), step=_decayed_gradients),
    "sgd-momentum": Optimizer(state=_copies(1), step=_decayed_gradients),
    "sgd-nesterov": Optimizer(state=_copies(1), step=_decayed_gradients),
    "adafactor": Optimizer(state=_adafactor_state, step=_adafactor_step),
}
