"""Modules and parameters: the names and the call frames of ``torch.nn.Module``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..units import DType
from .autograd import AccumulateGrad
from .checkpoint import checkpoint
from .log import call_hook
from .reentrant import checkpoint_reentrant
from .run import Run
from .tensor import Shape, Tensor

if TYPE_CHECKING:
    from ..lora import Lora
    from .repeat import Repeats

__all__ = ["Module", "Scope", "own_first"]


class Scope:
    """Where a module stands in its model: its path, the row of the per-layer table, the parameters made so far."""

    __slots__ = (
        "buffers",
        "embeddings",
        "layer",
        "layer_norms",
        "lora",
        "parameters",
        "path",
        "persistent",
        "run",
        "unused",
        "used",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.path = ""
        self.layer = "model"
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.persistent: set[str] = set()
        self.unused: set[str] = set()
        self.used = True
        self.layer_norms: set[str] = set()
        self.embeddings: set[str] = set()
        self.lora: Lora | None = None

    def __truediv__(self, name: str) -> Scope:
        """The child ``name``, in the same row of the per-layer table."""
        child = Scope.__new__(Scope)
        child.run, child.path, child.layer = self.run, self.path_of(name), self.layer
        child.parameters, child.buffers = self.parameters, self.buffers
        child.unused, child.layer_norms = self.unused, self.layer_norms
        child.embeddings, child.persistent = self.embeddings, self.persistent
        child.used, child.lora = self.used, self.lora
        return child

    def path_of(self, name: str) -> str:
        """The path of the child ``name``."""
        return f"{self.path}.{name}" if self.path else name

    def row(self, name: str) -> Scope:
        """The child ``name``, as a row of its own in the per-layer table."""
        child = self / name
        child.layer = child.path
        return child

    def without_gradients(self) -> Scope:
        """This place, for a part of the model that the loss does not depend on."""
        self.used = False
        return self

    def parameter(self, name: str, *shape: int, dtype: DType | None = None, used: bool = True) -> Tensor:
        """A trainable leaf; its type is the run's unless the library pins one. Unused, it never gets a gradient."""
        tensor = self._state(shape, dtype or self.run.parameter_dtype, "parameters")
        tensor.requires_grad = True
        tensor.accumulator = AccumulateGrad(tensor)
        path = self.path_of(name)
        self.parameters[path] = tensor
        if not (used and self.used):
            self.unused.add(path)
        return tensor

    def buffer(self, name: str, *shape: int, dtype: DType, persistent: bool = False) -> Tensor:
        """A registered buffer; a persistent one is in the ``state_dict``."""
        path = self.path_of(name)
        tensor = self.buffers[path] = self._state(shape, dtype, "buffers")
        if persistent:
            self.persistent.add(path)
        return tensor

    def moving_order(self) -> list[int]:
        """The allocations of the model in the order of ``Module.to``: children first, then a module's own parameters
        and buffers (torch/nn/modules/module.py, ``_apply``)."""
        tensors = [*self.parameters.values(), *self.buffers.values()]
        return [tensors[place].storage.id for place in _moving_order((*self.parameters, *self.buffers))]

    def _state(self, shape: Shape, dtype: DType, kind: str) -> Tensor:
        outer, self.run.layer = self.run.layer, self.layer
        tensor = Tensor.empty(self.run, shape, dtype, kind=kind)
        self.run.layer = outer
        return tensor


@lru_cache(maxsize=16)
def _moving_order(paths: tuple[str, ...]) -> tuple[int, ...]:
    """The places of these paths, children first."""
    tree: dict[str, Any] = {}
    for place, path in enumerate(paths):
        *modules, _ = path.split(".")
        node = tree
        for name in modules:
            node = node.setdefault(name, {})
        node.setdefault("", []).append(place)
    return tuple(_children_first(tree))


def own_first(scope: Scope) -> Iterator[str]:
    """Paths of parameters and buffers as ``named_parameters`` walks: a module's own, then its children's."""
    tree: dict[str, Any] = {}
    for path in (*scope.parameters, *scope.buffers):
        *modules, _ = path.split(".")
        node = tree
        for name in modules:
            node = node.setdefault(name, {})
        node.setdefault("", []).append(path)
    return _own_first(tree)


def _own_first(node: dict[str, Any]) -> Iterator[str]:
    yield from node.get("", ())
    for name, child in node.items():
        if name:
            yield from _own_first(child)


def _children_first(node: dict[str, Any]) -> Iterator[int]:
    for name, child in node.items():
        if name:
            yield from _children_first(child)
    yield from node.get("", ())


class Module:
    """A callable whose arguments stay alive for the whole call.

    ``torch.nn.Module._call_impl`` holds them in its ``args`` tuple, so a caller's temporary outlives its last use
    inside ``forward``; ``args`` below does the same.
    """

    #: Whether the library's ``forward`` takes ``**kwargs``, so that Trainer hands it ``num_items_in_batch``.
    takes_loss_kwargs = False
    #: Whether the model then divides its summed loss by that number, or ignores it and takes the mean.
    uses_num_items = True
    #: Whether a whole model returns its own loss first, from the images alone: no loop fetches labels for it.
    own_loss = False
    #: Parameters that a whole model exempts from weight decay by name (timm's ``no_weight_decay``).
    no_weight_decay: frozenset[str] = frozenset()
    #: The repeated blocks of a whole model, in order.
    blocks: Sequence[Module]
    #: Whether a call keeps only its arguments and is run again in the backward pass.
    checkpointed = False
    #: What the library hands a checkpointed call by keyword: all but the first argument.
    keywords: tuple[str, ...] = ()
    #: Whether the keywords are bound to the function that is checkpointed (transformers); else torch gets them (timm).
    binds_keywords = False
    #: Set where equal blocks share one play.
    repeats: Repeats | None = None
    #: What runs around ``forward``, inside a checkpoint: called with the module and its arguments.
    around: Callable[[Module, tuple[Any, ...]], Any] | None = None

    def __init__(self, scope: Scope) -> None:
        self.run = scope.run
        self.layer = scope.layer
        self.path = scope.path

    def __call__(self, *args: Any) -> Any:
        return self.play(args) if self.repeats is None else self.repeats(self, args)

    def play(self, args: tuple[Any, ...]) -> Any:
        """A call of this very module."""
        if not self.checkpointed:
            return self.run_forward(args)
        return checkpoint_reentrant(self, args) if self.run.reentrant else checkpoint(self, args)

    def run_forward(self, args: tuple[Any, ...]) -> Any:
        """``forward`` under this module's row of the per-layer table."""
        run = self.run
        outer, run.layer = run.layer, self.layer
        if run.module_hook is not None:
            call_hook(run, "module_hook", self, True)
        result = self.forward(*args) if self.around is None else self.around(self, args)
        if run.module_hook is not None:
            call_hook(run, "module_hook", self, False)
        run.layer = outer
        return result

    def enable_checkpointing(self, count: int | None) -> None:
        """Checkpoint a whole model's first ``count`` blocks (None: all), one by one unless its library differs."""
        for block in self.blocks[:count]:
            block.checkpointed = True

    def forward(self, *args: Any) -> Any:
        """The library's ``forward``."""
        raise NotImplementedError
