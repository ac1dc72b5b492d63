"""The caching allocator's own history as the witness of a run on a GPU: every block, with kind, layer and phase.

The history counts what is handed out and given back; a mark remembers the count, and comes up again where the history
has got so far. Which block a parameter, a gradient or a state lies in is said by its address. The history knows no
operators: autocast's copies of weights are activations here, and what a kernel borrows is a temporary.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from .build import Built
from .events import Allocation
from .layers import layer_of
from .profiled import Marks
from .reader import Mark, Reader

__all__ = ["TraceMarks", "TraceReader", "follow_trace", "record_history"]

#: cuBLAS's workspaces, the only blocks that nobody owns and that stay for good, are not smaller.
_WORKSPACE_BYTES = 64 * 2**10
_COUNTED = {"alloc", "free_requested"}


def record_history() -> None:
    """From here on, without stack traces."""
    torch.cuda.memory._record_memory_history(enabled="all", context=None)


class TraceMarks(Marks):
    """Marks by the number of blocks that were handed out and given back before them."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[int] = []
        self._begins = _count()

    def leave(self, mark: Mark) -> None:
        self.at.append(_count() - self._begins)
        self.marks.append(mark)

    def follow_model(self, built: Built, optimizer: torch.optim.Optimizer) -> None:
        """The gradients' hooks tell which layer the backward pass has come to."""
        super().follow_model(built, optimizer)
        for name, parameter in built.model.named_parameters():
            if parameter.requires_grad:
                self._tell_of(parameter, layer_of(name.rpartition(".")[0], library=built.library))

    def _tell_of(self, parameter: nn.Parameter, layer: str) -> None:
        def accumulated(reader: Reader) -> None:
            assert isinstance(reader, TraceReader)
            reader.accumulated(layer)

        register: Any = parameter.register_post_accumulate_grad_hook
        register(lambda _: self.leave(accumulated))


def _count() -> int:
    stats = torch._C._cuda_memoryStats(torch.cuda.current_device())["allocation"]["all"]
    count: int = stats["allocated"] + stats["freed"]
    return count


class TraceReader(Reader):
    """A block of the backward pass belongs to the layer whose gradient comes next."""

    def __init__(self, built: Built) -> None:
        super().__init__(built)
        self._waiting: list[Allocation] = []

    def placed(self, event: Allocation) -> None:
        if self._phase == "backward" and not self._modules:
            self._waiting.append(event)

    def accumulated(self, layer: str) -> None:
        for event in self._waiting:
            event.layer = layer
        self._waiting.clear()

    def name_workspaces(self) -> None:
        """What is alive at the end, was there before the reported step, and is nobody's."""
        begins = self.spans[0].begins
        for event in self._live.values():
            unowned = event.kind in {"activations", "temporaries"} and event.born <= begins
            if unowned and event.bytes >= _WORKSPACE_BYTES:
                event.kind = "workspaces"

    def highest_by_layer(self) -> dict[str, int]:
        """The largest total while a block of this layer was being made, in the reported steps."""
        total, highest = 0, Counter[str]()
        changes = [(event.born, event.bytes, event.layer) for event in self.events]
        changes += [(event.dies, -event.bytes, "") for event in self.events if event.dies is not None]
        for tick, change, layer in sorted(changes):
            total += change
            if layer and tick > self.spans[0].begins:
                highest[layer] = max(highest[layer], total)
        return dict(highest)


def follow_trace(marks: TraceMarks) -> TraceReader:
    """What the history says, as :func:`vitmem.validate.summary.summarise` reads it."""
    assert marks.built is not None
    reader, left = TraceReader(marks.built), list(zip(marks.at, marks.marks))[::-1]
    history: Any = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    for count, entry in enumerate(entry for entry in history if entry["action"] in _COUNTED):
        while left and left[-1][0] <= count:
            left.pop()[1](reader)
        if entry["action"] == "alloc":
            reader.placed(reader.born(entry["addr"], entry["size"]))
        else:
            reader.died(entry["addr"])
    while left:
        left.pop()[1](reader)
    reader.name_workspaces()
    reader.with_borrowed()
    return reader
