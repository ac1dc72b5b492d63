"""A run once more, block by block: births and deaths from a witness, and marks that say what the blocks were.

An address says which block a parameter, a gradient or a state lies in; a block that is none of these is an activation
where a forward pass made it, and else a temporary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .build import Built
from .events import PHASES, Allocation, Span, peak_within
from .layers import MODEL, layer_of
from .loops import STEPS

__all__ = ["Mark", "Place", "Reader"]

NODE = "autograd::engine::evaluate_function"
_CAST = "aten::_to_copy"
#: What borrows by instruction set and number of threads: oneDNN's and MKL's products, and attention's tiles.
_KERNELS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)

#: What a mark does when time has come to it.
Mark = Callable[["Reader"], None]


class Place(NamedTuple):
    """Where an event lies: the innermost operator, the number of the autograd node, the address that is copied,
    and the kernel of :data:`_KERNELS` around it."""

    operator: str = ""
    node: int | None = None
    copied: int = 0
    kernel: str = ""
    kernel_ends_ns: int = 0

    def inside(self, event: Any) -> Place:
        """One operator further in."""
        fields, place = event.extra_fields, self._replace(operator=event.name)
        if event.name.startswith(NODE):
            return place._replace(node=fields.sequence_number)
        if event.name.startswith(_KERNELS):
            return place._replace(kernel=event.name, kernel_ends_ns=event.end_time_ns)
        if event.name == _CAST and isinstance(fields.inputs[0], torch._C._profiler._TensorMetadata):
            return place._replace(copied=fields.inputs[0].storage_data_ptr or 0)
        return place


_NOWHERE = Place()


class Reader:
    """The run once more: blocks are born and die, and marks say what they were."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.events: list[Allocation] = []  # when all is read: the tensors among ``_all``
        self._all: list[Allocation] = []
        self.tick = self.forward_tick = self.backward_tick = 0
        self.held: tuple[Allocation, ...] = ()
        self.gradient_bytes = self.optimizer_bytes = 0
        self.of_node: dict[int, str] = {}
        self.borrowed: dict[str, int] = {}  # the largest block of each kernel
        self._live: dict[int, Allocation] = {}
        self._inside: dict[int, Place] = {}
        self._modules: list[str] = []
        self._phase, self._begins = "loop", 0
        self._label: str | None = None
        self._spans: list[Span] = []
        self._starts: list[int] = []
        self._is_over = False

    @property
    def spans(self) -> list[Span]:
        """The phases of the reported step, in order."""
        return self.spans_of(STEPS - 1)

    @property
    def num_steps(self) -> int:
        """The steps that are reported: later ones say only what grows."""
        return min(len(self._starts), STEPS)

    def spans_of(self, step: int) -> list[Span]:
        """The phases of a step, in order."""
        starts = [*self._starts, len(self._spans)]
        return [span for span in self._spans[starts[step] : starts[step + 1]] if span.phase in PHASES]

    def spans_named(self, phase: str) -> list[Span]:
        """Every span of a phase."""
        return [span for span in self._spans if span.phase == phase]

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

    def born(self, address: int, num_bytes: int, place: Place = _NOWHERE) -> Allocation:
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

    def _kind(self, place: Place) -> str:
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
        self._spans.append(Span(phase=self._phase, begins=self._begins, ends=self.tick))
        self._phase = before

    def step(self, step: int) -> None:
        """The third step is reported; the later ones are followed only to see what they free."""
        self._starts.append(len(self._spans))
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
