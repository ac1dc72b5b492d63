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

    def batch(self) -> tuple[Tensor, Tensor | None]:
        """Images and labels as the data loader hands them to the device; no labels for a model with its own loss."""
        images = torch.empty(
            self.settings.bs, 3, *self.built.image_size, dtype=DTYPES.get(self.settings.precision), device=self.device
        )
        if self.built.own_loss:
            return images, None
        return images, torch.zeros(self.settings.bs, dtype=torch.int64, device=self.device)

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


def run_trainer(job: Job, recorder: Recorder) -> None:
    """All micro-batches of a step are fetched first; the loss is computed in the model, inside autocast.

    ``loss`` and ``norm`` are names of the loop: the last step's values live until they are rebound.
    """
    scaler = job.scaler()
    with recorder.during("loop"):
        total_loss = torch.tensor(0.0, device=job.device)
    for step in range(STEPS):
        recorder.step_begins(step)
        with recorder.during("forward"), recorder.inputs():
            batches, num_items = _fetch(job)
        for micro_step, inputs in enumerate(batches):
            job.zero("before-forward", micro_step)
            with recorder.during("forward"):
                loss = _trainer_loss(job, inputs, num_items)
                recorder.forward_ended(loss)
            job.zero("before-backward", micro_step)
            with recorder.during("backward"):
                _backward(scaler.scale(loss))
                recorder.backward_ended()
            loss = loss.detach()
            total_loss += loss
        with recorder.during("optimizer_step"):
            norm = _clip(job, scaler)  # noqa: F841
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")


def _fetch(job: Job) -> tuple[list[dict[str, Tensor]], Tensor | None]:
    batches = []
    for _ in range(job.settings.accum):
        images, labels = job.batch()
        batches.append({"pixel_values": images} if labels is None else {"pixel_values": images, "labels": labels})
    num_items = sum((batch["labels"].ne(-100).sum() for batch in batches if "labels" in batch), start=0)
    return batches, num_items if isinstance(num_items, Tensor) else None


def _trainer_loss(job: Job, inputs: dict[str, Tensor], num_items: Tensor | None) -> Tensor:
    """``training_step`` up to the backward pass."""
    extra = {"num_items_in_batch": num_items} if job.built.takes_num_items else {}
    with job.autocast():
        outputs = job.model(**inputs, **extra)
    if job.settings.precision in _MIXED:
        outputs = {name: _to_fp32(value) for name, value in outputs.items()}
    loss: Tensor = outputs["loss"]
    return loss if job.built.takes_num_items else loss / job.settings.accum


_MIXED = ("fp16", "bf16")


def _to_fp32(value: Any) -> Any:
    """accelerate's ``convert_to_fp32``: 16-bit outputs get a copy."""
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _clip(job: Job, scaler: torch.amp.GradScaler) -> Tensor:
    """``accelerator.clip_grad_norm_``: unscale in place, then clip to 1.0."""
    if scaler.is_enabled():
        scaler.unscale_(job.optimizer)
    return torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)


def _backward(loss: Any) -> None:
    loss.backward()


def run_plain(job: Job, recorder: Recorder) -> None:
    """``x, y, out, loss`` are ordinary names of the loop."""
    scaler = job.scaler()
    for step in range(STEPS):
        recorder.step_begins(step)
        for micro_step in range(job.settings.accum):
            with recorder.during("forward"):
                with recorder.inputs():
                    x, y = job.batch()
                job.zero("before-forward", micro_step)
                with job.autocast():
                    if y is None:
                        loss = job.model(x).loss
                    else:
                        out = job.model(x)
                        out = getattr(out, "logits", out)
                        loss = F.cross_entropy(out, y)
                    if job.settings.accum > 1:
                        loss = loss / job.settings.accum
                recorder.forward_ended(*([loss] if y is None else [out, loss]))
            job.zero("before-backward", micro_step)
            with recorder.during("backward"):
                _backward(scaler.scale(loss))
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
        for micro_step in range(job.settings.accum):
            with recorder.during("forward"):
                with recorder.inputs():
                    images, target = next(batches)
                job.zero("before-forward", micro_step)
                outputs = _timm_forward(job, images, target)
                loss = outputs[-1]
                recorder.forward_ended(*outputs)
            job.zero("before-backward", micro_step)
            with recorder.during("backward"):
                _backward(scaler.scale(loss))
                recorder.backward_ended()
        with recorder.during("optimizer_step"):
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")


def _timm_forward(job: Job, images: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Logits and loss; or the model's own loss, where the loader's targets are not used."""
    from timm.loss import cross_entropy

    with job.autocast():
        if job.built.own_loss:
            outputs: tuple[Tensor, ...] = (job.model(images).loss,)
        else:
            output = job.model(images)
            output = getattr(output, "logits", output)
            criterion: Any = cross_entropy.LabelSmoothingCrossEntropy
            outputs = output, criterion(smoothing=0.1)(output, target)
    loss = outputs[-1]
    if job.settings.accum > 1:
        loss /= job.settings.accum
    return outputs


def _prefetched(job: Job, recorder: Recorder) -> Iterator[tuple[Tensor, Tensor]]:
    """timm's own loader over byte images, as its collate function makes them on the host."""
    from timm.data.loader import PrefetchLoader

    shape = (job.settings.bs, 3, *job.built.image_size)
    images = torch.empty(shape, dtype=torch.uint8, device="cpu").expand(shape)
    labels = torch.zeros(job.settings.bs, dtype=torch.int64, device="cpu")
    host: Any = ((images, labels) for _ in range(STEPS * job.settings.accum + 1))
    with recorder.inputs():
        loader = PrefetchLoader(host, device=torch.device(job.device))
    loader.img_dtype = DTYPES.get(job.settings.precision, torch.float32)  # mean and std stay fp32
    return iter(loader)


LOOPS: dict[str, Callable[[Job, Recorder], None]] = {"trainer": run_trainer, "plain": run_plain, "timm": run_timm}
