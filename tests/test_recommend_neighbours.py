"""What a recommendation promises: every plan fits, and no cheaper neighbour of it does. By estimates alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import vitmem
from hypothesis import example, given, settings, strategies
from vitmem.advice import Plan, Recommendation, recommend_settings
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.parallel import STRATEGIES
from vitmem.pipeline import resolved
from vitmem.report.recommendation import recommendation_report
from vitmem.settings import TrainSettings
from vitmem.units import MIB

TINY = {"model": "vit_tiny_patch16_224", "depth": 6}
MODELS: dict[str, dict[str, Any]] = {
    "timm": TINY,
    "swin": {"model": "swin_tiny_patch4_window7_224"},
    "hf": {"model": "WinKawaks/vit-tiny-patch16-224", "depth": 6},
    "hf-swin": {"model": "microsoft/swin-tiny-patch4-window7-224"},
    "dinov2": {"model": "facebook/dinov2-small", "depth": 6, "res": 224},
    "base": {"model": "vit_base_patch16_224", "optim": "adamw_torch"},
}


def fits(kept: dict[str, Any], **changes: Any) -> bool:
    """What the library refuses is no neighbour."""
    try:
        verdict = vitmem.estimate(**{**kept, **changes}).verdict
    except InvalidRequest:
        return False
    assert verdict is not None
    return bool(verdict["fits"] == "yes")


def cheaper(plan: Plan, request: dict[str, Any], blocks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What would take less time or change less: each a change of the plan's settings."""
    kept = dict(plan.settings)
    if kept["grad_checkpointing"] and not request["grad_checkpointing"]:
        layers = kept["checkpoint_layers"] or blocks
        fewer = {"checkpoint_layers": layers - 1} if layers > 1 else {"grad_checkpointing": False}
        yield "one block less", {"checkpoint_layers": None} | fewer
    if kept["alloc_conf"] and not request["alloc_conf"]:
        yield "the allocator's own segments", {"alloc_conf": None}
    if kept["offload"] != request["offload"]:
        yield "without offload", {"offload": request["offload"]}
    elif kept["parallel"] != request["parallel"]:
        yield "the request's engine", {name: request[name] for name in ("parallel", "zero_options")}
    if kept["eval_bs"] != request["eval_bs"]:
        yield "the request's evaluation", {"eval_bs": request["eval_bs"]}
    per_gpu = plan.effective_batch // kept["gpus"]
    larger = [bs for bs in range(kept["bs"] + 1, per_gpu + 1) if per_gpu % bs == 0]
    if larger and plan.keeps_recipe:
        yield "a larger batch", {"bs": larger[0], "accum": per_gpu // larger[0]}


def check(found: Recommendation, effective_batch: int) -> None:
    """The promises of a recommendation."""
    blocks = len(resolved(TrainSettings.from_dict(found.request))[0].blocks)
    for plan in found.plans:
        kept = dict(plan.settings)
        estimate = vitmem.estimate(**kept)
        assert estimate.verdict is not None
        assert estimate.verdict["fits"] == "yes"
        assert (estimate.peak, estimate.verdict["headroom_bytes"]) == (plan.peak, plan.headroom_bytes)
        assert kept["bs"] * kept["accum"] * kept["gpus"] == effective_batch
        for what, changes in cheaper(plan, dict(found.request), blocks):
            assert not fits(kept, **changes), f"{what} would do for plan {plan.rank}"
    if not found.plans:
        assert found.nearest is not None
        assert not fits(dict(found.nearest.settings))


def tight(share: float, effective_batch: int, **asked: Any) -> TrainSettings:
    """The request with a memory that holds a share of what it takes at once, beside the largest context."""
    gpus = asked.get("gpus", 1)
    whole = vitmem.estimate(**asked, bs=effective_batch // gpus).peak.allocated_bytes
    assert whole is not None
    mib = int(share * whole / MIB) + (1850 if gpus > 1 else 720)
    return TrainSettings.of(**asked, memory=f"{mib}MiB")


@settings(max_examples=5, deadline=None, derandomize=True)  # other examples: the slow tests
@example(share=0.625, per_gpu=7, gpus=2, precision="pure-bf16")  # fewer checkpointed blocks fit where more do not
@given(
    share=strategies.floats(0.2, 1.1),
    per_gpu=strategies.sampled_from([1, 7, 24, 60]),
    gpus=strategies.sampled_from([1, 2, 8]),
    precision=strategies.sampled_from(["fp32", "fp16", "bf16", "pure-bf16"]),
)
def test_what_is_recommended_fits_and_what_is_cheaper_does_not(
    share: float, per_gpu: int, gpus: int, precision: Any
) -> None:
    total = per_gpu * gpus
    request = tight(share, total, **TINY, gpus=gpus, precision=precision)
    check(recommend_settings(request, effective_batch=total, num_plans=4), total)


@pytest.mark.parametrize("model", ["swin", "dinov2"])
def test_of_other_families_too(model: str) -> None:
    request = tight(0.45, 16, **MODELS[model], gpus=2, precision="bf16")
    found = recommend_settings(request, effective_batch=16, num_plans=2)
    assert found.plans
    check(found, 16)


def test_of_large_states_engines_that_divide_them_make_room() -> None:
    # GIVEN a model whose states alone are too much for one GPU
    request = TrainSettings.of("vit_large_patch16_224", depth=12, memory="4500MiB", gpus=8, precision="bf16")
    found = recommend_settings(request, effective_batch=64, num_plans=8)
    check(found, 64)
    engines = {plan.settings["parallel"] for plan in found.plans}
    assert engines <= STRATEGIES.keys() - {"none"}
    assert any(engine.startswith("zero") for engine in engines)
    assert all(dict(plan.settings["zero_options"]) for plan in found.plans if "zero" in plan.settings["parallel"])


@pytest.mark.parametrize(("num_plans", "casts"), [(1, [False]), (2, [False, True])])
def test_plans_whose_engine_casts_the_model_come_after_those_with_autocast(num_plans: int, casts: list[bool]) -> None:
    request = TrainSettings.of("vit_large_patch16_224", depth=12, memory="5200MiB", gpus=8, precision="bf16")
    plans = recommend_settings(request, effective_batch=64, num_plans=num_plans, forbid=("recipe",)).plans
    assert [plan.casts_model for plan in plans] == casts
    assert min(plan.relative_step_time for plan in plans) == plans[-1].relative_step_time == 1


def test_segments_that_grow_make_room_for_more_than_the_smallest_batch() -> None:
    request = tight(0.8, 16, **MODELS["base"], gpus=1, precision="fp16")
    check(recommend_settings(request, effective_batch=16, num_plans=6), 16)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("model", MODELS)
def test_across_models_gpus_and_precisions(model: str, share: float, gpus: int, precision: str) -> None:
    request = tight(share, 16 * gpus, **MODELS[model], gpus=gpus, precision=precision)
    check(recommend_settings(request, effective_batch=16 * gpus, num_plans=6), 16 * gpus)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["t4", "v100-16g", "rtx3090", "rtx4090", "a100-40g", "h100-80g"])
@pytest.mark.parametrize("model", ["vit_large_patch16_224", "microsoft/swin-base-patch4-window12-384"])
def test_across_real_gpus(model: str, gpu: str) -> None:
    request = TrainSettings.of(model, gpu=gpu, gpus=2, res=384)
    check(recommend_settings(request, effective_batch=256), 256)


def smallest(request: TrainSettings, per_gpu: int) -> Iterator[vitmem.Estimate]:
    """Every engine with every offload, one image at a time or all at once, all blocks checkpointed, with either
    allocator."""
    kept = dataclasses.replace(request, grad_checkpointing=True, checkpoint_layers=None)
    for parallel, offload, conf, bs in itertools.product(
        [name for name in STRATEGIES if name != "none" or request.gpus == 1],
        ["none", "optimizer", "all"],
        [None, "expandable_segments:True"],
        [1, per_gpu],
    ):
        buckets = {"reduce_bucket_size": "auto"} if parallel.startswith("zero") else {}
        if parallel == "zero3":
            buckets |= dict.fromkeys(("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto")
        changes = {"parallel": parallel, "offload": offload, "alloc_conf": conf, "zero_options": tuple(buckets.items())}
        changes |= {"bs": bs, "accum": per_gpu // bs}
        try:
            yield vitmem.estimate(**dataclasses.replace(kept, **changes).to_dict())
        except (InvalidRequest, NotModelled):
            continue


def check_smallest(request: TrainSettings, per_gpu: int) -> None:
    """Where the smallest of any engine fits something is found, and else nothing nearer is missed."""
    found = recommend_settings(request, effective_batch=per_gpu * request.gpus, num_plans=1)
    least = min(missing_bytes(estimate) for estimate in smallest(request, per_gpu))
    assert found.plans or least > 0
    if not found.plans:
        assert found.nearest is not None
        assert found.nearest.missing_bytes <= least


def missing_bytes(estimate: vitmem.Estimate) -> int:
    """What the largest CUDA context beside what is reserved takes more than there is."""
    peak, verdict = estimate.peak, estimate.verdict
    assert verdict is not None
    assert peak.device_high_bytes is not None
    assert peak.device_bytes is not None
    return peak.device_high_bytes - peak.device_bytes - int(verdict["headroom_bytes"])


def of_states(model: str, gpus: int, **asked: Any) -> TrainSettings:
    return TrainSettings.of(model, gpus=gpus, bs=4, precision=asked.pop("precision", "bf16"), **asked)


def just_enough(request: TrainSettings, per_gpu: int, *, more: int) -> TrainSettings:
    """With a memory that holds the smallest of all, and ``more`` MiB."""
    roomy = dataclasses.replace(request, memory="64GiB")
    least = min(missing_bytes(estimate) for estimate in smallest(roomy, per_gpu))
    return dataclasses.replace(request, memory=f"{64 * 1024 + -(-least // MIB) + more}MiB")


@pytest.mark.parametrize(("precision", "more"), [("bf16", -150), ("fp32", 4)])
def test_of_engines_with_offload_what_fits_is_found_and_the_nearest_is_the_least(precision: str, more: int) -> None:
    request = of_states("WinKawaks/vit-tiny-patch16-224", 2, depth=3, dim=768, heads=12, precision=precision)
    check_smallest(just_enough(request, 2, more=more), 2)


@pytest.mark.slow
@pytest.mark.parametrize("more", [-400, -20, 4, 60])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "pure-bf16"])
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize(
    ("model", "asked"), [("google/vit-base-patch16-224", {}), ("facebook/dinov2-base", {"train": "lora"})]
)
def test_it_is_found_for_larger_models(model: str, asked: dict[str, Any], gpus: int, precision: str, more: int) -> None:
    request = of_states(model, gpus, depth=4, res=224, precision=precision, **asked)
    check_smallest(just_enough(request, 4, more=more), 4)


def test_one_gpu_gets_an_engine_only_where_nothing_fits_without() -> None:
    request = TrainSettings.of("facebook/dinov2-base", res=518, gpu="l4", train="lora")  # zero2 would be faster
    found = recommend_settings(request, effective_batch=128, num_plans=9)
    assert {plan.settings["parallel"] for plan in found.plans} <= {None, "none"}
    assert found.plans
    big = of_states("google/vit-large-patch16-224", 1, depth=12, memory="2700MiB")
    only = recommend_settings(big, effective_batch=4, forbid=("recipe",))
    offloaded = only.plans
    assert {plan.settings["offload"] for plan in offloaded} <= {"optimizer", "all"}
    assert offloaded
    # AND is told what that is: no communication, but a model in 16 bits
    (said,) = {change.loses for change in offloaded[0].changes if change.setting == "parallel"}
    assert "one GPU divides nothing" in said
    assert "communication" not in said
    assert "the model itself is in 16 bits" in said
    assert all(plan.casts_model for plan in offloaded)
    (plans, *_) = recommendation_report(only).tables
    assert {row[-1] for row in plans.rows} == {"cast"}
    assert "16 bits" in (plans.note or "")
