"""The third training step of the real model on the CPU: real tensors, real kernels, every block of its allocator.

Fits into host memory or not at all; meant for small models. What oneDNN keeps for itself does not come from torch's
allocator, and nobody sees it.
"""

from __future__ import annotations

import warnings

import torch
from torch.profiler import ProfilerActivity, profile
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .build import build_model, named_refusals
from .loops import LOOPS, Job
from .measurement import Measurement
from .optim import make_optimizer
from .profiled import Marks, follow
from .summary import summarise
from .versions import versions

__all__ = ["measure"]

DEVICE = "cpu"
_NOTES = (
    "real kernels on {threads} threads: attention, autocast and optimizer are those that torch picks on the CPU",
    "what oneDNN keeps for itself (reordered weights, scratch) is not torch's, and not seen",
)


def measure(settings: TrainSettings) -> Measurement:
    """Three steps under torch's profiler; raises NotModelled where the step does not run on a CPU."""
    if settings.compile:
        raise NotModelled("compile=True is not run on the CPU: inductor fuses otherwise there; leave out --compile")
    marks = Marks()
    with warnings.catch_warnings(), named_refusals(settings, "trained"):
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            built = build_model(settings, DEVICE)
            optimizer = make_optimizer(settings, built.model)
            _one_by_one(optimizer)
            marks.follow_model(built, optimizer)
            LOOPS[settings.loop](Job(settings=settings, built=built, optimizer=optimizer, device=DEVICE), marks)
    return summarise(
        follow(profiler, marks),
        backend=DEVICE,
        device=f"{torch.get_num_threads()} threads",
        versions=versions(settings.train),
        notes=[note.format(threads=torch.get_num_threads()) for note in _NOTES],
    )


def _one_by_one(optimizer: torch.optim.Optimizer) -> None:
    """torch picks foreach on accelerators only (torch/optim/optimizer.py, _default_to_fused_or_foreach)."""
    for group in optimizer.param_groups:
        if group.get("foreach"):
            group["foreach"] = False
