"""Equal blocks share one play: what one did is written down and entered again for its equals.

Blocks of one class and geometry that are called with equal arguments in an equal state of the run make the same
allocations and frees, but for their numbers. A block that is entered again makes no graph of its own: one node stands
for it and enters the backward pass. What this rests on is checked where it can fail, and :class:`NotRepeatable` then
says that the run has to be played block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from .autograd import Node, edge_to, record
from .run import Run, Storage
from .signature import signature
from .stretch import Backward, Face, Forward, NotRepeatable, Start, Stretch
from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

__all__ = ["Repeats"]

Grads = list["Tensor | None"]


class Kind:
    """Blocks that are equal, and what is known of their passes by the state in which these began."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, list[Tensor]]] = {}  # by identity: number and parameters
        self.forwards: dict[Any, Forward] = {}
        self.backwards: dict[Any, Backward] = {}
        self.last: dict[Any, int] = {}  # the last block that began in a state
        self.num_calls = 0
        self.repeats = True

    def knows_backward(self, state: Any, parameters: list[Tensor]) -> bool:
        """Whether a backward pass of this state is known that found the same gradients as there are now."""
        missing = _missing(parameters)
        return any(known == state and found == missing for known, (_, found) in self.backwards)


class Repeats:
    """The blocks of a model by kind.

    In the first ``full_passes`` of the model the ``num_last`` blocks of a kind are played in full: their backward
    passes come first.
    """

    def __init__(self, blocks: Sequence[Module], *, full_passes: int, num_last: int) -> None:
        self.full_passes, self.num_last = full_passes, num_last
        self.num_open = 0  # blocks that were entered and whose backward pass was not
        kinds: dict[Any, Kind] = {}
        self._blocks = blocks
        self._kinds: dict[int, Kind] = {}
        for block in blocks:
            parameters: list[Tensor] = []
            kind = self._kinds[id(block)] = kinds.setdefault(signature(block, parameters), Kind())
            kind.blocks[id(block)] = len(kind.blocks), parameters
            block.repeats = self

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
        number, parameters = kind.blocks[id(block)]
        trains = run.grad_enabled and any(p.requires_grad for p in parameters)
        others = any(x.requires_grad for x in _tensors(args[1:]))
        inside = run.frame is not None or run.num_segments > 0
        if not kind.repeats or inside or others or (trains and not args[0].requires_grad):
            return block.play(args)
        state = _state(run, args, parameters)
        known = kind.forwards.get(state)
        is_early = kind.num_calls < len(kind.blocks) * self.full_passes
        kind.num_calls += run.grad_enabled and args[0].requires_grad
        is_last = number >= len(kind.blocks) - self.num_last or kind.last.get(state) == number  # of a pass before
        kind.last[state] = max(number, kind.last.get(state, 0))
        is_new = is_early or (trains and not kind.knows_backward(state, parameters))
        if known is None or (is_last and is_new) or (len(known.held) > 1 and not number):
            return _Played(block, kind, parameters, state).call(args)
        return _Entered(block, kind, parameters, state, self).call(args, known)


def _state(run: Run, args: tuple[Any, ...], parameters: list[Tensor]) -> Any:
    """What a forward pass depends on besides the block."""
    faces = tuple([_face(a) for a in args])
    weights = run.autocast.weights if run.autocast else {}
    return faces, run.modes, tuple([id(p) in weights for p in parameters])


def _face(a: Any) -> Any:
    if isinstance(a, tuple):
        return tuple([_face(item) for item in a])
    return (*Face.of(a, 0)[1:], a.requires_grad) if isinstance(a, Tensor) else a


def _grad_state(grad: Tensor, parameters: list[Tensor]) -> Any:
    """What a backward pass depends on besides the forward pass."""
    return Face.of(grad, 0)[1:], _missing(parameters)


def _missing(parameters: list[Tensor]) -> tuple[bool, ...]:
    """Which parameters have no gradient."""
    return tuple([p.accumulator is None or p.accumulator.grad is None for p in parameters])


