"""What a loop gets, and what it tells whoever watches."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from vitmem.settings import TrainSettings

from ..build import DTYPES, Built
from .recipe import clip_norm, collated_targets

__all__ = ["STEPS", "Job", "Recorder", "backward"]

#: The third optimizer step is the steady state: the optimizer's states exist, old gradients have come and gone.
STEPS = 3


class Recorder(Protocol):
    """What a loop tells whoever watches it."""

    def during(self, phase: str) -> AbstractContextManager[None]: ...
    def inputs(self) -> AbstractContextManager[None]: ...
    def averages(self, model: nn.Module) -> None: ...
    def step_begins(self, step: int) -> None: ...
    def forward_ended(self, *held: Tensor) -> None: ...
    def backward_ended(self) -> None: ...
    def stepped(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run of :data:`STEPS` steps on ``device``."""

    settings: TrainSettings
    built: Built
    optimizer: torch.optim.Optimizer
    device: str

    @property
    def model(self) -> nn.Module:
        return self.built.model

    def autocast(self) -> AbstractContextManager[Any]:
        """The state of autocast as ``vitmem.validate.autocast`` reads it."""
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.settings.precision)
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """A real scaler: made for ``cpu`` it does not ask for a GPU, its tensors follow the loss's device."""
        return torch.amp.GradScaler("cpu", enabled=self.settings.precision == "fp16")

    def batch(self) -> tuple[Tensor, Tensor | None]:
        """Images and labels as the data loader hands them to the device; no labels for a model with its own loss."""
        images = torch.empty(
            self.settings.bs, 3, *self.built.image_size, dtype=DTYPES.get(self.settings.precision), device=self.device
        )
        return images, None if self.built.own_loss else collated_targets(self.settings).to(self.device)

    def zero(self, when: str, micro_step: int = 0) -> None:
        """``optimizer.zero_grad()`` if this is the moment for it; ``keep`` zeroes in place after the step.

        Only the first micro-step finds an earlier step's gradients: the later ones add to the first's.
        """
        chosen = self.settings.zero_grad or "after-step"
        if micro_step > 0:
            return
        if chosen == when:
            self.optimizer.zero_grad()
        if chosen == "keep" and when == "after-step":
            self.optimizer.zero_grad(set_to_none=False)

    def clip(self, scaler: torch.amp.GradScaler) -> None:
        """``unscale_`` and ``clip_grad_norm_``, where the loop clips."""
        norm = clip_norm(self.settings)
        if norm > 0:
            scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), norm)


def backward(loss: Any) -> None:
    """A function of its own, so that no name of the loop holds the scaled loss."""
    loss.backward()
