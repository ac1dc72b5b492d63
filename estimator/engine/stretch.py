"""A part of a block's play as data: what it allocated and freed, ready to be entered again elsewhere in the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any, NamedTuple

from .log import Face, Hook
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

    hook: Hook
    subject: int
    args: tuple[Any, ...]
    layer: str | None
    kind: str
    holds: bool


class Piece:
    """What happens up to a hook, or to the end.

    Allocations from the place ``start`` of the stretch on, events, workspaces of ``unknown`` size (events of the piece
    before it, bytes), what leaves have taken by then, and the hook that is ``called`` behind it.
    """

    __slots__ = ("_allocations", "_bases", "_numbers", "_rows", "called", "num_made", "start", "taken", "unknown")

    def __init__(
        self,
        start: int,
        allocations: Sequence[tuple[int, str, str | None]],
        events: Sequence[tuple[int, int]],
        unknown: Sequence[tuple[int, int]],
        taken: Sequence[Taken],
        called: Called | None,
    ) -> None:
        self.start, self.unknown, self.taken, self.called = start, unknown, taken, called
        self.num_made, self._allocations = len(allocations), allocations
        self._rows: dict[str, list[tuple[int, str, str]]] = {}
        self._numbers = [number for number, _ in events]
        self._bases = [base for _, base in events]

    def enter(self, run: Run, row: str, bases: list[int]) -> None:
        """Append it to the run."""
        if self.num_made:
            rows = self._rows.get(row)
            if rows is None:
                rows = self._rows[row] = [
                    (num_bytes, kind, layer or row) for num_bytes, kind, layer in self._allocations
                ]
            run.allocations += rows
        if self.unknown:
            first = len(run.events)
            run.unknown += [(first + before, num_bytes) for before, num_bytes in self.unknown]
        run.events += map(add, self._numbers, map(bases.__getitem__, self._bases))


class Where(NamedTuple):
    """Where a stretch was entered: the run's number of each of its allocations, and of each piece how much larger they
    are than their places."""

    numbers: Sequence[int]
    shifts: Sequence[int]


Act = Callable[[Piece, Sequence[int]], None]


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
    def starts(self) -> list[int]:
        """The places at which its pieces begin."""
        return [piece.start for piece in self.pieces]

    @property
    def living(self) -> set[int]:
        """The places of what was made here and is alive at its end, or was when a hook took it."""
        last = self.pieces[-1]
        return set(range(last.start + last.num_made)) - self.dead

    def enter(self, run: Run, row: str, act: Act, outside: Sequence[int], forward: Where | None = None) -> Where:
        """Append it to the run for a block of the row ``row``; ``act`` does what comes behind a piece, told the numbers
        of all allocations so far."""
        phase = len(run.phases) - 1
        run.products += [Product(p.flops, p.dtype, row, p.recomputed, phase, -1) for p in self.products]
        bases = [0] * (2 * len(self.pieces))
        if forward is not None:
            bases += [-shift for shift in forward.shifts]
        bases += [~i for i in outside]
        numbers, several = list[int](), len(self.pieces) > 1
        shifts: list[int] = []
        for i, piece in enumerate(self.pieces):
            first = len(run.allocations)
            shift = first - piece.start
            bases[2 * i], bases[2 * i + 1] = shift, -shift
            shifts.append(shift)
            made = range(first, first + piece.num_made)
            if several:
                numbers += made
            piece.enter(run, row, bases)
            if piece.taken or piece.called:
                act(piece, numbers if several else made)
        return Where(numbers if several else made, shifts)


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
