"""What a recommendation promises: every plan fits, and no cheaper neighbour of it does. By estimates alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import vitmem
from hypothesis import given, settings, strategies
from vitmem.advice import Plan, Recommendation, recommend_settings
from vitmem.parallel import STRATEGIES
from vitmem.pipeline import resolved
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
    verdict = vitmem.estimate(**{**kept, **changes}).verdict
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


@settings(max_examples=5, deadline=None)
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
