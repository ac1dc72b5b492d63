"""Activation checkpointing, not re-entrant (torch/utils/checkpoint.py of torch 2.14).

The forward pass keeps a segment's arguments and counts what its nodes would have saved. The first of them to run
backward recomputes the whole segment under a fresh autocast context, and stops at the last tensor that is needed;
each recomputed tensor goes when the node that wanted it has run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .run import Autocast

if TYPE_CHECKING:
    from .module import Module
    from .tensor import Tensor

__all__ = ["Frame", "Held", "checkpoint"]


class _EnoughRecomputed(Exception):
    """Every tensor that the forward pass counted exists again."""


class Frame:
    """One checkpointed call."""

    def __init__(self, module: Module, args: tuple[Any, ...]) -> None:
        self.run = module.run
        self.module = module
        self.args = args
        autocast = self.run.autocast
        self.autocast_dtype = None if autocast is None else autocast.dtype
        self.count = 0
        self.recomputed: dict[int, Tensor] | None = None

    def hold(self, saved: tuple[Tensor, ...], out: Tensor) -> Held:
        """Called for every node of the segment, in the forward pass and again in the recomputation."""
        held = Held(self, self.count, self.count + len(saved))
        self.count = held.stop
        if self.recomputed is not None:
            self.recomputed.update(zip(range(held.start, held.stop), saved))
            if saved and self.count == self.wanted:
                if all(x.storage is not out.storage for x in saved):
                    # inputs are saved before the kernel runs: torch stops before this output exists
                    out.storage.relabel(num_bytes=0)
                raise _EnoughRecomputed
        return held

    def recompute(self) -> None:
        """Run the segment again with grad."""
        run = self.run
        self.wanted, self.count, self.recomputed = self.count, 0, {}
        before = run.frame, run.kind, run.layer, run.autocast, run.grad_enabled
        run.frame, run.kind, run.grad_enabled = self, "activations", True
        run.autocast = None if self.autocast_dtype is None else Autocast(self.autocast_dtype)
        try:
            self.module.run_forward(self.args)
        except _EnoughRecomputed as stop:
            stop.__traceback__ = None
        run.frame, run.kind, run.layer, run.autocast, run.grad_enabled = before


class Held:
    """Stands in a node for the tensors ``start`` to ``stop`` of a checkpointed segment."""

    __slots__ = ("frame", "start", "stop")

    def __init__(self, frame: Frame, start: int, stop: int) -> None:
        self.frame, self.start, self.stop = frame, start, stop

    def unpack(self) -> tuple[Tensor, ...]:
        """The tensors, recomputed if this is the first request; the frame forgets them."""
        if self.start == self.stop:
            return ()
        if self.frame.recomputed is None:
            self.frame.recompute()
        assert self.frame.recomputed is not None
        return tuple([self.frame.recomputed.pop(i) for i in range(self.start, self.stop)])


def checkpoint(module: Module, args: tuple[Any, ...]) -> Any:
    """``torch.utils.checkpoint.checkpoint(module, *args, use_reentrant=False)``."""
    run = module.run
    outer, run.frame = run.frame, Frame(module, args)
    result = module.run_forward(args)
    run.frame = outer
    return result
