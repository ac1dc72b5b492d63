"""What makes two blocks of a model equal, and what they are made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..units import DType
from .module import Module
from .tensor import Tensor

if TYPE_CHECKING:
    from .autograd import AccumulateGrad

__all__ = ["Part", "Parts", "signature"]

_PLACE = frozenset({"layer", "path", "run", "repeats"})
#: Types of values that are their own signature.
_PLAIN = frozenset({bool, int, str, type(None), DType})


class Part:
    """A part of a block that is no module; equal blocks may differ in the attributes ``apart`` alone."""

    apart: frozenset[str] = frozenset()


class Parts:
    """What a block is made of, in an order that equal blocks have in common."""

    def __init__(self) -> None:
        self.parameters: list[Tensor] = []  # and buffers
        self.modules: list[Module] = []
        self.others: list[Part] = []
        self.is_plain = True  # whether the signature is made of plain values alone, which mean the same in another run

    @cached_property
    def leaves(self) -> dict[int, AccumulateGrad]:
        """The leaves of the parameters, by number among the subjects."""
        return {i: p.accumulator for i, p in enumerate(self.parameters) if p.accumulator is not None}

    @cached_property
    def subjects(self) -> list[object]:
        """What hooks are called about: leaves in the order of ``parameters``, modules, what an engine has put around
        them, and the other parts."""
        leaves = [p.accumulator for p in self.parameters]
        around = [getattr(module.around, "__self__", None) for module in self.modules]
        return [*leaves, *self.modules, *around, *self.others]


def signature(module: Module, parts: Parts) -> Any:
    """Class and attributes, down to the parameters; ``parts`` is filled on the way.

    Of a rate (drop path grows from block to block) only counts whether there is one.
    """
    parts.modules.append(module)
    return _attributes(module, _PLACE, parts)


def _attributes(part: object, apart: frozenset[str], parts: Parts) -> Any:
    own = [(name, _signed_or_plain(value, parts)) for name, value in vars(part).items() if name not in apart]
    return type(part), tuple(own)


def _signed_or_plain(value: Any, parts: Parts) -> Any:
    return value if type(value) in _PLAIN else _signed(value, parts)


def _signed(value: Any, parts: Parts) -> Any:
    if isinstance(value, Tensor):
        parts.parameters.append(value)
        return value.shape, value.strides, value.dtype, value.requires_grad
    if isinstance(value, Module):
        return signature(value, parts)
    if isinstance(value, Part):
        parts.is_plain = False
        parts.others.append(value)
        return _attributes(value, value.apart, parts)
    if isinstance(value, float):
        return value > 0
    if (items := _items(value)) is not None:
        return tuple([_signed_or_plain(item, parts) for item in items])
    parts.is_plain &= isinstance(value, FunctionType) and value.__closure__ is None
    return value if isinstance(value, Hashable) else id(value)


def _items(value: Any) -> Iterable[Any] | None:
    """What a container or a configuration is made of."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, dict):
        return value.items()
    fields = getattr(value, "__dataclass_fields__", None)
    return None if fields is None else [getattr(value, name) for name in fields]
