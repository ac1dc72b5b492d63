"""Equal blocks share one play: what one did is written down and entered again for its equals.

Blocks of one class and geometry that are called with equal arguments in an equal state of the run make the same
allocations and frees, but for their numbers. A block that is entered again makes no graph of its own: one node stands
for it and enters the backward pass. The hooks of an engine for several GPUs are called for it as if it had been played.
What this rests on is checked where it can fail, and :class:`NotRepeatable` then says that the run has to be played
block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .entered import Entered
from .library import Known, Library
from .played import Played
from .signature import Parts, signature
from .state import is_plain, missing, state_of, tensors_in
from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

__all__ = ["Kind", "Repeats"]


class Kind:
    """Blocks that are equal, and what is known of their passes by the state in which these began."""

    def __init__(self, known: Known) -> None:
        self.blocks: dict[int, tuple[int, Parts]] = {}  # by identity: number and parts
        self.states, self.forwards, self.backwards = known.states, known.forwards, known.backwards
        self.earlier = {state for state, _ in known.backwards}  # in which a backward pass of another run began
        self.last: dict[int, int] = {}  # the last block that began in a state
        self.num_calls = 0
        self.repeats = True

    def number_of(self, state: Any, args: tuple[Any, ...]) -> int:
        """The number of a state with these arguments. Those that mean nothing in another run are kept from them."""
        number = self.states.get(state)
        if number is None:
            if not is_plain(args):
                self.states, self.forwards = dict(self.states), dict(self.forwards)
                self.backwards = dict(self.backwards)
            number = self.states[state] = len(self.states)
        return number

    def knows_backward(self, state: int, parameters: list[Tensor]) -> bool:
        """Whether a backward pass of this state is known that found the same gradients as there are now."""
        absent = missing(parameters)
        return any(known == state and found == absent for known, (_, found, *_) in self.backwards)


class Repeats:
    """The blocks of a model by kind.

    In the first ``full_passes`` of the model the ``num_last`` blocks of a kind are played in full: their backward
    passes come first. What is in a ``library`` need not be played.
    """

    def __init__(
        self, blocks: Sequence[Module], *, full_passes: int, num_last: int, library: Library | None = None
    ) -> None:
        self.full_passes, self.num_last = full_passes, num_last
        self.num_open = 0  # blocks that were entered and whose backward pass was not
        kinds: dict[Any, Kind] = {}
        self._blocks = blocks
        self._kinds: dict[int, Kind] = {}
        for block in blocks:
            parts = Parts()
            signed = signature(block, parts)
            if signed not in kinds:
                kinds[signed] = Kind(library.known(signed) if library and parts.is_plain else Known())
            kind = self._kinds[id(block)] = kinds[signed]
            kind.blocks[id(block)] = len(kind.blocks), parts
            block.repeats = self

    def __len__(self) -> int:
        """How many blocks share plays."""
        return len(self._blocks)

    def start_anew(self, full_passes: int) -> None:
        """Training passes of another batch size follow: the last blocks' backward passes come first once more."""
        self.full_passes = full_passes
        for kind in self._kinds.values():
            kind.num_calls = 0

    def dispose(self) -> None:
        """Blocks are played in full from here on."""
        for block in self._blocks:
            block.repeats = None
        self._blocks, self._kinds = (), {}

    def __call__(self, block: Module, args: tuple[Any, ...]) -> Any:
        """The block's result, played or entered again."""
        run, kind = block.run, self._kinds[id(block)]
        number, parts = kind.blocks[id(block)]
        trains = run.grad_enabled and any(p.requires_grad for p in parts.parameters)
        others = any(x.requires_grad for x in tensors_in(args[1:]))
        inside = run.frame is not None or run.num_segments > 0
        if not kind.repeats or inside or others or (trains and not args[0].requires_grad):
            return block.play(args)
        state = kind.number_of(state_of(run, args, parts.parameters), args)
        known = kind.forwards.get(state)
        is_early = kind.num_calls < len(kind.blocks) * self.full_passes and state not in kind.earlier
        kind.num_calls += run.grad_enabled and args[0].requires_grad
        is_last = number >= len(kind.blocks) - self.num_last or kind.last.get(state) == number  # of a pass before
        kind.last[state] = max(number, kind.last.get(state, 0))
        is_new = is_last and (is_early or (trains and not kind.knows_backward(state, parts.parameters)))
        if known is None or is_new or (len(known.held) > 1 and not number):
            return Played(block, kind, parts, state).call(args)
        return Entered(block, kind, parts, state, self).call(args, known)
