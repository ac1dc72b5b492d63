"""The autograd engine: what a node keeps, in which order nodes run, and when gradients are added in place.

Source: torch/csrc/autograd/{engine,input_buffer}.cpp and functions/accumulate_grad.h of torch 2.14.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from sys import getrefcount

from ..errors import InvalidRequest
from ..units import DType
from .checkpoint import Held
from .input_buffer import add
from .log import Face, Take, call_hook
from .run import Run
from .tensor import Shape, Tensor, contiguous_strides

__all__ = [
    "AccumulateGrad",
    "Backward",
    "Node",
    "Saved",
    "backward",
    "edge_to",
    "ones_like",
    "record",
    "record_all",
    "run_graph",
    "sum_to",
]

Saved = tuple[Tensor, ...]
#: Where a gradient goes, as which input, and the shape and type it must have there (the forward input's).
Edge = tuple["Node | AccumulateGrad", int, Shape, DType]
Backward = Callable[[Saved, list["Tensor | None"]], "tuple[Tensor | None, ...]"]


class Node:
    """One recorded operator: ``saved`` lives until its backward has run and its outputs were cast and reduced.

    ``context`` is what lives as long as the node itself: until nothing holds the graph any more.
    """

    __slots__ = ("context", "edges", "function", "layer", "num_inputs", "saved", "sequence")

    def __init__(
        self,
        edges: tuple[Edge | None, ...],
        function: Backward,
        saved: Saved | Held,
        num_inputs: int,
        layer: str,
        sequence: int,
    ) -> None:
        self.edges = edges
        self.function: Backward | None = function
        self.saved: Saved | Held = saved
        self.num_inputs = num_inputs
        self.layer = layer
        self.sequence = sequence
        self.context: object = None


class AccumulateGrad:
    """The graph's leaf: stores a gradient in its parameter."""

    __slots__ = ("grad", "layer", "num_inputs", "rank", "shape", "strides")
    edges: tuple[Edge | None, ...] = ()
    #: What a gradient is from now on; None: what it was.
    kind: str | None = "gradients"

    def __init__(self, parameter: Tensor) -> None:
        self.num_inputs = 1
        self.layer = parameter.storage.layer
        self.grad: Tensor | None = None
        self.rank = 0  # among the gradients that were made, of the last one
        self.shape, self.strides = parameter.shape, parameter.strides

    def accumulate(self, buffer: list[Tensor | None]) -> None:
        """Steal the gradient when nobody else holds it and it is laid out like the parameter; else copy or add.

        Adding in place needs no new memory. A hook of the run finds the gradient in its place.
        """
        if buffer[0] is None:
            return
        run = buffer[0].run
        if self.grad is None:
            self._steal(run, buffer)
        if run.grad_hook is not None:
            call_hook(run, "grad_hook", self)

    def _steal(self, run: Run, buffer: list[Tensor | None]) -> None:
        assert buffer[0] is not None
        if getrefcount(buffer[0]) == 2 and self._obeys_layout(buffer[0]):
            grad = buffer[0]
        else:
            grad = Tensor.empty(run, self.shape, buffer[0].dtype, strides=self.strides)
        grad.storage.relabel(kind=self.kind)
        self.take(grad.detach())

    def take(self, grad: Tensor) -> None:
        """A gradient where there was none."""
        self.grad, run = grad, grad.run
        run.num_gradients += 1
        self.rank = run.num_gradients
        if run.log is not None:
            run.log.append(Take(self, Face.of(grad)))

    def _obeys_layout(self, grad: Tensor) -> bool:
        return grad.strides == self.strides or all(
            size == 1 or stride == want for size, stride, want in zip(self.shape, grad.strides, self.strides)
        )


def record(
    out: Tensor,
    inputs: tuple[Tensor | None, ...],
    function: Backward,
    saved: Saved = (),
    *,
    saves_result: bool = False,
) -> Tensor:
    """Attach the node of an operator to its output; nothing when no input requires grad.

    ``function(saved, grads)`` returns one gradient per input. It must not hold a tensor except through ``saved``.
    ``saves_result``: something saved is made before ``out``, by the operator itself.
    """
    run = out.storage.run
    if run.grad_enabled:
        for x in inputs:
            if x is not None and x.requires_grad:
                out.node = _node(run, (out,), inputs, function, saved, saves_result)
                out.requires_grad = True
                break
    return out


def record_all(
    outs: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...], function: Backward, saved: Saved = ()
) -> None:
    """:func:`record` for an operator with several outputs."""
    run = outs[0].storage.run
    if not run.grad_enabled or not any(x is not None and x.requires_grad for x in inputs):
        return
    node = _node(run, outs, inputs, function, saved)
    for i, out in enumerate(outs):
        out.node, out.output_nr, out.requires_grad = node, i, True


