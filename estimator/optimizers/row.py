"""What a row of the table of optimizers says, and the lists that their steps borrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..engine.tensor import Shape, Tensor
from ..units import DType

__all__ = ["Group", "Kept", "KeptOf", "Optimizer", "StateOf", "Step", "by_dtype", "copies", "each", "in_place", "like"]


class Group(NamedTuple):
    """A parameter group with gradients; ``decayed`` tells whether its weight decay is not zero."""

    parameters: tuple[Tensor, ...]
    decayed: bool


class Kept(NamedTuple):
    """A tensor of an optimizer's state; the first parameter that asks for one named ``shared`` makes it for all."""

    shape: Shape
    dtype: DType
    shared: str = ""


#: The tensors that an optimizer keeps for one parameter of a shape and type.
KeptOf = Callable[[Shape, DType], tuple[Kept, ...]]


class StateOf(Protocol):
    """Makes the states, in the order of ``Optimizer.kept``, the first time that they are asked for."""

    def __call__(self, parameter: Tensor) -> list[Tensor]:
        """That of one parameter; what a step makes anew each time is kept in the list."""

    def all(self, parameters: Sequence[Tensor]) -> None:
        """Those of several, one after the other."""


Step = Callable[[Sequence[Group], StateOf], None]


def _nothing(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
    return ()


def in_place(groups: Sequence[Group], state_of: StateOf) -> None:
    """An update that borrows nothing."""
    for group in groups:
        state_of.all(group.parameters)


class Optimizer(NamedTuple):
    """``kept`` per parameter from the first step on; ``step`` plays what the update of all groups borrows.

    ``at_construction``: the state is there before the first step, of every parameter that is handed over.
    ``takes_scaler``: GradScaler hands its found_inf over, summed into a new scalar, in place of reading it.
    ``kept_of_embedding``: what Trainer makes it keep for the table of an ``nn.Embedding``.
    ``dtypes``: parameters of another type are refused by the library. ``refused`` says why there is no number.
    """

    source: str
    kept: KeptOf = _nothing
    step: Step = in_place
    at_construction: bool = False
    takes_scaler: bool = False
    kept_of_embedding: KeptOf | None = None
    dtypes: frozenset[DType] = frozenset({DType.float32, DType.float16, DType.bfloat16})
    not_modelled: tuple[str, ...] = ()
    refused: str = ""


def copies(count: int) -> KeptOf:
    """Tensors of the parameter's shape and type."""
    return lambda shape, dtype: (Kept(shape, dtype),) * count


def each(step: Callable[[Group, StateOf], None]) -> Step:
    """An update of one group after the other, by calls that leave nothing behind."""

    def of_all(groups: Sequence[Group], state_of: StateOf) -> None:
        for group in groups:
            step(group, state_of)

    return of_all


def by_dtype(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The lists that one foreach kernel can take, as ``_group_tensors_by_device_and_dtype`` sorts them: the type that
    appears last comes first, as libstdc++ walks an unordered_map (ATen/native/ForeachUtils.h)."""
    lists: dict[DType, list[Tensor]] = {}
    for p in parameters:
        lists.setdefault(p.dtype, []).append(p)
    yield from reversed(lists.values())


def like(parameters: Sequence[Tensor]) -> list[Tensor]:
    """A foreach result: one tensor like each parameter, all at once."""
    return [Tensor.empty(p.run, p.shape, p.dtype) for p in parameters]
