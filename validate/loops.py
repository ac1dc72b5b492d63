"""Three training loops, written name by name as their sources are: a name that is bound keeps its tensor alive.

``trainer``: transformers 5.24 ``Trainer._run_epoch`` and ``training_step`` with accelerate 1.15; ``plain``: the loop of
PyTorch's tutorials; ``timm``: timm 1.0.31 ``train.py`` with the prefetching loader. The contract fixes the details.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitmem.settings import TrainSettings

from .build import DTYPES, Built

__all__ = ["LOOPS", "STEPS", "Job", "Recorder"]

#: The third optimizer step is the steady state: the optimizer's states exist, old gradients have come and gone.
STEPS = 3


class Recorder(Protocol):
    """What a loop tells whoever watches it."""

    def during(self, phase: str) -> AbstractContextManager[None]: ...
    def inputs(self) -> AbstractContextManager[None]: ...
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

    def batch(self) -> tuple[Tensor, Tensor]:
        """Images and labels as the data loader hands them to the device."""
        images = torch.empty(
            self.settings.bs, 3, *self.built.image_size, dtype=DTYPES.get(self.settings.precision), device=self.device
        )
        return images, torch.zeros(self.settings.bs, dtype=torch.int64, device=self.device)

    def zero(self, when: str) -> None:
        """``optimizer.zero_grad()`` if this is the moment for it; ``keep`` zeroes in place after the step."""
        chosen = self.settings.zero_grad or "after-step"
        if chosen == when:
            self.optimizer.zero_grad()
        if chosen == "keep" and when == "after-step":
            self.optimizer.zero_grad(set_to_none=False)


def run_trainer(job: Job, recorder: Recorder) -> None:
    """All micro-batches of a step are fetched first; the loss is computed in the model, inside autocast."""
    scaler = job.scaler()
    with recorder.during("loop"):
        total_loss = torch.tensor(0.0, device=job.device)
    batches: list[dict[str, Tensor]] = []
    for step in range(STEPS):
        recorder.step_begins(step)
        with recorder.during("forward"), recorder.inputs():
            batches, num_items = _fetch(job)
        for index, inputs in enumerate(batches):
            job.zero("before-forward")
            loss = _training_step(job, recorder, scaler, inputs, num_items)
            total_loss += loss
            del inputs
            if index < len(batches) - 1:
                continue
            with recorder.during("optimizer_step"):
                _clip(job, scaler).item()
                scaler.step(job.optimizer)
                scaler.update()
                recorder.stepped()
                job.zero("after-step")
    del loss, batches, total_loss


def _fetch(job: Job) -> tuple[list[dict[str, Tensor]], Tensor | None]:
    batches = []
    for _ in range(job.settings.accum):
        images, labels = job.batch()
        batches.append({"pixel_values": images, "labels": labels})
    if not job.built.takes_num_items:
        return batches, None
    num_items = sum((batch["labels"].ne(-100).sum() for batch in batches), start=0)
    assert isinstance(num_items, Tensor)
    return batches, num_items


def _training_step(
    job: Job, recorder: Recorder, scaler: torch.amp.GradScaler, inputs: dict[str, Tensor], num_items: Tensor | None
) -> Tensor:
    with recorder.during("forward"):
        loss = _model_loss(job, inputs, num_items)
        del inputs
        if num_items is None:
            loss = loss / job.settings.accum
        recorder.forward_ended(loss)
    job.zero("before-backward")
    with recorder.during("backward"):
        scaler.scale(loss).backward()
        recorder.backward_ended()
    return loss.detach()


def _model_loss(job: Job, inputs: dict[str, Tensor], num_items: Tensor | None) -> Tensor:
    extra = {} if num_items is None else {"num_items_in_batch": num_items}
    with job.autocast():
        outputs = job.model(**inputs, **extra)
    outputs = {name: _to_fp32(value) for name, value in outputs.items()} if job.settings.precision in _MIXED else outputs
    loss: Tensor = outputs["loss"]
    return loss


_MIXED = ("fp16", "bf16")


def _to_fp32(value: Any) -> Any:
    """accelerate's ``convert_to_fp32``: 16-bit outputs get a copy."""
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _clip(job: Job, scaler: torch.amp.GradScaler) -> Tensor:
    """``accelerator.clip_grad_norm_``: unscale in place, then clip to 1.0."""
    if scaler.is_enabled():
        scaler.unscale_(job.optimizer)
    return torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)


def run_plain(job: Job, recorder: Recorder) -> None:
    """``x, y, out, loss`` are ordinary names of the loop."""
    scaler = job.scaler()
    for step in range(STEPS):
        recorder.step_begins(step)
        for _ in range(job.settings.accum):
            with recorder.during("forward"):
                with recorder.inputs():
                    x, y = job.batch()
                job.zero("before-forward")
                with job.autocast():
                    out = job.model(x)
                    out = getattr(out, "logits", out)
                    loss = F.cross_entropy(out, y)
                    if job.settings.accum > 1:
                        loss = loss / job.settings.accum
                recorder.forward_ended(out, loss)
            job.zero("before-backward")
            with recorder.during("backward"):
                scaler.scale(loss).backward()
                recorder.backward_ended()
        with recorder.during("optimizer_step"):
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")


def run_timm(job: Job, recorder: Recorder) -> None:
    """``train.py --amp``: the loader has fetched the next batch before it hands out the current one."""
    scaler = job.scaler()
    batches = _prefetched(job, recorder)
    for step in range(STEPS):
        recorder.step_begins(step)
        for _ in range(job.settings.accum):
            with recorder.during("forward"):
                with recorder.inputs():
                    images, target = next(batches)
                job.zero("before-forward")
                loss = _timm_forward(job, images, target)
                recorder.forward_ended(loss)
            job.zero("before-backward")
            with recorder.during("backward"):
                scaler.scale(loss).backward()
                recorder.backward_ended()
        with recorder.during("optimizer_step"):
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")


def _timm_forward(job: Job, images: Tensor, target: Tensor) -> Tensor:
    from timm.loss import LabelSmoothingCrossEntropy

    with job.autocast():
        output = job.model(images)
        output = getattr(output, "logits", output)
        loss: Tensor = LabelSmoothingCrossEntropy(smoothing=0.1)(output, target)
    if job.settings.accum > 1:
        loss /= job.settings.accum
    return loss


def _prefetched(job: Job, recorder: Recorder) -> Iterator[tuple[Tensor, Tensor]]:
    """timm's own loader over byte images, as its collate function makes them on the host."""
    from timm.data.loader import PrefetchLoader

    shape = (job.settings.bs, 3, *job.built.image_size)
    images = torch.empty(shape, dtype=torch.uint8, device="cpu").expand(shape)
    labels = torch.zeros(job.settings.bs, dtype=torch.int64, device="cpu")
    host = ((images, labels) for _ in range(STEPS * job.settings.accum + 1))
    with recorder.inputs():
        loader = PrefetchLoader(
            host, device=torch.device(job.device), img_dtype=DTYPES.get(job.settings.precision)
        )
    return iter(loader)


LOOPS: dict[str, Callable[[Job, Recorder], None]] = {"trainer": run_trainer, "plain": run_plain, "timm": run_timm}
