"""Torch's memory profiler as the witness of a run on the CPU: every block of its allocator, with kind and layer.

The run leaves marks between the profiler's events (:class:`Marks`); afterwards both are read in the order of time
(:func:`follow`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import profile, record_function

from .build import Built
from .layers import layer_of
from .reader import Mark, Place, Reader

__all__ = ["Marks", "follow"]

_PREFIX = "vitmem "


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


def _events(profiler: profile) -> Iterator[tuple[Any, Place]]:
    """Allocations, marks and operators, each with its place."""
    types = torch._C._profiler._EventType
    results: Any = profiler.profiler
    stack = [(event, Place()) for event in results.kineto_results.experimental_event_tree()]
    while stack:
        event, place = stack.pop()
        if event.tag in (types.Allocation, types.TorchOp):
            yield event, place
        inside = place.inside(event) if event.tag == types.TorchOp else place
        stack.extend((child, inside) for child in event.children)