class _Played:
    """A block played in full, with a node on either side that tells when its backward pass begins and ends."""

    def __init__(self, block: Module, kind: Kind, parameters: list[Tensor], state: Any) -> None:
        self.block, self.kind, self.parameters, self.state = block, kind, parameters, state

    def call(self, args: tuple[Any, ...]) -> Any:
        """The block's result; nothing here may outlive the call that would not without it."""
        run = self.block.run
        storages = [x.storage for x in _tensors(args)]
        self.outside = [storage.id for storage in storages]
        start, num_handles = Start.now(run), len(run.handles)
        before = _num_holders(storages)
        out = self.block.play((_marked(args[0], self._end), *[_apart(a) for a in args[1:]]))
        held = [i for i, (old, new) in enumerate(zip(before, _num_holders(storages))) if new > old]
        self.forward = range(start.allocation, len(run.allocations))
        self.known = self.kind.forwards.get(self.state)
        if num_handles != len(run.handles):  # cuBLAS's workspace is among it
            self.known = None
        elif self.known is None:
            try:
                self.known = self.kind.forwards[self.state] = self._forward(start, out, held)
            except NotRepeatable:
                self.kind.repeats = False
        if self.known is None:
            return out
        return _marked(out, self._begin) if isinstance(out, Tensor) else (_marked(out[0], self._begin), *out[1:])

    def _forward(self, start: Start, result: Any, held: list[int]) -> Forward:
        out, *others = result if isinstance(result, tuple) else (result,)
        if not isinstance(out, Tensor) or any(other is not None for other in others):
            raise NotRepeatable
        run, first = self.block.run, start.allocation
        stretch = Stretch(run, self.block.layer, start, self.outside)
        numbers = {id(p): i for i, p in enumerate(self.parameters)}
        weights = []
        for key, copy in run.autocast.weights.items() if run.autocast else ():
            if copy.storage.id >= first:
                if key not in numbers:
                    raise NotRepeatable
                weights.append((numbers[key], Face.of(copy, first), getrefcount(copy.storage) > 2))
        tail = (None,) * len(others) if isinstance(result, tuple) else None
        return Forward(stretch, Face.of(out, first), tail, tuple(weights), tuple(held))

    def _begin(self, grad: Tensor) -> None:
        self.start, self.num_handles = Start.now(self.block.run), len(self.block.run.handles)
        self.grad_state = _grad_state(grad, self.parameters)
        self.outside.append(grad.storage.id)

    def _end(self, grad: Tensor) -> None:
        if self.known is None or self.num_handles != len(self.block.run.handles):
            return
        key = self.state, self.grad_state
        if key not in self.kind.backwards:
            self.kind.backwards[key] = self._backward(self.known, grad)

    def _backward(self, known: Forward, grad: Tensor) -> Backward:
        first = self.start.allocation
        stretch = Stretch(self.block.run, self.block.layer, self.start, self.outside, self.forward)
        taken = []
        for i, (p, was_none) in enumerate(zip(self.parameters, self.grad_state[1])):
            if was_none and p.accumulator is not None and p.accumulator.grad is not None:
                taken.append((p.accumulator.rank, i, Face.of(p.accumulator.grad, first)))
        parameters = [(i, face) for _, i, face in sorted(taken, key=lambda item: item[0])]
        goes_on = grad.storage.id == self.outside[-1]
        out = None if goes_on else Face.of(grad, first)
        expected = {face.place for _, face in parameters} | ({out.place} if out else set())
        grad_dies = len(self.outside) - 1 in stretch.dead_outside
        if stretch.living != expected or stretch.dead_of_forward != known.left() or grad_dies == goes_on:
            raise NotRepeatable
        return Backward(stretch, tuple(parameters), out)


