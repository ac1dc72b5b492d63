"""What is written down while a block is played, so that its equals can share the play.

An engine for several GPUs sets hooks on parameters and modules. What they do depends on all that came before, on how
full a bucket is or what was gathered ahead, and not on the block that runs: they are told apart from it.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

from ..units import DType
from .run import Run, Storage
from .tensor import Shape, Tensor

if TYPE_CHECKING:
    from .autograd import AccumulateGrad

__all__ = ["Call", "Entry", "Face", "Hook", "NotRepeatable", "Start", "Take", "call_hook"]


class NotRepeatable(Exception):
    """Equal blocks did something else after all."""


class Face(NamedTuple):
    """A tensor without its storage: the place of its allocation, in the run or in a stretch of it, and its geometry."""

    place: int
    shape: Shape
    strides: Shape
    dtype: DType
    is_view: bool

    @classmethod
    def of(cls, x: Tensor) -> Face:
        """``x`` by the number of its allocation in the run."""
        return cls(x.storage.id, x.shape, x.strides, x.dtype, x.is_view)

    def show(self, storage: Storage) -> Tensor:
        """Such a tensor of another storage."""
        _, shape, strides, dtype, is_view = self
        x = Tensor(storage, shape, strides, dtype)
        if is_view:
            x.is_view = True
        return x


Hook = str | Callable[..., None]


class Start(NamedTuple):
    """A moment of a run: after how many allocations, events, products and workspaces of unknown size."""

    allocation: int
    event: int
    product: int
    unknown: int

    @classmethod
    def now(cls, run: Run) -> Start:
        """The end of what happened so far."""
        return cls(len(run.allocations), len(run.events), len(run.products), len(run.unknown))


class Take(NamedTuple):
    """A leaf took a gradient where it had none."""

    leaf: AccumulateGrad
    grad: Face


class Call(NamedTuple):
    """A hook was called about a ``subject``, in a row of the per-layer table and with the run's kind of allocation.

    It is one of the run's, by name, or a function of no run in particular.
    ``holds``: the caller has the gradient that the subject has taken, too, until the hook is over.
    """

    hook: Hook
    subject: object
    args: tuple[Any, ...]
    begin: Start
    end: Start
    layer: str
    kind: str
    holds: bool


Entry = Take | Call
#: References to a storage that one tensor shows: the tensor's and the argument's.
_HELD_ONCE = 2


def call_hook(run: Run, hook: Hook, subject: object, *args: Any) -> None:
    """``hook(subject, *args)``, written down where the run keeps a log; a name stands for the run's, which may be
    None."""
    function = getattr(run, hook) if isinstance(hook, str) else hook
    if function is None:
        return
    log = run.log
    if log is None:
        function(subject, *args)
        return
    begin, layer, kind = Start.now(run), run.layer, run.kind
    grad = getattr(subject, "grad", None)
    holds = grad is not None and getrefcount(grad.storage) > _HELD_ONCE
    del grad
    run.log = None
    function(subject, *args)
    run.log = log
    log.append(Call(hook, subject, args, begin, Start.now(run), layer, kind, holds))
