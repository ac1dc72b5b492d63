"""What makes two blocks of a model equal."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

__all__ = ["signature"]

_PLACE = frozenset({"layer", "path", "run", "repeats"})


def signature(module: Module, parameters: list[Tensor]) -> Any:
    """Class and attributes, down to the parameters, which are appended to ``parameters``.

    Of a rate (drop path grows from block to block) only counts whether there is one.
    """
    own = [(name, _signed(value, parameters)) for name, value in vars(module).items() if name not in _PLACE]
    return type(module), tuple(own)


def _signed(value: Any, parameters: list[Tensor]) -> Any:
    from .module import Module

    if isinstance(value, Tensor):
        parameters.append(value)
        return value.shape, value.strides, value.dtype, value.requires_grad
    if isinstance(value, Module):
        return signature(value, parameters)
    if isinstance(value, float):
        return value > 0
    if (parts := _parts(value)) is not None:
        return tuple([_signed(part, parameters) for part in parts])
    return value if isinstance(value, Hashable) else id(value)


def _parts(value: Any) -> Iterable[Any] | None:
    """What a container or a configuration is made of."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return value.items()
    fields = getattr(value, "__dataclass_fields__", None)
    return None if fields is None else [getattr(value, name) for name in fields]
