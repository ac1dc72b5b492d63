"""A part of a block's play as data: what it allocated and freed, ready to be entered again elsewhere in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..units import DType
from .run import Product, Run, Storage
from .tensor import Shape, Tensor

__all__ = ["Backward", "Face", "Forward", "NotRepeatable", "Start", "Stretch"]


class NotRepeatable(Exception):
    """Equal blocks did something else after all."""


class Face(NamedTuple):
    """A tensor that leaves a stretch: its place among the allocations made there, and its geometry."""

    place: int
    shape: Shape
    strides: Shape
    dtype: DType
    is_view: bool

    @classmethod
    def of(cls, x: Tensor, first: int) -> Face:
        """``x`` as made after ``first`` allocations."""
        if x.storage.id < first:
            raise NotRepeatable
        return cls(x.storage.id - first, x.shape, x.strides, x.dtype, x.is_view)

    def show(self, storage: Storage) -> Tensor:
        """Such a tensor of another storage."""
        x = Tensor(storage, self.shape, self.strides, self.dtype)
        if self.is_view:
            x.is_view = True
        return x


class Start(NamedTuple):
    """Where a stretch begins: after how many allocations, events and products."""

    allocation: int
    event: int
    product: int

    @classmethod
    def now(cls, run: Run) -> Start:
        """The end of what happened so far."""
        return cls(len(run.allocations), len(run.events), len(run.products))


class Stretch:
    """Allocations and events of a forward or backward pass of a block, counted from its own beginning.

    An event is (number, base). Births and deaths of what is made in the stretch count from its first allocation, deaths
    of what the block's forward pass made from the first of that; the rest dies of ``outside``, which is known by place.
    """

    __slots__ = ("allocations", "dead", "dead_of_forward", "dead_outside", "events", "products")

    def __init__(self, run: Run, row: str, start: Start, outside: Sequence[int], forward: range = range(0)) -> None:
        self.allocations: list[tuple[int, str, str | None]] = []
        for num_bytes, kind, layer in run.allocations[start.allocation :]:
            if layer.startswith(f"{row}."):
                raise NotRepeatable
            self.allocations.append((num_bytes, kind, None if layer == row else layer))
        self.products = run.products[start.product :]
        self.events: list[tuple[int, int]] = []
        self.dead: set[int] = set()
        self.dead_of_forward: set[int] = set()
        self.dead_outside: set[int] = set()
        first = start.allocation
        for event in run.events[start.event :]:
            i = ~event
            if event >= 0:
                self.events.append((event - first, 0))
            elif i >= first:
                self.dead.add(i - first)
                self.events.append((~(i - first), 1))
            elif i in forward:
                self.dead_of_forward.add(i - forward.start)
                self.events.append((~(i - forward.start), 2))
            elif i in outside:
                place = outside.index(i)
                self.dead_outside.add(place)
                self.events.append((0, 3 + place))
            else:
                raise NotRepeatable

    @property
    def living(self) -> set[int]:
        """The places of what was made here and is alive at its end."""
        return set(range(len(self.allocations))) - self.dead

    def enter(self, run: Run, row: str, outside: Sequence[int] = (), forward: int = 0) -> int:
        """Append it to the run for a block of the row ``row``; the number of its first allocation."""
        first = len(run.allocations)
        run.allocations += [(num_bytes, kind, layer or row) for num_bytes, kind, layer in self.allocations]
        bases = (first, -first, -forward, *[~i for i in outside])
        phase = len(run.phases) - 1
        run.products += [Product(p.flops, p.dtype, row, p.recomputed, phase, -1) for p in self.products]
        run.events += [number + bases[base] for number, base in self.events]
        return first


class Forward(NamedTuple):
    """What a forward pass did: the stretch, its result, the weights that autocast cached, and what the graph holds.

    ``tail`` is what the result is a tuple with. ``weights`` are (number of the parameter, its copy, whether the
    graph holds it); ``held`` are numbers of arguments.
    """

    stretch: Stretch
    out: Face
    tail: tuple[None, ...] | None
    weights: tuple[tuple[int, Face, bool], ...]
    held: tuple[int, ...]

    def left(self) -> set[int]:
        """The places of what only the graph keeps alive."""
        return self.stretch.living - {self.out.place} - {copy.place for _, copy, is_held in self.weights if not is_held}


class Backward(NamedTuple):
    """What a backward pass did: the stretch, the gradients of the parameters by number, and that of the input.

    ``grad`` None: the incoming gradient itself goes on.
    """

    stretch: Stretch
    parameters: tuple[tuple[int, Face], ...]
    grad: Face | None
