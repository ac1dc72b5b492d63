"""Optimizers: what each keeps per parameter and what its step borrows.

One row of ``OPTIMIZERS`` is one optimizer under the name that Trainer's ``optim`` or timm's ``--opt`` gives it.
Source: torch/optim/*.py of torch 2.14 (foreach and fused paths), transformers 5.24 ``optimization.py`` (Adafactor).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

from .engine.tensor import Shape
from .units import DType

__all__ = ["OPTIMIZERS", "Optimizer", "Slots"]

#: The tensors that an optimizer keeps or borrows for one parameter: shapes and types.
Slots = tuple[tuple[Shape, DType], ...]
SlotsOf = Callable[[Shape, DType], Slots]


def _nothing(shape: Shape, dtype: DType) -> Slots:
    return ()


def _copies(count: int) -> SlotsOf:
    return lambda shape, dtype: ((shape, dtype),) * count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """``state`` per parameter; ``group_step`` lives for every parameter of a group at once, ``one_step`` one by one."""

    state: SlotsOf = _nothing
    group_step: SlotsOf = _nothing
    one_step: SlotsOf = _nothing
    note: str = ""


def _fused_adam(shape: Shape, dtype: DType) -> Slots:
    # fused=True keeps the step count on the device, one fp32 scalar per parameter (torch/optim/adam.py)
    return ((), DType.float32), (shape, dtype), (shape, dtype)


def _adafactor_state(shape: Shape, dtype: DType) -> Slots:
    # transformers' Adafactor factors the last two dimensions; beta1=None keeps no momentum
    if len(shape) < 2:
        return ((shape, DType.float32),)
    return (shape[:-1], DType.float32), ((*shape[:-2], shape[-1]), DType.float32)


def _adafactor_step(shape: Shape, dtype: DType) -> Slots:
    # update = grad**2 + eps and its factored approximation: two fp32 tensors of one parameter's size at a time
    return ((shape, DType.float32),) * 2


OPTIMIZERS: dict[str, Optimizer] = {
    # foreach, which torch picks on CUDA: one list the size of the group for sqrt(exp_avg_sq) (_multi_tensor_adamw)
    "adamw_torch": Optimizer(state=_copies(2), group_step=_copies(1)),
    "adamw_torch_fused": Optimizer(state=_fused_adam),
    "sgd": Optimizer(),
    "sgd-momentum": Optimizer(state=_copies(1)),
    # weight decay adds to a copy of the gradients in the foreach path (_multi_tensor_sgd)
    "sgd-nesterov": Optimizer(state=_copies(1), group_step=_copies(1)),
    "adafactor": Optimizer(state=_adafactor_state, one_step=_adafactor_step),
}


def num_bytes(slots: Slots) -> int:
    """Bytes of a row's tensors."""
    return sum(prod(shape) * dtype.size for shape, dtype in slots)
