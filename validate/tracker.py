"""Follows every storage of the meta device from birth to death, as the same step would make them on CUDA.

A dispatch mode sees each operator that autograd runs, forward and backward; a weak reference to each new storage sees
it die. Two things differ under a dispatch mode from plain CUDA tensors, both because ``isTensorSubclassLike`` is true
(torch 2.14, ATen/TensorSubclassLikeUtils.h): the engine sums two gradients out of place
(torch/csrc/autograd/input_buffer.cpp), and ``index_backward``, ``gather_backward``, ``norm_backward`` and friends pick
their functional variants (FunctionsManual.cpp). :data:`_TAKES_OVER` undoes it: where the first operand's storage dies
with the operator, the result is taken to live in that storage. A view's base owns the storage as well, and the engine
sums into none on CUDA either.
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .attention import with_host_seeds
from .cudnn import in_cudnn_format
from .events import Allocation, Span
from .layer_norm import in_row_major
from .layers import MODEL

__all__ = ["Tracker", "is_dense"]

aten = torch.ops.aten

_TAKES_OVER = {
    aten.add.Tensor,
    aten.index_put.default,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.scatter_add.default,
}

#: Operators without a meta kernel, with what they return: nothing is read, nothing is allocated.
_ANSWERS: Mapping[Any, Any] = {
    aten._amp_foreach_non_finite_check_and_unscale_.default: lambda *args: None,
    aten._amp_update_scale_.default: lambda scale, *args: scale,
    aten._local_scalar_dense.default: lambda scalar: torch.zeros((), dtype=scalar.dtype).item(),
    aten.equal.default: lambda *args: True,
}

#: What CUDA's kernels return otherwise than meta's: other strides, scalars of the host.
_AS_ON_CUDA: Mapping[Any, Callable[[Any, Any], Any]] = {
    aten.convolution.default: lambda result, args: in_cudnn_format(result, args[0], args[1]),
    aten.native_layer_norm_backward.default: lambda result, args: in_row_major(result),
    aten._scaled_dot_product_efficient_attention.default: with_host_seeds,
}


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlap, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The list of :class:`Allocation` of everything that runs while it is active; ticks count births and deaths."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Allocation] = []
        self.spans: list[Span] = []
        self.tick = 0
        self.phase = "loop"
        self._kind: str | None = None
        self._modules: list[str] = []
        self._live: dict[int, Allocation] = {}
        self._inheritance: tuple[int, Allocation, int] | None = None
        self._starts: list[int] = [0]
        self._layers: list[str] = [MODEL]

    # what exists and what it is

    def adopt(self, tensor: Tensor, *, kind: str, layer: str) -> None:
        """Counts a tensor that existed before the first step, or renames one that does."""
        known = self.find(tensor)
        if known is None:
            known = self._born(tensor.untyped_storage(), op="(built)")
        known.kind, known.layer = kind, layer

    def find(self, tensor: Tensor) -> Allocation | None:
        """The allocation behind ``tensor``, if it lives on the followed device."""
        return self._live.get(tensor.untyped_storage()._cdata)

    @contextmanager
    def labelled(self, kind: str) -> Iterator[None]:
        """Everything born inside is of this kind."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase of the step; its span ends up in :attr:`spans`."""
        self.settle()
        before, self.phase, begins = self.phase, phase, self.tick
        try:
            yield
        finally:
            self.settle()
            self.phase = before
            self.spans.append(Span(phase=phase, begins=begins, ends=self.tick))

    # where in the model the program is

    def enter(self, layer: str) -> None:
        """The forward pass entered a module of ``layer``."""
        self._modules.append(layer)
        self._mark(layer)

    def leave(self) -> None:
        """The forward pass left the module entered last."""
        self._modules.pop()
        self._mark(self._layer())

    def recompute(self) -> None:
        """A re-entrant segment runs again: the graph that it makes belongs to its node's layer, unless modules say
        otherwise."""
        self._mark(self._layer())

    def _mark(self, layer: str) -> None:
        """Nodes of the graph made from here on belong to ``layer``: sequence numbers only grow."""
        start = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self._layers[-1] != layer:
            self._starts.append(start)
            self._layers.append(layer)

    def _layer(self) -> str:
        if self._modules:
            return self._modules[-1]
        node = torch._C._current_autograd_node() if self.phase == "backward" else None
        if node is None:
            return MODEL
        position = bisect.bisect_right(self._starts, node._sequence_nr()) - 1
        return self._layers[position] if node.name() != "torch::autograd::AccumulateGrad" else self._last_layer

    _last_layer = MODEL

    # births and deaths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.settle()
        answer = _ANSWERS.get(func)
        if answer is not None and _on_meta(args):
            return answer(*args)
        result = func(*args, **(kwargs or {}))
        corrected = _AS_ON_CUDA.get(func)
        if corrected is not None and _on_meta(args):
            result = corrected(result, args)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "meta":
                self._see(leaf, func)
        if func in _TAKES_OVER and self._may_take_over() and not (func is aten.add.Tensor and args[0]._is_view()):
            self._expect_inheritance(args[0], result)
        return result

    def settle(self) -> None:
        """The operator before has let go of its operands: what did not die with it lives on."""
        self._inheritance = None

    def _may_take_over(self) -> bool:
        return self.phase == "backward" and not torch.is_grad_enabled() and not self._modules

    def _expect_inheritance(self, operand: Any, result: Tensor) -> None:
        if not isinstance(operand, Tensor) or operand.shape != result.shape or operand.dtype != result.dtype:
            return
        heir = self.find(result)
        if heir is not None and is_dense(operand):
            self._inheritance = operand.untyped_storage()._cdata, heir, result.untyped_storage()._cdata

    def _see(self, tensor: Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            self._born(storage, op=str(func))

    def _born(self, storage: torch.UntypedStorage, *, op: str) -> Allocation:
        self.tick += 1
        self._last_layer = self._layer()
        event = Allocation(
            bytes=storage.nbytes(), kind=self._kind_at_birth(), layer=self._last_layer, op=op, born=self.tick
        )
        self.events.append(event)
        self._live[storage._cdata] = event
        weakref.finalize(storage, self._died, storage._cdata).atexit = False
        return event

    def _kind_at_birth(self) -> str:
        if self._kind is not None:
            return self._kind
        return "activations" if self.phase == "forward" or self._recomputing() else "temporaries"

    def _recomputing(self) -> bool:
        """Checkpointing runs the forward again inside a node; before the first node, gradients are on as well.

        A re-entrant segment inside another runs there without gradients first.
        """
        inside = torch._C._current_autograd_node() is not None
        return self.phase == "backward" and inside and (torch.is_grad_enabled() or bool(self._modules))

    def _died(self, key: int) -> None:
        event = self._live.pop(key)
        if self._inheritance is not None and self._inheritance[0] == key:
            _, heir, heir_key = self._inheritance
            self._inheritance = None
            if self._live.get(heir_key) is heir:
                self.events.remove(heir)
                self._live[heir_key] = event
                return
        self.tick += 1
        event.dies = self.tick


def _on_meta(args: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.device.type == "meta" for leaf in pytree.tree_leaves(args))
