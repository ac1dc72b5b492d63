"""Torch's memory profiler as the witness of a run on the CPU: every block of its allocator, with kind and layer.

The run leaves marks between the profiler's events (:class:`Marks`); afterwards both are read in the order of time
(:func:`follow`). An address says which block a parameter, a gradient or a state lies in; a block that is none of these
is an activation where a forward pass made it, and else a temporary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import profile, record_function

from .build import Built
from .events import Allocation, Span, peak_within
from .layers import MODEL, layer_of
from .loops import STEPS

__all__ = ["Mark", "Marks", "Reader", "follow"]

_PREFIX = "vitmem "
_NODE = "autograd::engine::evaluate_function"
_CAST = "aten::_to_copy"
#: What borrows by instruction set and number of threads: oneDNN's and MKL's products, and attention's tiles.
_KERNELS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)

#: What a mark does when time has come to it.
Mark = Callable[["Reader"], None]


class Marks:
    """A ``vitmem.validate.loops.Recorder`` that leaves marks in the profile, read again by :func:`follow`."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.built: Built | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._averages: list[tuple[str, Tensor]] = []
        self._phase = "loop"

    def leave(self, mark: Mark) -> None:
        """Whatever the profiler sees from here on comes after ``mark``."""
        with record_function(f"{_PREFIX}{len(self.marks)}"):
            self.marks.append(mark)

    def follow_model(self, built: Built, optimizer: torch.optim.Optimizer) -> None:
        """Owners of what exists already, and hooks that tell where the forward pass is."""
        self.built, self._optimizer = built, optimizer
        for kind, tensors in (("parameters", built.model.named_parameters()), ("buffers", built.model.named_buffers())):
            self._own(kind, dict(tensors))
        for name, module in built.model.named_modules():
            layer = layer_of(name, library=built.library)
            module.register_forward_pre_hook(lambda *args, layer=layer: self.leave(lambda reader: reader.enter(layer)))
            module.register_forward_hook(lambda *args: self.leave(Reader.leave), always_call=True)

    def _own(self, kind: str, tensors: Mapping[str, Tensor], done: Mark | None = None) -> None:
        assert self.built is not None
        library = self.built.library
        owned = [
            (tensor.untyped_storage().data_ptr(), layer_of(name.rpartition(".")[0], library=library))
            for name, tensor in tensors.items()
        ]
        self.leave(lambda reader: reader.own(kind, owned, done))

    # the recorder

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        self.leave(lambda reader: reader.begin(phase))
        try:
            yield
        finally:
            self._phase = before
            self.leave(lambda reader: reader.end(before))

    @contextlib.contextmanager
    def inputs(self) -> Iterator[None]:
        self.leave(lambda reader: reader.label("inputs"))
        try:
            yield
        finally:
            self.leave(lambda reader: reader.label(None))

    def averages(self, model: nn.Module) -> None:
        self._averages = [*model.named_parameters(), *model.named_buffers()]
        self._own("optimizer_state", dict(self._averages))

    def step_begins(self, step: int) -> None:
        self.leave(lambda reader: reader.step(step))

    def forward_ended(self, *held: Tensor) -> None:
        addresses = [tensor.untyped_storage().data_ptr() for tensor in held]
        self.leave(lambda reader: reader.forward_ended(addresses))

    def backward_ended(self) -> None:
        assert self.built is not None
        named = self.built.model.named_parameters()
        self._own("gradients", {name: p.grad for name, p in named if p.grad is not None}, Reader.backward_ended)

    def stepped(self) -> None:
        assert self.built is not None
        assert self._optimizer is not None
        names = {id(p): name for name, p in self.built.model.named_parameters()}
        states: dict[str, Tensor] = {}
        for parameter, state in self._optimizer.state.items():
            states |= {f"{names[id(parameter)]}.{key}": v for key, v in state.items() if isinstance(v, Tensor)}
        self._own("optimizer_state", {**_of_parameters(states), **dict(self._averages)}, Reader.stepped)


