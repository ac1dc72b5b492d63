"""Activation checkpointing, not re-entrant (torch/utils/checkpoint.py of torch 2.14).

The forward pass keeps a segment's arguments and counts what its nodes would have saved. The first of them to run
backward recomputes the whole segment under a fresh autocast context, and stops at the last tensor that is needed;
each recomputed tensor goes when the node that wanted it has run.

A segment inside another keeps nothing itself: its arguments are what the outer segment saves of it. The outer one is
recomputed first, which makes them, and stops before the inner segment that saves last.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from .run import Autocast

if TYPE_CHECKING:
    from .autograd import AccumulateGrad, Node
    from .module import Module
    from .tensor import Tensor

__all__ = ["Frame", "Held", "checkpoint"]

Saved = tuple["Tensor", ...]


class _EnoughRecomputed(Exception):
    """Every tensor that the forward pass counted exists again."""


class _Place(NamedTuple):
    """Where a tensor stood among the arguments of an inner segment, and its place in the graph."""

    requires_grad: bool
    node: Node | None
    output_nr: int
    accumulator: AccumulateGrad | None


class Frame:
    """One checkpointed call."""

    def __init__(self, module: Module, args: tuple[Any, ...]) -> None:
        self.run = module.run
        self.module = module
        autocast = self.run.autocast
        self.autocast_dtype = None if autocast is None else autocast.dtype
        self.holders: list[weakref.ref[Held]] = []
        self.position: int | None = None  # of the next holder, while the segment is recomputed and afterwards
        self.outer: Saved | Held = ()
        self.args = args if self.run.frame is None else self._saved_outside(self.run.frame, args)

    def _saved_outside(self, outer: Frame, args: tuple[Any, ...]) -> tuple[Any, ...]:
        from .tensor import Tensor

        tensors = [x for x in args if isinstance(x, Tensor)]
        self.outer = outer.hold(tuple([x.detach() for x in tensors]), None)
        return tuple(
            [_Place(x.requires_grad, x.node, x.output_nr, x.accumulator) if isinstance(x, Tensor) else x for x in args]
        )

    def hold(self, saved: Saved, out: Tensor | None) -> Saved | Held:
        """Called for every node of the segment, in the forward pass and again in the recomputation."""
        if not saved:
            return ()
        if self.position is None:
            held = Held(self)
            self.holders.append(weakref.ref(held))
            return held
        wanted = self.holders[self.position]()
        self.position += 1
        if wanted is not None:  # else the node of the forward pass is gone: frozen, or of an output nobody used
            wanted.tensors = saved
        if self.position == len(self.holders):
            if out is not None and all(x.storage.id < out.storage.id for x in saved):
                # inputs are saved before the kernel runs: torch stops before this output exists;
                # what the kernel makes (the output, layer_norm's mean) is saved after it
                out.storage.relabel(num_bytes=0)
                self.run.forget_product(out.storage)
            raise _EnoughRecomputed
        return saved

    def recompute(self) -> None:
        """Run the segment again with grad."""
        args = self._arguments()  # an inner segment's come from the outer one, which may have to run first
        run = self.run
        self.position = 0
        before = run.frame, run.kind, run.layer, run.autocast, run.grad_enabled
        run.frame, run.kind, run.grad_enabled = self, "activations", True
        run.autocast = None if self.autocast_dtype is None else Autocast(self.autocast_dtype)
        try:
            self.module.run_forward(args)
        except _EnoughRecomputed as stop:
            stop.__traceback__ = None
        run.frame, run.kind, run.layer, run.autocast, run.grad_enabled = before

    def _arguments(self) -> tuple[Any, ...]:
        tensors = iter(self.outer.unpack() if isinstance(self.outer, Held) else self.outer)
        return tuple([_placed(next(tensors), x) if isinstance(x, _Place) else x for x in self.args])


def _placed(x: Tensor, place: _Place) -> Tensor:
    x.requires_grad, x.node, x.output_nr, x.accumulator = place
    return x


class Held:
    """Stands for the tensors that one node of a checkpointed segment saves, or one inner segment takes."""

    __slots__ = ("__weakref__", "frame", "tensors")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.tensors: Saved = ()

    def unpack(self) -> Saved:
        """The tensors, recomputed if this is the first request of the segment; they are handed out once."""
        if self.frame.position is None:
            self.frame.recompute()
        tensors, self.tensors = self.tensors, ()
        return tensors


def checkpoint(module: Module, args: tuple[Any, ...]) -> Any:
    """``torch.utils.checkpoint.checkpoint(module, *args, use_reentrant=False)``."""
    run = module.run
    if not run.grad_enabled:
        return module.run_forward(args)
    outer, run.frame = run.frame, Frame(module, args)
    result = module.run_forward(args)
    run.frame = outer
    return result
