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
from .reader import Reader
from .summary import summarise
from .versions import versions

__all__ = ["measure"]

DEVICE = "cpu"
_THREADS = "real kernels on {} threads: attention, autocast and optimizer are those that torch picks on the CPU"
_ONEDNN = "what oneDNN keeps outside torch's allocator (reordered weights) is not seen"
_BORROWED = "{} borrowed up to {} bytes at a time, by instruction set and threads"
_HIGHEST = "tensors are compared; the highest total with what kernels borrowed was {} bytes"


def measure(settings: TrainSettings) -> Measurement:
    """Three steps under torch's profiler; raises NotModelled where the step does not run on a CPU."""
    if settings.compile:
        raise NotModelled("compile=True is not run on the CPU: inductor fuses otherwise there; leave out --compile")
    seen = _followed(settings)
    threads = torch.get_num_threads()
    notes = [
        _THREADS.format(threads),
        _ONEDNN,
        _HIGHEST.format(seen.highest_bytes),
        *(_BORROWED.format(*pair) for pair in seen.borrowed.items()),
    ]
    device, used = f"CPU, {threads} threads", versions(settings.train)
    return summarise(seen, backend=DEVICE, device=device, versions=used, notes=notes)


def _followed(settings: TrainSettings) -> Reader:
    marks = Marks()
    with warnings.catch_warnings(), named_refusals(settings, "trained"):
        warnings.simplefilter("ignore")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
            built = build_model(settings, DEVICE)
            optimizer = make_optimizer(settings, built.model)
            _one_by_one(optimizer)
            marks.follow_model(built, optimizer)
            LOOPS[settings.loop](Job(settings=settings, built=built, optimizer=optimizer, device=DEVICE), marks)
    return follow(profiler, marks)


def _one_by_one(optimizer: torch.optim.Optimizer) -> None:
    """torch picks foreach on accelerators only (torch/optim/optimizer.py, _default_to_fused_or_foreach)."""
    for group in optimizer.param_groups:
        if group.get("foreach"):
            group["foreach"] = False
