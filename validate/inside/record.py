"""The figures of a running training: the peak of each phase, step and epoch, and what is left at the end of a step."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import nn
from vitmem.result import Estimate

from ..layers import MODEL, layer_of
from .leak import Leak, find_leak
from .meter import Meter
from .report import Comparison, MemoryReport

__all__ = ["OF_A_STEP", "Record"]

#: The phases of a training step; what else is named lies between two.
OF_A_STEP = ("forward", "backward", "forward_backward", "optimizer_step")

#: Steps that are remembered: for the leak, and one by one in the report.
_REMEMBERED = 1000


class Record:
    """Takes peaks from a meter; whoever drives it says which phase ends."""

    def __init__(self, meter: Meter, device: torch.device, estimate: Estimate | None, *, layers: bool) -> None:
        self.meter, self.device, self.estimate, self.watches_layers = meter, device, estimate, layers
        self.num_steps = 0
        self.reserved: int | None = None
        self.phases: dict[str, int] = {}
        self.epochs: list[dict[str, int]] = [{}]
        self.steps: deque[int] = deque(maxlen=_REMEMBERED)
        self.points: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self.layers: dict[str, int] = {}
        self.point: tuple[int, int] | None = None
        self.end_of_step: int | None = None
        self._step = 0
        self._handles: list[Any] = []

    def start(self, model: nn.Module) -> None:
        """Begin to count, with what the model already holds."""
        self.meter.start(model)
        if self.watches_layers:
            self._hook(model)

    def split_at_the_end_of_forward(self, model: nn.Module) -> None:
        """Each of the model's own calls in training ends a phase."""

        def ended(module: nn.Module, args: Any, output: Any) -> None:
            if module.training and torch.is_grad_enabled():
                self.ends("forward", in_step=True)

        self._handles.append(model.register_forward_hook(ended))

    def stop(self) -> None:
        """Count no more; hooks are taken off."""
        self.meter.stop()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def ends(self, phase: str, *, in_step: bool = False) -> int:
        """``phase`` is over: the peak since the last call is its own."""
        peak, reserved = self.meter.take_peak()
        for row in (self.phases, self.epochs[-1]):
            row[phase] = max(row.get(phase, 0), peak)
        if reserved is not None:
            self.reserved = max(self.reserved or 0, reserved)
        if in_step:
            self._step = max(self._step, peak)
        return peak

    def step_ended(self) -> None:
        """An optimizer step is over."""
        self.steps.append(self._step)
        self.end_of_step = self.meter.now()
        self.point = (self.num_steps, self.end_of_step)
        self.num_steps += 1
        self._step = 0

    def goes_on(self) -> None:
        """Another step of the same epoch follows: the end of the last one is the same point as that of any other.

        At the end of an epoch it is not: the loader holds no next batch then.
        """
        if self.point is not None:
            self.points.append(self.point)
            self.point = None

    def epoch_ended(self) -> dict[str, int]:
        """The peaks of the epoch that is over."""
        self.epochs.append({})
        return self.epochs[-2]

    def leak(self) -> Leak | None:
        """Growth at the end of the steps so far."""
        return find_leak(list(self.points))

    def comparison(self) -> Comparison | None:
        """The estimate's figure that can be measured here: reserved where it is known, then allocated, then tensors."""
        if self.estimate is None or not self.phases:
            return None
        peak, verdict = self.estimate.peak, self.estimate.verdict
        limit = None if verdict is None else int(verdict["usable_bytes"])
        largest = max(self.phases.values())
        figures: list[tuple[str, int | None, int]] = [("of live tensors", peak.tensor_bytes, largest)]
        if self.reserved is not None:
            figures = [
                ("reserved", peak.reserved_bytes, self.reserved),
                ("allocated", peak.allocated_bytes, largest),
                *figures,
            ]
        known = ((name, estimate, seen) for name, estimate, seen in figures if estimate is not None)
        name, estimated, measured = next(known)
        return Comparison(figure=name, estimated_bytes=estimated, measured_bytes=measured, limit_bytes=limit)

    def report(self) -> MemoryReport:
        """Everything so far."""
        largest = max(self.phases, key=lambda name: self.phases[name], default=None)
        return MemoryReport(
            device=str(self.device),
            figure=self.meter.figure,
            num_steps=self.num_steps,
            peak_bytes=0 if largest is None else self.phases[largest],
            peak_phase=largest,
            reserved_bytes=self.reserved,
            phases=dict(self.phases),
            epochs=tuple(dict(epoch) for epoch in self.epochs if epoch),
            steps=tuple(self.steps),
            layers=dict(self.layers),
            end_of_step_bytes=self.end_of_step,
            leak=self.leak(),
            comparison=self.comparison(),
        )

    # layers

    def _hook(self, model: nn.Module) -> None:
        """Reads the meter before and after each row of the per-layer table, in training only."""
        library = "timm" if hasattr(model, "default_cfg") else "transformers"
        rows = {path: layer_of(path, library=library) for path, _ in model.named_modules()}
        containers = {row.rpartition(".")[0] for row in rows.values()} | {MODEL}
        for path, module in model.named_modules():
            row = rows[path]
            if path and row not in containers and path.endswith(row):
                before: list[int] = []
                self._handles.append(module.register_forward_pre_hook(self._entering(before)))
                self._handles.append(module.register_forward_hook(self._leaving(row, before), always_call=True))

    def _entering(self, before: list[int]) -> Any:
        return lambda module, args: before.append(self.meter.now())

    def _leaving(self, row: str, before: list[int]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            left = self.meter.now() - before.pop()
            in_forward = torch.is_grad_enabled() and torch._C._current_autograd_node() is None
            if module.training and in_forward:
                self.layers[row] = max(self.layers.get(row, 0), left)

        return hook