def _node(
    run: Run,
    outs: tuple[Tensor, ...],
    inputs: tuple[Tensor | None, ...],
    function: Backward,
    saved: Saved,
    saves_result: bool = False,
) -> Node:
    tensors = tuple([x.detach() for x in saved]) if saved else ()
    kept = tensors if run.frame is None else run.frame.hold(tensors, None if saves_result else outs[0])
    run.sequence += 1
    return Node(tuple([edge_to(x) for x in inputs]), function, kept, len(outs), run.layer, run.sequence)


def edge_to(x: Tensor | None) -> Edge | None:
    """Where the gradient of an operator's input goes; None where nobody wants it."""
    if x is None or not x.requires_grad:
        return None
    if x.node is not None:
        return x.node, x.output_nr, x.shape, x.dtype
    assert x.accumulator is not None
    if x.run.use_hook is not None:
        call_hook(x.run, "use_hook", x.accumulator)
    return x.accumulator, 0, x.shape, x.dtype


def backward(loss: Tensor, gradient: Tensor) -> None:
    """Run the graph behind ``loss`` and drop what it saved."""
    edge = edge_to(loss)
    assert edge is not None, "backward() needs a loss that depends on a parameter"
    outputs: list[Tensor | None] = [gradient]
    del loss, gradient
    run_graph((edge,), outputs)


def run_graph(edges: tuple[Edge | None, ...], outputs: list[Tensor | None]) -> None:
    """``Engine::execute`` from a root with these edges and outputs, which it empties."""
    dependencies = _count_dependencies(edges)
    buffers: dict[Node | AccumulateGrad, list[Tensor | None]] = {}
    ready: list[tuple[int, Node, list[Tensor | None]]] = []
    leaves: list[tuple[AccumulateGrad, list[Tensor | None]]] = []  # ready before any node: they come first
    while True:
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            target, place, _, _ = edge
            buffer = buffers.pop(target, None)
            if buffer is None:
                buffer = [None] * target.num_inputs
            add(buffer, place, outputs, i)
            if dependencies[target] > 1:
                dependencies[target] -= 1
                buffers[target] = buffer
            elif isinstance(target, AccumulateGrad):
                leaves.append((target, buffer))
            else:
                heapq.heappush(ready, (-target.sequence, target, buffer))
            del buffer
        del outputs
        for leaf, buffer in leaves:
            leaf.accumulate(buffer)
            buffer.clear()
        leaves.clear()
        if not ready:
            return
        _, node, grads = heapq.heappop(ready)
        outputs, edges = _call(node, grads), node.edges
        del grads, node


def _count_dependencies(root: tuple[Edge | None, ...]) -> dict[Node | AccumulateGrad, int]:
    counts: dict[Node | AccumulateGrad, int] = {}
    todo = [root]
    while todo:
        for edge in todo.pop():
            if edge is not None:
                node = edge[0]
                seen = counts.get(node, 0)
                counts[node] = seen + 1
                if not seen:
                    todo.append(node.edges)
    return counts


def _call(node: Node, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Engine::call_function: the kernels, then ``validate_outputs``, and only then the saved tensors go."""
    if node.function is None:
        raise InvalidRequest(
            "every block runs backward through the graph of a tensor that all of them share, and it is gone after the "
            "first: with use_reentrant=True this model cannot be trained; leave out --checkpoint-reentrant"
        )
    known = next((grad for grad in grads if grad is not None), None)
    if known is None:
        return [None] * len(node.edges)
    run = known.storage.run
    del known
    saved = node.saved if isinstance(node.saved, tuple) else node.saved.unpack()
    run.layer = node.layer
    outputs = list(node.function(saved, grads))
    del saved  # a recomputed tensor was only on loan, and is gone before the outputs are cast
    for i, edge in enumerate(node.edges):
        if edge is None:
            outputs[i] = None
            continue
        _, _, shape, dtype = edge
        if (output := outputs[i]) is not None and (output.shape != shape or output.dtype is not dtype):
            del output
            outputs[i] = _validated(outputs, i, shape, dtype)
    output = None
    node.function = None
    node.saved = ()
    return outputs


def _validated(outputs: list[Tensor | None], i: int, shape: Shape, dtype: DType) -> Tensor:
    output = outputs[i]
    assert output is not None
    outputs[i] = None
    if output.shape != shape:
        output = sum_to(output, shape)
    return output if output.dtype is dtype else output.converted(dtype)


def sum_to(x: Tensor, shape: Shape) -> Tensor:
    """``at::sum_to``: sum the broadcast dimensions away; with fewer of them than before the result is a view.

    A kernel may borrow scratch for the reduction.
    """
    if x.shape == shape:
        return x
    from ..ops.reduce import reduced

    out = reduced(x, shape)
    return out.alias(shape, out.strides) if shape and len(shape) < len(x.shape) else out


def ones_like(x: Tensor) -> Tensor:
    """The gradient that starts a backward pass."""
    return Tensor.empty(x.run, x.shape, x.dtype, strides=contiguous_strides(x.shape))
