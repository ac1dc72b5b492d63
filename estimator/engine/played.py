"""A block that is played in full, and written down for its equals."""

from __future__ import annotations

from collections import Counter
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from .autograd import record
from .log import Entry, Face, NotRepeatable, Start
from .recording import Recording
from .run import Storage
from .state import grad_state, tensors_in
from .stretch import Backward, Forward
from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module
    from .repeat import Kind
    from .signature import Parts

__all__ = ["Played"]

Grads = list["Tensor | None"]


class Played:
    """A node on either side of the block tells when its backward pass begins and ends."""

    def __init__(self, block: Module, kind: Kind, parts: Parts, state: int) -> None:
        self.block, self.kind, self.parts, self.state = block, kind, parts, state

    def call(self, args: tuple[Any, ...]) -> Any:
        """The block's result; nothing here may outlive the call that would not without it."""
        run = self.block.run
        storages = [x.storage for x in tensors_in(args)]
        self.outside = [storage.id for storage in storages]
        start, num_handles = self._begin_log(), run.num_handles
        before = _num_holders(storages)
        out = self.block.play((_marked(args[0], self._end), *[_apart(a) for a in args[1:]]))
        held = [i for i, (old, new) in enumerate(zip(before, _num_holders(storages))) if new > old]
        run.log, self.forward = None, Recording(run, start, self.log)
        self.known = self.kind.forwards.get(self.state)
        if num_handles != run.num_handles:  # cuBLAS's workspace is among it
            self.known = None
        elif self.known is None:
            try:
                self.known = self.kind.forwards[self.state] = self._forward(out, held)
            except NotRepeatable:
                self.kind.repeats = False
        if self.known is None:
            return out
        return _marked(out, self._begin) if isinstance(out, Tensor) else (_marked(out[0], self._begin), *out[1:])

    def _begin_log(self) -> Start:
        self.log: list[Entry] = []
        self.block.run.log = self.log
        return Start.now(self.block.run)

    def _forward(self, result: Any, held: list[int]) -> Forward:
        out, *others = result if isinstance(result, tuple) else (result,)
        if not isinstance(out, Tensor) or any(other is not None for other in others):
            raise NotRepeatable
        made, run = self.forward, self.block.run
        stretch = made.stretch(self.block.layer, self.parts, self.outside)
        numbers = {id(p): i for i, p in enumerate(self.parts.parameters)}
        weights = []
        for key, copy in run.autocast.weights.items() if run.autocast else ():
            if copy.storage.id >= made.start.allocation:
                if key not in numbers:
                    raise NotRepeatable
                weights.append((numbers[key], made.placed(Face.of(copy)), getrefcount(copy.storage) > 2))
        tail = (None,) * len(others) if isinstance(result, tuple) else None
        return Forward(stretch, made.placed(Face.of(out)), tail, tuple(weights), tuple(held), run.attention_kernel)

    def _begin(self, grad: Tensor) -> None:
        self.start, self.num_handles = self._begin_log(), self.block.run.num_handles
        self.grad_state = grad_state(grad, self.parts.parameters)
        self.outside.append(grad.storage.id)

    def _end(self, grad: Tensor) -> None:
        self.block.run.log = None
        if self.known is None or self.num_handles != self.block.run.num_handles:
            return
        key = self.state, self.grad_state
        if key not in self.kind.backwards:
            self.kind.backwards[key] = self._backward(self.known, grad)

    def _backward(self, known: Forward, grad: Tensor) -> Backward:
        made = Recording(self.block.run, self.start, self.log)
        stretch = made.stretch(self.block.layer, self.parts, self.outside, self.forward)
        goes_on = grad.storage.id == self.outside[-1]
        out = None if goes_on else made.placed(Face.of(grad))
        living = {out.place} if out else set()
        shares = bool(made.calls) and not living.isdisjoint(made.taken)
        grad_dies = len(self.outside) - 1 in stretch.dead_outside
        if shares or grad_dies == goes_on or stretch.living != living.union(made.taken):
            raise NotRepeatable
        if stretch.dead_of_forward != known.left() or self.forward.starts != known.stretch.starts:
            raise NotRepeatable
        leave = Counter(take.grad.place for piece in stretch.pieces for take in piece.taken)
        leave.update(living)
        return Backward(stretch, out, {place: uses for place, uses in leave.items() if uses > 1})


def _marked(x: Tensor, tell: Any) -> Tensor:
    """``x`` behind a node that hands the gradient on unchanged and ``tell``s of it."""

    def backward(saved: tuple[Tensor, ...], grads: Grads) -> tuple[Tensor | None, ...]:
        tell(grads[0])
        return tuple(grads)

    marked = x.detach()
    if x.is_view:
        marked.is_view = True
    return record(marked, (x,), backward)


def _apart(a: Any) -> Any:
    """An argument of other objects, so that the storages of its tensors tell who holds them."""
    if isinstance(a, tuple):
        return tuple([_apart(item) for item in a])
    return a.detach() if isinstance(a, Tensor) else a


def _num_holders(storages: list[Storage]) -> list[int]:
    return [getrefcount(storage) for storage in storages]
