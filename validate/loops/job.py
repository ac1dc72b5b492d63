"""What a loop gets, and what it tells whoever watches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    """One training run on ``device``, and what comes after them.

    ``last_sizes`` are the images of each micro-batch of an epoch's last step, where one is asked for;
    ``eval_sizes`` those of the batches of an evaluation, ``steps_after`` the training steps behind it.
    ``checkpoint`` is the state of an optimizer, on the host, with which a run of ``num_steps`` begins.
    """

    settings: TrainSettings
    built: Built
    optimizer: torch.optim.Optimizer
    device: str
    last_sizes: tuple[int, ...] = ()
    eval_sizes: tuple[int, ...] = ()
    steps_after: int = 0
    checkpoint: dict[str, Any] | None = None
    num_steps: int = STEPS

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

    def inference(self) -> AbstractContextManager[Any]:
        """``torch.inference_mode``; where operators are watched, :func:`watched_inference`."""
        return watched_inference()

    def schedule(self) -> list[tuple[int, ...]]:
        """The images of every micro-batch, step by step; an evaluation has none."""
        whole = (self.settings.bs,) * self.settings.accum
        last = [self.last_sizes] if self.last_sizes else []
        evaluation: list[tuple[int, ...]] = [()] if self.eval_sizes else []
        return [*[whole] * self.num_steps, *last, *evaluation, *[whole] * self.steps_after]

    def batch(self, size: int, *, mixed: bool = True) -> tuple[Tensor, Tensor | None]:
        """Images and labels as the data loader hands them to the device; no labels for a model with its own loss.

        The batches of an evaluation are not ``mixed``.
        """
        images = torch.empty(
            size, 3, *self.built.image_size, dtype=DTYPES.get(self.settings.precision), device=self.device
        )
        if self.built.own_loss:
            return images, None
        return images, collated_targets(self.settings, size, mixed=mixed).to(self.device)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache()``, where there is an allocator with a cache."""

    def synchronise(self, *, last: bool) -> None:
        """accelerate's ``no_sync`` for all micro-steps but the ``last``, where FSDP trains."""
        if self.settings.parallel == "fsdp":
            model: Any = self.model
            model.set_requires_gradient_sync(last)

    def load(self) -> None:
        """The checkpoint's state goes to the device tensor by tensor; weights are copied into those that are there."""
        if self.checkpoint is not None:
            self.optimizer.load_state_dict(self.checkpoint)

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


@contextmanager
def watched_inference() -> Iterator[None]:
    """``no_grad`` for ``inference_mode``: the same allocations, but each operator is seen in its parts.

    Autocast keeps no copies of weights in inference mode (torch 2.14, ATen/autocast_mode.cpp, ``cached_cast``).
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


def backward(loss: Any) -> None:
    """A function of its own, so that no name of the loop holds the scaled loss."""
    loss.backward()
