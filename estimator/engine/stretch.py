"""A part of a block's play as data: what it allocated and freed, ready to be entered again elsewhere in the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .log import Face
from .product import Product
from .run import Run

__all__ = ["Backward", "Called", "Forward", "Piece", "Stretch", "Taken", "Where"]


class Taken(NamedTuple):
    """A leaf, by its number among the block's subjects, takes a gradient."""

    leaf: int
    grad: Face


class Called(NamedTuple):
    """A hook is called about one of the block's subjects; ``layer`` None stands for the block's own row.

    ``holds``: the gradient that the subject has taken lives at least until the hook is over.
    """

    hook: Callable[..., None]
    subject: int
    args: tuple[Any, ...]
    layer: str | None
    kind: str
    holds: bool


class Piece(NamedTuple):
    """What happens up to a hook, or to the end: allocations from the place ``start`` of the stretch on, events,
    workspaces of ``unknown`` size (events of the piece before it, bytes), and what comes ``then``."""

    start: int
    allocations: list[tuple[int, str, str | None]]
    events: list[tuple[int, int]]
    unknown: list[tuple[int, int]]
    then: list[Taken | Called]


class Where(NamedTuple):
    """Where a stretch was entered: the run's number of each of its allocations, and of each piece how much larger they
    are than their places."""

    numbers: list[int]
    shifts: list[int]


Act = Callable[["Taken | Called", Where], None]


class Stretch(NamedTuple):
    """Allocations and events of a forward or backward pass of a block, counted from its own beginning.

    An event is (number, base): what to add for the number of an event of the run. Of n pieces base 2i is that of
    births in piece i and 2i + 1 that of deaths of what it made; then come deaths of what each piece of the block's
    forward pass made, and last those of what was there before, one base each. The ``dead`` are known by their places.
    """

    pieces: list[Piece]
    products: list[Product]
    dead: set[int]
    dead_of_forward: set[int]
    dead_outside: set[int]

    @property
    def num_made(self) -> int:
        """How many allocations it makes."""
        last = self.pieces[-1]
        return last.start + len(last.allocations)

    @property
    def starts(self) -> list[int]:
        """The places at which its pieces begin."""
        return [piece.start for piece in self.pieces]

    @property
    def living(self) -> set[int]:
        """The places of what was made here and is alive at its end, or was when a hook took it."""
        return set(range(self.num_made)) - self.dead

    def enter(self, run: Run, row: str, act: Act, outside: list[int], forward: Where | None = None) -> Where:
        """Append it to the run for a block of the row ``row``; ``act`` does what comes between the pieces."""
        phase = len(run.phases) - 1
        run.products += [Product(p.flops, p.dtype, row, p.recomputed, phase, -1) for p in self.products]
        bases = [0] * (2 * len(self.pieces))
        if forward is not None:
            bases += [-shift for shift in forward.shifts]
        bases += [~i for i in outside]
        where = Where([], [])
        for i, piece in enumerate(self.pieces):
            first = len(run.allocations)
            shift = first - piece.start
            bases[2 * i : 2 * i + 2] = shift, -shift
            where.shifts.append(shift)
            where.numbers.extend(range(first, first + len(piece.allocations)))
            run.allocations += [(num_bytes, kind, layer or row) for num_bytes, kind, layer in piece.allocations]
            run.unknown += [(len(run.events) + before, num_bytes) for before, num_bytes in piece.unknown]
            run.events += [number + bases[base] for number, base in piece.events]
            for step in piece.then:
                act(step, where)
        return where


class Forward(NamedTuple):
    """What a forward pass did: the stretch, its result, the weights that autocast cached, and what the graph holds.

    ``tail`` is what the result is a tuple with. ``weights`` are (number of the parameter, its copy, whether the
    graph holds it); ``held`` are numbers of arguments; ``attention`` is the kernel that has run behind
    ``scaled_dot_product_attention`` by then.
    """

    stretch: Stretch
    out: Face
    tail: tuple[None, ...] | None
    weights: tuple[tuple[int, Face, bool], ...]
    held: tuple[int, ...]
    attention: str | None

    def left(self) -> set[int]:
        """The places of what only the graph keeps alive."""
        return self.stretch.living - {self.out.place} - {copy.place for _, copy, is_held in self.weights if not is_held}


class Backward(NamedTuple):
    """What a backward pass did: the stretch, and the gradient of the input.

    ``grad`` None: the incoming gradient itself goes on. ``uses``: how many tensors that leave show one and the same
    storage, by its place, where there are several.
    """

    stretch: Stretch
    grad: Face | None
    uses: dict[int, int]
