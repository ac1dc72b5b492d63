"""A block whose passes are entered from what an equal one did."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from .autograd import Node, edge_to
from .log import Face, Hook, NotRepeatable, call_hook
from .run import Storage
from .state import grad_state, tensors_in
from .stretch import Forward, Piece
from .tensor import Tensor

if TYPE_CHECKING:
    from .module import Module
    from .repeat import Kind, Repeats
    from .signature import Parts

__all__ = ["Entered"]

Grads = list["Tensor | None"]


class Entered:
    """It holds what the other one's graph held."""

    def __init__(self, block: Module, kind: Kind, parts: Parts, state: int, repeats: Repeats) -> None:
        self.block, self.kind, self.parts, self.state = block, kind, parts, state
        self.repeats, self.run = repeats, block.run
        self.uses: dict[int, int] = {}  # how many tensors of the pass are still to be shown, where several are of one
        self.shared: dict[int, Storage] = {}  # storage, by its place, and the storages

    def call(self, args: tuple[Any, ...], known: Forward) -> Any:
        """The block's result, and the forward pass that makes it."""
        run = self.run
        tensors = tensors_in(args)
        self.outside = [x.storage.id for x in tensors]
        self.where = known.stretch.enter(run, self.block.layer, self._act, self.outside)
        run.took_attention(known.attention)
        out = self._shown(known.out, self.where.numbers)
        trains = run.grad_enabled and args[0].requires_grad
        self.args = {i: tensors[i].storage for i in known.held} if trains else {}
        self.weights: list[Storage] = []
        for i, copy, is_held in known.weights:
            assert run.autocast is not None
            weight = run.autocast.weights[id(self.parts.parameters[i])] = self._shown(copy, self.where.numbers)
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
        known = self.kind.backwards.get((self.state, grad_state(grad, self.parts.parameters)))
        if known is None:
            raise NotRepeatable
        storage, self.uses = grad.storage, dict(known.uses)
        outside = [*self.outside, storage.id]
        where = known.stretch.enter(self.run, self.block.layer, self._act, outside, self.where)
        self._drop(known.stretch.dead_outside)
        self.repeats.num_open -= 1
        if known.grad is None:
            return (grad,)
        if getrefcount(storage) != 3:  # the tensor's, ours, and the argument's
            raise NotRepeatable
        storage.forget()
        return (self._shown(known.grad, where.numbers),)

    def _act(self, piece: Piece, numbers: Sequence[int]) -> None:
        """What comes behind a piece: leaves take gradients, and a hook does what it does as if the block had been
        played."""
        run, leaves, uses, entered = self.run, self.parts.leaves, self.uses, Storage.entered
        for i, grad in piece.taken:
            place, shape, strides, dtype, _ = grad
            storage = self._storage(place, numbers) if place in uses else entered(run, numbers[place])
            leaves[i].take(Tensor(storage, shape, strides, dtype))
            del storage  # the hook may let go of it
        if piece.called is not None:
            self._call(*piece.called)

    def _call(self, hook: Hook, number: int, args: tuple[Any, ...], layer: str | None, kind: str, holds: bool) -> None:
        run, subject = self.run, self.parts.subjects[number]
        if subject is None:
            raise NotRepeatable
        outer = run.layer, run.kind
        run.layer, run.kind = layer or self.block.layer, kind
        grad = getattr(subject, "grad", None) if holds else None
        held = None if grad is None else grad.storage
        del grad
        call_hook(run, hook, subject, *args)
        run.layer, run.kind = outer
        del held

    def _shown(self, face: Face, numbers: Sequence[int]) -> Tensor:
        """A tensor that leaves the pass."""
        return face.show(self._storage(face.place, numbers))

    def _storage(self, place: int, numbers: Sequence[int]) -> Storage:
        """What was made at a place; it is held here until the last tensor that shows it is made."""
        storage = self.shared.pop(place, None) or Storage.entered(self.run, numbers[place])
        uses = self.uses.get(place, 1)
        if uses > 1:
            self.uses[place], self.shared[place] = uses - 1, storage
        return storage

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
