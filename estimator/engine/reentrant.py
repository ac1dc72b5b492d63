"""Re-entrant activation checkpointing (torch/utils/checkpoint.py of torch 2.14, ``CheckpointFunction``).

The forward pass runs without grad mode and keeps the tensors among the positional arguments. The backward pass of the
one node that stands for it runs the whole segment again, with grad, on detached arguments and under a fresh autocast
context, and then an engine of its own behind the result. The segment's result and the gradient that came in live until
that is over; the gradients of the arguments are those that it has left in their ``grad``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest
from ..units import DType
from .autograd import AccumulateGrad, edge_to, record_all, run_graph
from .run import Autocast
from .tensor import Shape, Tensor

if TYPE_CHECKING:
    from .module import Module

__all__ = ["checkpoint_reentrant"]


class _InputGrad(AccumulateGrad):
    """The ``grad`` of a detached argument: no parameter's, and no hook of the run sees it."""

    __slots__ = ()
    kind = None

    def accumulate(self, buffer: list[Tensor | None]) -> None:
        if buffer[0] is not None:
            self._steal(buffer[0].run, buffer)

    def take(self, grad: Tensor) -> None:
        self.grad = grad


def checkpoint_reentrant(module: Module, args: tuple[Any, ...]) -> Any:
    """``torch.utils.checkpoint.checkpoint(module, *args, use_reentrant=True)``.

    Without an argument that requires grad nothing behind the segment does. What the library hands over by keyword, or
    in a tuple, is no argument: the node holds it, autograd does not see it, and backward runs on into the graph behind
    it. Raises InvalidRequest for keywords that torch gets.
    """
    run = module.run
    if not run.grad_enabled:
        return module.run_forward(args)
    hidden = args[1:] if module.keywords else tuple([a for a in args if not isinstance(a, Tensor)])
    if module.keywords and not module.binds_keywords:
        raise InvalidRequest(
            f"{module.layer} is checkpointed with keywords ({', '.join(module.keywords)}), which use_reentrant=True "
            "refuses; leave out --checkpoint-reentrant"
        )
    segment = _Segment(module, args)
    with run.no_grad():
        result = segment.run_forward(args)
    inputs = tuple([args[i] for i in segment.places])
    if any(x.requires_grad for x in inputs):
        result = _apart(result, inputs)
        outs = _tensors(result)
        segment.outs = tuple([(x.shape, x.dtype) for x in outs])
        before, run.layer = run.layer, module.layer
        record_all(outs, inputs, segment.backward, inputs)
        run.layer = before
        assert outs[0].node is not None
        outs[0].node.context = hidden
    return result


class _Segment:
    """One checkpointed call."""

    def __init__(self, module: Module, args: tuple[Any, ...]) -> None:
        self.module = module
        autocast = module.run.autocast
        self.autocast_dtype = None if autocast is None else autocast.dtype
        self.places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and not (i and module.keywords)]
        self.args = [None if i in self.places else a for i, a in enumerate(args)]
        self.requires_grad = [args[i].requires_grad for i in self.places]
        self.outs: tuple[tuple[Shape, DType], ...] = ()

    def run_forward(self, args: tuple[Any, ...]) -> Any:
        """Equal blocks inside share nothing: they are not called as those of the model are."""
        run = self.module.run
        run.num_segments += 1
        result = self.module.run_forward(args)
        run.num_segments -= 1
        return result

    def backward(self, saved: tuple[Tensor, ...], grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
        """``CheckpointFunction.backward``; an output that nobody used has a gradient of zeros."""
        run, layer = self.module.run, self.module.layer
        for i, (shape, dtype) in enumerate(self.outs):
            if grads[i] is None:
                grads[i] = Tensor.empty(run, shape, dtype)
        inputs = [_detached(x, requires_grad) for x, requires_grad in zip(saved, self.requires_grad)]
        outs = _tensors(self._recompute(inputs))
        roots = [(out, grad) for out, grad in zip(outs, grads) if out.requires_grad and grad is not None]
        run_graph(tuple([edge_to(out) for out, _ in roots]), [grad for _, grad in roots])
        run.layer = layer
        return tuple([None if x.accumulator is None else x.accumulator.grad for x in inputs])

    def _recompute(self, inputs: list[Tensor]) -> Any:
        run = self.module.run
        args = list(self.args)
        for i, x in zip(self.places, inputs):
            args[i] = x
        before = run.kind, run.layer, run.autocast, run.grad_enabled
        run.kind, run.grad_enabled = "activations", True
        run.autocast = None if self.autocast_dtype is None else Autocast(self.autocast_dtype)
        result = self.run_forward(tuple(args))
        run.kind, run.layer, run.autocast, run.grad_enabled = before
        return result


def _detached(x: Tensor, requires_grad: bool) -> Tensor:
    x = x.detach()
    if requires_grad:
        x.requires_grad, x.accumulator = True, _InputGrad(x)
    return x


def _tensors(result: Any) -> tuple[Tensor, ...]:
    """The outputs that autograd knows."""
    return tuple([x for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, Tensor)])


def _apart(result: Any, inputs: tuple[Tensor, ...]) -> Any:
    """An argument that is handed back becomes a view of itself (torch/csrc/autograd/custom_function.cpp)."""
    if isinstance(result, tuple):
        return tuple([_apart(x, inputs) for x in result])
    return result.alias(result.shape, result.strides) if any(result is x for x in inputs) else result
