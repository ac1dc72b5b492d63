"""What makes two blocks of a model equal."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

__all__ = ["signature"]

_PLACE = frozenset({"layer", "run", "repeats"})


def signature(module: Module, parameters: list[Tensor]) -> Any:
    """Class and attributes, down to the parameters, which are appended to ``parameters``.

    Of a rate (drop path grows from block to block) only counts whether there is one.
    """
    own = [(name, _signed(value, parameters)) for name, value in vars(module).items() if name not in _PLACE]
    return type(module), tuple(own)


def _signed(value: Any, parameters: list[Tensor]) -> Any:
    from .module import Module

    if isinstance(value, (int, str)) or value is None:
        return value
    if isinstance(value, Tensor):
        parameters.append(value)
        return value.shape, value.strides, value.dtype, value.requires_grad
    if isinstance(value, Module):
        return signature(value, parameters)
    if isinstance(value, (list, tuple)):
        return tuple([_signed(item, parameters) for item in value])
    if isinstance(value, dict):
        return tuple([(key, _signed(item, parameters)) for key, item in value.items()])
    if isinstance(value, float):
        return value > 0
    if fields := getattr(value, "__dataclass_fields__", None):
        return tuple([_signed(getattr(value, name), parameters) for name in fields])
    return value if isinstance(value, Hashable) else id(value)
