"""The rehearsal, asked for the CPU's rules, against real steps on the CPU with torch's profiler as the witness.

What remains is a few host scalars: the profiler counts them, the rehearsal, which follows the device only, does not.
The optimizers are those whose foreach step borrows nothing: the CPU's slow path of AdamW borrows more than CUDA's.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from vitmem.settings import TrainSettings
from vitmem.validate.build import build_model
from vitmem.validate.loops import LOOPS, Job
from vitmem.validate.meta import rehearse
from vitmem.validate.optim import make_optimizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HOST_SCALARS_BYTES = 96


class Deaf:
    """A recorder that records nothing."""

    def during(self, phase):
        return contextlib.nullcontext()

    def inputs(self):
        return contextlib.nullcontext()

    def averages(self, model): ...
    def step_begins(self, step): ...
    def forward_ended(self, *held): ...
    def backward_ended(self): ...
    def stepped(self): ...


def highest_on_cpu(settings):
    """The most bytes that the CPU's allocator had handed out while the model was built and trained."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        built = build_model(settings, "cpu")
        optimizer = make_optimizer(settings, built.model)
        LOOPS[settings.loop](Job(settings=settings, built=built, optimizer=optimizer, device="cpu"), Deaf())
    events = sorted(memory_events(profiler), key=lambda event: event.start_time_ns)
    first = events[0].extra_fields
    before = first.total_allocated - first.alloc_size  # the profiler goes on from the total of its last session
    return max(event.extra_fields.total_allocated for event in events) - before


def memory_events(profiler):
    stack = list(profiler.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event


@pytest.mark.parametrize("optim", ["sgd", "sgd-momentum"])
@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "google/vit-base-patch16-224"])
def test_real_steps_on_the_cpu_hold_what_the_rehearsal_says(model, optim):
    settings = TrainSettings(model=model, bs=8, precision="fp32", attn="eager", loop="plain", optim=optim, depth=3)
    measurement = rehearse(settings, cuda=False).measurement
    assert 0 <= highest_on_cpu(settings) - measurement.peak_bytes <= HOST_SCALARS_BYTES


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "torchvision/swin_t", "res": "100x70"},
        {"model": "torchvision/swin_v2_t", "res": "64"},
        {"model": "torchvision/vit_b_16", "dim": 192, "heads": 3, "depth": 2},  # so wide, no convolution is the peak
    ],
    ids=lambda settings: settings["model"],
)
def test_real_steps_of_torchvisions_models_too(settings):
    of_the_step = TrainSettings.of(bs=8, precision="fp32", loop="plain", optim="sgd-momentum", **settings)
    with sdpa_kernel(SDPBackend.MATH):  # where no other kernel is the same on both devices
        measurement = rehearse(of_the_step, cuda=False).measurement
        assert 0 <= highest_on_cpu(of_the_step) - measurement.peak_bytes <= HOST_SCALARS_BYTES


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "swin_tiny_patch4_window7_224", "precision": "fp32"},
        {"model": "microsoft/swin-tiny-patch4-window7-224", "precision": "fp32"},
        {"model": "beit_base_patch16_224", "precision": "fp32", "depth": 2},
        {"model": "facebook/dinov2-small", "precision": "fp32", "depth": 3, "res": 112},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_real_steps_of_more_families_too(settings):
    of_the_step = TrainSettings.of(**{"bs": 8, "attn": "eager", "loop": "plain", "optim": "sgd-momentum"} | settings)
    with sdpa_kernel(SDPBackend.MATH):
        measurement = rehearse(of_the_step, cuda=False).measurement
        assert 0 <= highest_on_cpu(of_the_step) - measurement.peak_bytes <= 2 * HOST_SCALARS_BYTES
