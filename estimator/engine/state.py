"""What a pass of a block depends on besides the block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .log import Face
from .run import Run
from .tensor import Tensor

__all__ = ["grad_state", "is_plain", "missing", "state_of", "tensors_in"]

_PLAIN = (Tensor, bool, int, float, str)


def state_of(run: Run, args: tuple[Any, ...], parameters: Sequence[Tensor]) -> Any:
    """For a forward pass: the arguments, the modes of the run, the weights that autocast has cast."""
    faces = tuple([_face(a) for a in args])
    weights = run.autocast.weights if run.autocast else {}
    return faces, run.modes, tuple([id(p) in weights for p in parameters])


def grad_state(grad: Tensor, parameters: Sequence[Tensor]) -> Any:
    """For a backward pass, besides the state of the forward pass: the gradient that comes in, those that are there, and
    whether a hook waits for more."""
    return Face.of(grad)[1:], missing(parameters), grad.run.has_handles, grad.run.grad_hook is None


def missing(parameters: Sequence[Tensor]) -> tuple[bool, ...]:
    """Which parameters have no gradient."""
    return tuple([p.accumulator is None or p.accumulator.grad is None for p in parameters])


def is_plain(args: tuple[Any, ...]) -> bool:
    """Whether a state of these arguments means the same in another run."""
    return all(is_plain(a) if isinstance(a, tuple) else a is None or isinstance(a, _PLAIN) for a in args)


def tensors_in(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among arguments, also those in tuples."""
    found = []
    for a in args:
        if isinstance(a, Tensor):
            found.append(a)
        elif isinstance(a, tuple):
            found += tensors_in(a)
    return found


def _face(a: Any) -> Any:
    if isinstance(a, tuple):
        return tuple([_face(item) for item in a])
    return (*Face.of(a)[1:], a.requires_grad) if isinstance(a, Tensor) else a
