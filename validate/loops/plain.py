"""The loop of PyTorch's tutorials."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .ema import make_ema
from .job import Job, Recorder, backward
from .recipe import label_smoothing

__all__ = ["run_plain"]


def run_plain(job: Job, recorder: Recorder) -> None:
    """``x, y, out, loss`` are ordinary names of the loop; an evaluation is a function of its own."""
    with recorder.during("resume"):
        job.load()
    scaler = job.scaler()
    ema = make_ema(job, recorder)
    for step, sizes in enumerate(job.schedule()):
        if not sizes:
            _evaluate(job, recorder)
            continue
        recorder.step_begins(step)
        for micro_step, size in enumerate(sizes):
            with recorder.during("forward"):
                with recorder.inputs():
                    x, y = job.batch(size)
                job.zero("before-forward", micro_step)
                with job.autocast():
                    if y is None:
                        loss = job.model(x).loss
                    else:
                        out = job.model(x)
                        out = getattr(out, "logits", out)
                        loss = F.cross_entropy(out, y, label_smoothing=label_smoothing(job.settings))
                    if job.settings.accum > 1:
                        loss = loss / job.settings.accum
                recorder.forward_ended(*([loss] if y is None else [out, loss]))
            job.zero("before-backward", micro_step)
            with recorder.during("backward"):
                backward(scaler.scale(loss))
                recorder.backward_ended()
        with recorder.during("optimizer_step"):
            job.clip(scaler)
            scaler.step(job.optimizer)
            scaler.update()
            recorder.stepped()
            job.zero("after-step")
            ema.update(step)


def _evaluate(job: Job, recorder: Recorder) -> None:
    """PyTorch's quickstart: loss and correct predictions are added up on the host, batch by batch."""
    with recorder.during("evaluation"):
        job.model.eval()
        with torch.no_grad():
            for size in job.eval_sizes:
                with recorder.inputs():
                    x, y = job.batch(size, mixed=False)
                with job.autocast():
                    if y is None:
                        loss = job.model(x).loss
                        continue
                    out = job.model(x)
                    out = getattr(out, "logits", out)
                    loss = F.cross_entropy(out, y, label_smoothing=label_smoothing(job.settings))  # noqa: F841
                _read((out.argmax(1) == y).type(torch.float).sum())
        job.model.train()


def _read(scalar: Tensor) -> None:
    """``.item()``: nothing stays on the device."""