def _of_parameters(states: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``blocks.0.norm1.weight.exp_avg`` under a name with one component less, as a parameter has."""
    return {f"{name.rpartition('.')[0]}#{name.rpartition('.')[2]}": tensor for name, tensor in states.items()}


class _Place(NamedTuple):
    """Where an event lies: the innermost operator, the number of the autograd node, the address that is copied,
    and the kernel of :data:`_KERNELS` around it."""

    operator: str = ""
    node: int | None = None
    copied: int = 0
    kernel: str = ""
    kernel_ends_ns: int = 0

    def inside(self, event: Any) -> _Place:
        """One operator further in."""
        fields, place = event.extra_fields, self._replace(operator=event.name)
        if event.name.startswith(_NODE):
            return place._replace(node=fields.sequence_number)
        if event.name.startswith(_KERNELS):
            return place._replace(kernel=event.name, kernel_ends_ns=event.end_time_ns)
        if event.name == _CAST and isinstance(fields.inputs[0], torch._C._profiler._TensorMetadata):
            return place._replace(copied=fields.inputs[0].storage_data_ptr or 0)
        return place


_NOWHERE = _Place()


class Reader:
    """The run once more: blocks are born and die, and marks say what they were."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.events: list[Allocation] = []  # when all is read: the tensors among ``_all``
        self._all: list[Allocation] = []
        self.spans: list[Span] = []
        self.tick = self.forward_tick = self.backward_tick = 0
        self.held: tuple[Allocation, ...] = ()
        self.gradient_bytes = self.optimizer_bytes = 0
        self.of_node: dict[int, str] = {}
        self.borrowed: dict[str, int] = {}  # the largest block of each kernel
        self._live: dict[int, Allocation] = {}
        self._inside: dict[int, _Place] = {}
        self._modules: list[str] = []
        self._phase, self._begins = "loop", 0
        self._label: str | None = None
        self._is_over = False

    @property
    def highest_bytes(self) -> int:
        """The largest total of the reported step, with what kernels borrowed."""
        return max(peak_within(self._all, span).bytes for span in self.spans)

    def with_borrowed(self) -> None:
        """Fills :attr:`events` with all blocks."""
        self.events = self._all

    def without_borrowed(self) -> None:
        """Fills :attr:`events` with all blocks but those that a kernel borrowed."""
        self.events = [event for event in self._all if event.kind != "workspaces"]

    def layer(self, path: str) -> str:
        """The row of the table for a module's path."""
        return layer_of(path, library=self.built.library)

    def born(self, address: int, num_bytes: int, place: _Place = _NOWHERE) -> Allocation:
        """A block was handed out."""
        self.tick += 1
        node = place.node
        inside = self._modules[-1] if self._modules else None
        layer = inside or (MODEL if node is None else self.of_node.get(node, MODEL))
        event = Allocation(bytes=num_bytes, kind=self._kind(place), layer=layer, op=place.operator, born=self.tick)
        self._all.append(event)
        self._live[address] = event
        self._inside[address] = place
        return event

    def _kind(self, place: _Place) -> str:
        if self._label is not None:
            return self._label
        source = self._live.get(place.copied)
        if source is not None and source.kind == "parameters" and self._modules:
            return "autocast_weights"
        forward = self._phase == "forward" or (self._phase == "backward" and self._modules)
        return "activations" if forward else "temporaries"

    def died(self, address: int, time_ns: int = 0) -> None:
        """A block was given back."""
        event = self._live.pop(address, None)
        if event is None:
            return
        self.tick += 1
        event.dies = self.tick
        place = self._inside.pop(address)
        if time_ns < place.kernel_ends_ns:
            event.kind = "workspaces"
            self.borrowed[place.kernel] = max(self.borrowed.get(place.kernel, 0), event.bytes)

    def operator(self, sequence: int) -> None:
        """A forward operator made the node of this number: what backward makes for it belongs to the same layer."""
        if self._phase == "forward" and self._modules:
            self.of_node[sequence] = self._modules[-1]

    # marks

    def enter(self, layer: str) -> None:
        self._modules.append(layer)

    def leave(self) -> None:
        self._modules.pop()

    def label(self, kind: str | None) -> None:
        self._label = kind

    def begin(self, phase: str) -> None:
        self._phase, self._begins = phase, self.tick

    def end(self, before: str) -> None:
        if not self._is_over:
            self.spans.append(Span(phase=self._phase, begins=self._begins, ends=self.tick))
        self._phase = before

    def step(self, step: int) -> None:
        """The third step is reported; the later ones are followed only to see what they free."""
        if step == STEPS - 1:
            self.spans.clear()
        self._is_over = step >= STEPS

    def own(self, kind: str, owned: list[tuple[int, str]], done: Mark | None) -> None:
        for address, layer in owned:
            if address in self._live:
                self._live[address].kind, self._live[address].layer = kind, layer
        if done is not None:
            done(self)

    def forward_ended(self, held: list[int]) -> None:
        if self._is_over:
            return
        self.forward_tick = self.tick
        self.held = tuple(self._live[address] for address in held if address in self._live)

    def backward_ended(self) -> None:
        if self._is_over:
            return
        self.backward_tick = self.tick
        self.gradient_bytes = self._bytes_of("gradients")

    def stepped(self) -> None:
        self.optimizer_bytes = self._bytes_of("optimizer_state")

    def _bytes_of(self, kind: str) -> int:
        return sum(event.bytes for event in self._live.values() if event.kind == kind)


def follow(profiler: profile, marks: Marks) -> Reader:
    """What the profiler saw, as :func:`vitmem.validate.summary.summarise` reads it."""
    assert marks.built is not None
    reader = Reader(marks.built)
    for event, place in sorted(_events(profiler), key=lambda pair: pair[0].start_time_ns):
        fields = event.extra_fields
        if event.tag == torch._C._profiler._EventType.Allocation:
            if fields.alloc_size > 0:
                reader.born(fields.ptr, fields.alloc_size, place)
            else:
                reader.died(fields.ptr, event.start_time_ns)
        elif event.name.startswith(_PREFIX):
            marks.marks[int(event.name.removeprefix(_PREFIX))](reader)
        elif fields.sequence_number >= 0 and place.node is None:
            reader.operator(fields.sequence_number)
    reader.without_borrowed()
    return reader


def _events(profiler: profile) -> Iterator[tuple[Any, _Place]]:
    """Allocations, marks and operators, each with its place."""
    types = torch._C._profiler._EventType
    results: Any = profiler.profiler
    stack = [(event, _Place()) for event in results.kineto_results.experimental_event_tree()]
    while stack:
        event, place = stack.pop()
        if event.tag in (types.Allocation, types.TorchOp):
            yield event, place
        inside = place.inside(event) if event.tag == types.TorchOp else place
        stack.extend((child, inside) for child in event.children)