def _marked(x: Tensor, tell: Any) -> Tensor:
    """``x`` behind a node that hands the gradient on unchanged and ``tell``s of it."""

    def backward(saved: tuple[Tensor, ...], grads: Grads) -> tuple[Tensor | None, ...]:
        tell(grads[0])
        return tuple(grads)

    marked = x.detach()
    if x.is_view:
        marked.is_view = True
    return record(marked, (x,), backward)


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among arguments, also those in tuples."""
    found = []
    for a in args:
        if isinstance(a, Tensor):
            found.append(a)
        elif isinstance(a, tuple):
            found += _tensors(a)
    return found


def _apart(a: Any) -> Any:
    """An argument of other objects, so that the storages of its tensors tell who holds them."""
    if isinstance(a, tuple):
        return tuple([_apart(item) for item in a])
    return a.detach() if isinstance(a, Tensor) else a


def _num_holders(storages: list[Storage]) -> list[int]:
    return [getrefcount(storage) for storage in storages]


class _Entered:
    """A block whose passes are entered from what an equal one did; it holds what that one's graph held."""

    def __init__(self, block: Module, kind: Kind, parameters: list[Tensor], state: Any, repeats: Repeats) -> None:
        self.block, self.kind, self.parameters, self.state = block, kind, parameters, state
        self.repeats = repeats

    def call(self, args: tuple[Any, ...], known: Forward) -> Any:
        """The block's result, and the forward pass that makes it."""
        run = self.block.run
        tensors = _tensors(args)
        self.outside = [x.storage.id for x in tensors]
        self.first = first = known.stretch.enter(run, self.block.layer, self.outside)
        out = known.out.show(Storage.entered(run, first + known.out.place))
        trains = run.grad_enabled and args[0].requires_grad
        self.args = {i: tensors[i].storage for i in known.held} if trains else {}
        self.weights: list[Storage] = []
        for i, copy, is_held in known.weights:
            assert run.autocast is not None
            weight = run.autocast.weights[id(self.parameters[i])] = copy.show(Storage.entered(run, first + copy.place))
            if is_held:
                self.weights.append(weight.storage)
        if trains:
            run.sequence += 1
            self.repeats.num_open += 1
            out.node = Node((edge_to(args[0]),), self._backward, (), 1, self.block.layer, run.sequence)
            out.requires_grad = True
        return out if known.tail is None else (out, *known.tail)

    def _backward(self, saved: tuple[Tensor, ...], grads: Grads) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        assert grad is not None
        known = self.kind.backwards.get((self.state, _grad_state(grad, self.parameters)))
        if known is None:
            raise NotRepeatable
        run, storage = self.block.run, grad.storage
        first = known.stretch.enter(run, self.block.layer, [*self.outside, storage.id], self.first)
        self._drop(known.stretch.dead_outside)
        made: dict[int, Storage] = {}
        for i, face in known.parameters:
            accumulator = self.parameters[i].accumulator
            assert accumulator is not None
            accumulator.take(face.show(_made(made, run, first, face.place)))
        self.repeats.num_open -= 1
        if known.grad is None:
            return (grad,)
        if getrefcount(storage) != 3:  # the tensor's, ours, and the argument's
            raise NotRepeatable
        storage.forget()
        return (known.grad.show(_made(made, run, first, known.grad.place)),)

    def _drop(self, dead: set[int]) -> None:
        """Let go of what the graph held; whether that was the last hold has to be as it was for the other block."""
        while self.weights:
            weight = self.weights.pop()
            if getrefcount(weight) != 2:
                raise NotRepeatable
            weight.forget()
        if not dead <= {*self.args, len(self.outside)}:
            raise NotRepeatable
        while self.args:
            i, storage = self.args.popitem()
            if (getrefcount(storage) == 2) != (i in dead):
                raise NotRepeatable
            if i in dead:
                storage.forget()


def _made(made: dict[int, Storage], run: Run, first: int, place: int) -> Storage:
    if place not in made:
        made[place] = Storage.entered(run, first + place)
    return made[place]
