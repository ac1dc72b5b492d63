"""What comes besides steady steps, on a CUDA device: a smaller last step, evaluation, more training, a resumed run.

Needs what :mod:`vitmem.validate.cuda` needs, and is a process's first work for the same reason.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .build import build_model, named_refusals
from .cuda import DEVICE, CudaJob, Peaks, clean, kernel
from .loops import LOOPS, STEPS
from .optim import make_optimizer
from .phases import eval_sizes, last_sizes

__all__ = ["PhaseMeasurement", "measure"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMeasurement:
    """Bytes: the largest allocated in each, None where it is not played; reserved up to each one's end.

    ``steady_reserved_bytes`` is after three training steps, ``reserved_bytes`` after the step behind the evaluation.
    ``resume_bytes`` is the most from the loading of the optimizer's state to the end of the first step.
    """

    allocated_bytes: int
    steady_reserved_bytes: int
    last_batch_bytes: int | None
    last_batch_reserved_bytes: int | None
    evaluation_bytes: int | None
    evaluation_reserved_bytes: int | None
    reserved_bytes: int
    resume_bytes: int
    resume_reserved_bytes: int
    left_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def measure(settings: TrainSettings) -> PhaseMeasurement:
    """A run through an epoch's end into the next, and one that a checkpoint begins; NotModelled without a device."""
    if not torch.cuda.is_available():
        raise NotModelled("torch sees no CUDA device here; use --backend meta")
    left = clean()
    peaks, job = _run(settings)
    checkpoint = _to_host(job.optimizer.state_dict())
    evaluated, last = bool(job.eval_sizes), len(job.last_sizes) > 0
    del job
    clean()
    resumed, _ = _run(settings, checkpoint=checkpoint)
    return PhaseMeasurement(
        allocated_bytes=max(peaks.phases(STEPS - 1).values()),
        steady_reserved_bytes=_reserved(peaks, STEPS - 1, evaluation=False),
        last_batch_bytes=max(peaks.phases(STEPS).values()) if last else None,
        last_batch_reserved_bytes=_reserved(peaks, STEPS, evaluation=False) if last else None,
        evaluation_bytes=peaks.allocated.get((STEPS - 1 + last, "evaluation")) if evaluated else None,
        evaluation_reserved_bytes=_reserved(peaks, STEPS - 1 + last, evaluation=True) if evaluated else None,
        reserved_bytes=max(peaks.reserved.values()),
        resume_bytes=max(size for (step, _), size in resumed.allocated.items() if step in {None, 0}),
        resume_reserved_bytes=max(resumed.reserved.values()),
        left_bytes=left,
    )


def _run(settings: TrainSettings, checkpoint: dict[str, Any] | None = None) -> tuple[Peaks, CudaJob]:
    built = build_model(settings, "cpu")
    built.model.to(DEVICE)
    resumes = checkpoint is not None
    job = CudaJob(
        settings=settings,
        built=built,
        optimizer=make_optimizer(settings, built.model),
        device=DEVICE,
        last_sizes=() if resumes else last_sizes(settings),
        eval_sizes=() if resumes else eval_sizes(settings, built),
        steps_after=0 if resumes else 1,
        checkpoint=checkpoint,
    )
    peaks = Peaks()
    with named_refusals(settings, "trained"), kernel(settings):
        LOOPS[settings.loop](job, peaks)
    return peaks, job


def _reserved(peaks: Peaks, step: int, *, evaluation: bool) -> int:
    """The most up to the end of a step, or of the evaluation behind it."""
    return max(
        size
        for (at, phase), size in peaks.reserved.items()
        if at is None or at < step or (at == step and (evaluation or phase != "evaluation"))
    )


def _to_host(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _to_host(value) for key, value in state.items()}
    return [_to_host(value) for value in state] if isinstance(state, list) else state
