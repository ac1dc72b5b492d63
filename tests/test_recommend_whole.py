"""The batch that takes the least: one image at a time, or all at once, beside which no gradients wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import vitmem
from hypothesis import given, settings, strategies
from vitmem.advice import recommend_settings
from vitmem.advice.batches import batches, with_batch
from vitmem.candidate import Candidate
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings
from vitmem.units import MIB

MODELS: list[dict[str, Any]] = [
    {"model": "vit_tiny_patch16_224", "depth": 3},
    {"model": "vit_base_patch16_224", "depth": 2},
    {"model": "WinKawaks/vit-tiny-patch16-224", "depth": 3},
    {"model": "microsoft/swin-tiny-patch4-window7-224"},
]


def requested(asked: TrainSettings, bs: int, layers: int | None, per_gpu: int) -> int | None:
    candidate = with_batch(asked, bs, per_gpu)
    if layers != 0:
        candidate = dataclasses.replace(candidate, grad_checkpointing=True, checkpoint_layers=layers)
    try:
        return Candidate(candidate).requested_bytes
    except (InvalidRequest, NotModelled):
        return None


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    model=strategies.sampled_from(MODELS),
    engine=strategies.sampled_from(
        [(1, None, "none"), (2, "ddp", "none"), (2, "zero2", "optimizer"), (8, "fsdp", "all")]
    ),
    precision=strategies.sampled_from(["fp32", "fp16", "bf16", "pure-bf16"]),
    loop=strategies.sampled_from(["trainer", "plain"]),
    optim=strategies.sampled_from([None, "sgd", "adafactor"]),
    per_gpu=strategies.sampled_from([2, 4, 6]),
)
def test_the_least_is_at_either_end(
    model: Any, engine: Any, precision: Any, loop: Any, optim: Any, per_gpu: int
) -> None:
    gpus, parallel, offload = engine
    asked: dict[str, Any] = {"precision": precision, "loop": loop, "optim": optim, "gpus": gpus}
    request = TrainSettings.of(**model, **asked, memory="80GiB", parallel=parallel, offload=offload)
    sizes = batches(request, per_gpu)
    found = {(bs, layers): requested(request, bs, layers, per_gpu) for bs in sizes for layers in (0, 1, None)}
    known = {place: size for place, size in found.items() if size is not None}
    if not known:
        return
    most = None if found[1, None] is not None else 0
    ends = min(known[1, most], known[per_gpu, most])
    assert ends <= min(known.values()) * 1.001  # scalars and names of a loop apart


#: Weights so large that their gradients take more than an image's activations.
ASKED: dict[str, Any] = {"model": "google/vit-large-patch16-224", "depth": 4, "precision": "fp16", "bs": 1, "gpus": 2}


def just_enough(**asked: Any) -> int:
    """The MiB that hold these settings beside the largest CUDA context."""
    estimate = vitmem.estimate(**asked, memory="64GiB")
    peak, verdict = estimate.peak, estimate.verdict
    assert verdict is not None
    assert peak.device_high_bytes is not None
    assert peak.device_bytes is not None
    spare = int(verdict["headroom_bytes"]) - (peak.device_high_bytes - peak.device_bytes)
    return 64 * 1024 - spare // MIB


@pytest.mark.parametrize("bs", [1, 2])
def test_all_at_once_is_found_where_no_smaller_batch_fits(bs: int) -> None:
    # GIVEN a memory that holds two images at once, but not one after the other
    at_once, in_turn = (just_enough(**ASKED | {"bs": size, "accum": 2 // size}) for size in (2, 1))
    assert at_once + 50 < in_turn
    request = TrainSettings.of(**ASKED | {"bs": bs}, memory=f"{at_once}MiB")
    # THEN that is what is recommended
    found = recommend_settings(request, effective_batch=4, allow=("bs", "grad-checkpointing"))
    assert found.plans
    assert (found.plans[0].settings["bs"], found.plans[0].settings["accum"]) == (2, 1)
    # AND with less it is the nearest
    less = dataclasses.replace(request, memory=f"{at_once - 300}MiB")
    nearest = recommend_settings(less, effective_batch=4, allow=("bs", "grad-checkpointing")).nearest
    assert nearest is not None
    assert nearest.settings["bs"] == 2


def test_a_family_is_counted_once() -> None:
    request = TrainSettings.of("swin_tiny_patch4_window7_224", memory="700MiB")
    found = recommend_settings(request, effective_batch=16, allow=("bs", "attn"))
    assert not found.plans
    families, sizes = 2, 5  # as asked, and with fused attention
    assert found.considered == families * sizes


def test_it_is_found_behind_batches_that_do_not_fit() -> None:
    # GIVEN a memory that holds four images at once, but not two or one, even with all blocks checkpointed
    asked: dict[str, Any] = {"model": "google/vit-large-patch16-224", "depth": 6, "precision": "fp16"}
    at_once = just_enough(**asked, bs=4)
    others = [just_enough(**asked, bs=bs, accum=4 // bs, grad_checkpointing=True) for bs in (1, 2)]
    assert at_once < min(others)
    # THEN nothing else is recommended
    request = TrainSettings.of(**asked, bs=1, memory=f"{at_once}MiB")
    found = recommend_settings(request, effective_batch=4, forbid=("recipe", "alloc-conf", "offload"))
    assert [(plan.settings["bs"], plan.settings["grad_checkpointing"]) for plan in found.plans] == [(4, False)]
