"""Listens to a training loop: tells the tracker where it is, and notes what the third step held at its milestones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .build import Built
from .events import PHASES, Allocation, Span
from .layers import layer_of
from .loops import STEPS
from .tracker import Tracker

__all__ = ["Watch"]


class Watch:
    """A ``vitmem.validate.loops.Recorder`` over the tracker; milestones are those of the reported step.

    ``last`` is that step, counted from 0: the steps before it lead to it, later ones are only followed.
    """

    def __init__(self, built: Built, optimizer: torch.optim.Optimizer, last: int = STEPS - 1) -> None:
        self.built = built
        self.tracker = Tracker()
        self.forward_tick = self.backward_tick = self.step_tick = 0
        self.held: tuple[Allocation, ...] = ()
        self.gradient_bytes = self.optimizer_bytes = 0
        self.optimizer = optimizer
        self._averages: list[tuple[str, Tensor]] = []
        self._last = last
        self._step = 0
        self._starts: list[int] = []
        self._owned = {id(p): name for name, p in built.model.named_parameters()}
        self._adopt_model()
        self.stepped()  # Adagrad's states are made with it

    @property
    def events(self) -> list[Allocation]:
        """Every storage, in order of birth."""
        return self.tracker.events

    @property
    def spans(self) -> list[Span]:
        """The phases of the reported step, in order."""
        return self.spans_of(self._last)

    @property
    def num_steps(self) -> int:
        """The steps that began."""
        return len(self._starts)

    def spans_of(self, step: int) -> list[Span]:
        """The phases of a step, in order; an evaluation belongs to none."""
        starts = [*self._starts, len(self.tracker.spans)]
        return [span for span in self.tracker.spans[starts[step] : starts[step + 1]] if span.phase in PHASES]

    def spans_named(self, phase: str) -> list[Span]:
        """Every span of a phase."""
        return [span for span in self.tracker.spans if span.phase == phase]

    def layer(self, path: str) -> str:
        """The row of the table for a module's path."""
        return layer_of(path, library=self.built.library)

    def _adopt_model(self) -> None:
        for name, parameter in self.built.model.named_parameters():
            self.tracker.adopt(parameter, kind="parameters", layer=self._layer_of_tensor(name))
        for name, buffer in self.built.model.named_buffers():
            self.tracker.adopt(buffer, kind="buffers", layer=self._layer_of_tensor(name))
        for name, module in self.built.model.named_modules():
            module.register_forward_pre_hook(_entering(self.tracker, self.layer(name)))
            module.register_forward_hook(_leaving(self.tracker), always_call=True)

    def _layer_of_tensor(self, name: str) -> str:
        """A block's tensor belongs to the block, a loose one (``cls_token``) to the model."""
        return self.layer(name.rpartition(".")[0])

    # the recorder

    def during(self, phase: str) -> AbstractContextManager[None]:
        """See :meth:`Tracker.during`."""
        return self.tracker.during(phase)

    def inputs(self) -> AbstractContextManager[None]:
        """Batches and what the loader makes of them."""
        return self.tracker.labelled("inputs")

    def averages(self, model: nn.Module) -> None:
        """An average of the model that the optimizer step keeps: all of it counts as the optimizer's state."""
        self._averages = [*model.named_parameters(), *model.named_buffers()]
        for name, tensor in self._averages:
            self.tracker.adopt(tensor, kind="optimizer_state", layer=self._layer_of_tensor(name))

    def step_begins(self, step: int) -> None:
        """Steps are counted from 0."""
        self._step = step
        self._starts.append(len(self.tracker.spans))

    def forward_ended(self, *held: Tensor) -> None:
        """``held`` are the loss and logits that a name of the loop keeps."""
        self.tracker.settle()
        if self._step > self._last:
            return
        self.forward_tick = self.tracker.tick
        events = (self.tracker.find(tensor) for tensor in held)
        self.held = tuple(event for event in events if event is not None)

    def backward_ended(self) -> None:
        """Whatever is a gradient now has been one since it was born."""
        self.tracker.settle()
        gradients = [(name, p.grad) for name, p in self.built.model.named_parameters() if p.grad is not None]
        for name, gradient in gradients:
            self.tracker.adopt(gradient, kind="gradients", layer=self._layer_of_tensor(name))
        if self._step > self._last:
            return
        self.backward_tick = self.tracker.tick
        self.gradient_bytes = self._allocated_bytes(gradient for _, gradient in gradients)

    def stepped(self) -> None:
        """The optimizer's states on the device, named after the parameter that they belong to."""
        self.tracker.settle()
        states = [(self._owned[id(p)], t) for p, state in self.optimizer.state.items() for t in _tensors(state)]
        for name, tensor in states:
            self.tracker.adopt(tensor, kind="optimizer_state", layer=self._layer_of_tensor(name))
        self.optimizer_bytes = self._allocated_bytes(tensor for _, tensor in (*states, *self._averages))

    def _allocated_bytes(self, tensors: Iterable[Tensor]) -> int:
        """Each allocation once: the gradients of a packed bias are views of one, and one summed in place into a part
        of a larger tensor keeps all of it."""
        events = {id(event): event.bytes for tensor in tensors if (event := self.tracker.find(tensor)) is not None}
        return sum(events.values())


def _tensors(state: dict[str, Any]) -> Iterator[Tensor]:
    return (value for value in state.values() if isinstance(value, Tensor) and value.device.type == "meta")


def _entering(tracker: Tracker, layer: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any) -> None:
        tracker.enter(layer)

    return hook


def _leaving(tracker: Tracker) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        tracker.leave()

    return hook
