"""The loop of PyTorch's tutorials."""

from __future__ import annotations

from torch.nn import functional as F

from .ema import make_ema
from .job import STEPS, Job, Recorder, backward
from .recipe import label_smoothing

__all__ = ["run_plain"]


def run_plain(job: Job, recorder: Recorder) -> None:
    """``x, y, out, loss`` are ordinary names of the loop."""
    scaler = job.scaler()
    update_ema = make_ema(job, recorder)
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
            update_ema(step)
