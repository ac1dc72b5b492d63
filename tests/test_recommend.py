"""Recommendations: what is recommended fits, what is cheaper and was rejected does not, and the recipe is kept."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import vitmem
from vitmem import catalog
from vitmem.advice import recommend_settings
from vitmem.advice.relatives import smaller_than, windowed_like
from vitmem.cli import main
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.parallel.buckets import bucket_options
from vitmem.pipeline import resolved
from vitmem.settings import TrainSettings

TINY, SWIN = "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"


def fits(plan_settings: dict[str, Any], **changes: Any) -> bool:
    estimate = vitmem.estimate(**{**plan_settings, **changes})
    assert estimate.verdict is not None
    return bool(estimate.verdict["fits"] == "yes")


def test_swin_takes_other_attention_and_fewer_blocks() -> None:
    found = recommend_settings(TrainSettings.of(SWIN, memory="4GiB"), effective_batch=64, num_plans=3)
    assert found.plans[0].keeps_recipe
    assert any(change.setting == "attn" for plan in found.plans for change in plan.changes)


def test_plans_that_keep_the_recipe_come_first_and_the_fastest_of_them_leads() -> None:
    plans = vitmem.recommend("vit_small_patch16_224", memory="3GiB", effective_batch=128, num_plans=20)
    kept = [plan.relative_step_time for plan in plans if plan.keeps_recipe]
    changed = [plan.relative_step_time for plan in plans if not plan.keeps_recipe]
    assert [plan.keeps_recipe for plan in plans] == [True] * len(kept) + [False] * len(changed)
    assert kept == sorted(kept)
    assert changed
    assert max(changed) <= kept[0]
    assert [plan.rank for plan in plans] == list(range(1, len(plans) + 1))


@pytest.mark.parametrize("num_plans", [1, 3])
def test_times_are_relative_to_the_fastest_plan_that_is_shown(num_plans: int) -> None:
    plans = vitmem.recommend("vit_small_patch16_224", memory="3GiB", effective_batch=128, num_plans=num_plans)
    assert min(plan.relative_step_time for plan in plans) == 1.0


def test_an_fsdp_plan_may_offload_all() -> None:
    request = TrainSettings.of(TINY, memory="2GiB", gpus=2, parallel="fsdp")
    kept = recommend_settings(request, effective_batch=64, forbid=("recipe", "offload")).considered
    assert recommend_settings(request, effective_batch=64, forbid=("recipe",)).considered == 2 * kept


def test_what_fits_as_asked_changes_nothing() -> None:
    best = vitmem.recommend(TINY, gpu="a100-80g", effective_batch=32)[0]
    assert best.changes == ()
    assert (best.settings["bs"], best.settings["accum"]) == (32, 1)


def test_changes_lead_from_the_request_to_the_plan() -> None:
    found = recommend_settings(TrainSettings.of(TINY, memory="1100MiB", precision="fp32"), effective_batch=64)
    for plan in found.plans:
        reached = dict(found.request)
        for change in plan.changes:
            assert reached[change.setting] == change.from_
            reached |= change.settings
        assert reached == plan.settings
        assert all(change.loses for change in plan.changes)


def test_forbidden_and_allowed_settings() -> None:
    request = TrainSettings.of(TINY, memory="1500MiB")

    def changed(**limits: Any) -> set[str]:
        plans = recommend_settings(request, effective_batch=64, num_plans=50, **limits).plans
        return {change.setting for plan in plans for change in plan.changes}

    assert "grad_checkpointing" in changed()
    assert "grad_checkpointing" not in changed(forbid=("grad-checkpointing",))
    assert changed(allow=("bs",)) == {"bs"}
    assert changed(forbid=("recipe",)) <= {"bs", "grad_checkpointing", "alloc_conf"}
    with pytest.raises(InvalidRequest, match="did you mean optim"):
        changed(forbid=("optimm",))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"allow": ()}, "allow names nothing"),
        ({"allow": "bs"}, "not a list of names"),
        ({"allow": ("bs", "")}, "cannot allow ''"),
        ({"forbid": ("zero-options",)}, "cannot forbid 'zero-options'"),
        ({"allow": ("grad_checkpointing",), "forbid": ("grad-checkpointing",)}, "cannot be allowed and forbidden"),
    ],
)
def test_limits_that_mean_nothing_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        recommend_settings(TrainSettings.of(TINY, memory="1500MiB"), **limits)


@pytest.mark.parametrize("flags", [("--allow", ""), ("--forbid", "bs,,optim"), ("--allow", "bss")])
def test_the_command_refuses_them_too(flags: tuple[str, str], capsys: Any) -> None:
    assert main(["recommend", TINY, "--memory", "2GiB", *flags]) == 2
    said = capsys.readouterr().err
    assert "empty" in said or "did you mean bs?" in said


def test_a_micro_batch_that_may_not_change_stays() -> None:
    request = TrainSettings.of(TINY, memory="1500MiB", bs=12)
    for plan in recommend_settings(request, effective_batch=96, forbid=("bs",)).plans:
        assert (plan.settings["bs"], plan.settings["accum"]) == (12, 8)
    with pytest.raises(InvalidRequest, match=r"no multiple of 12 \(12 images x 1\); use 96 or 108"):
        recommend_settings(request, effective_batch=100, forbid=("bs",))


def test_an_engine_that_was_asked_for_stays_and_offload_is_tried() -> None:
    options = {"reduce_bucket_size": 200_000}
    request = TrainSettings.of(TINY, memory="2600MiB", gpus=2, parallel="zero2", zero_options=options)
    found = recommend_settings(request, effective_batch=256, forbid=("recipe",))
    assert {plan.settings["parallel"] for plan in found.plans} == {"zero2"}
    with_offload, sizes, levels, allocators = 2, 8, 13, 2
    assert found.considered == with_offload * sizes * levels * allocators


def test_where_nothing_fits_the_nearest_is_named() -> None:
    found = recommend_settings(TrainSettings.of("vit_base_patch16_224", memory="1000MiB"), effective_batch=8)
    assert found.plans == ()
    assert found.nearest is not None
    assert found.nearest.settings["bs"] == 1
    estimate = vitmem.estimate(**found.nearest.settings)
    assert estimate.peak == found.nearest.peak
    assert estimate.verdict is not None
    mib = -(-found.nearest.missing_bytes // 2**20)
    assert fits(dict(found.nearest.settings), memory=f"{1000 + mib}MiB")
    assert not fits(dict(found.nearest.settings), memory=f"{1000 + mib // 2}MiB")
    assert found.nearest.gpu is not None
    assert fits(dict(found.nearest.settings), memory=None, gpu=found.nearest.gpu)


def test_a_batch_that_gpus_cannot_share_is_said_with_the_next_that_they_can() -> None:
    with pytest.raises(InvalidRequest, match="use 254 or 256, and scale the learning rate"):
        vitmem.recommend(TINY, gpu="t4", gpus=2, effective_batch=255)
    with pytest.raises(InvalidRequest, match="add --gpu"):
        vitmem.recommend(TINY)


def test_a_prime_batch_is_remarked() -> None:
    found = recommend_settings(TrainSettings.of(TINY, gpu="t4"), effective_batch=251)
    assert any("no divisors but 1 and 251" in note for note in found.notes)


def test_the_ladder_measures_each_rung_and_corrects_the_smaller_patch() -> None:
    found = recommend_settings(TrainSettings.of(TINY, gpu="t4"), effective_batch=64, with_ladder=True)
    rungs = {rung.name: rung for rung in found.ladder}
    before = found.ladder[0]
    for rung in found.ladder[1:5]:
        assert before.peak_bytes is not None
        assert rung.peak_bytes == before.peak_bytes - (rung.saved_bytes or 0)
        before = rung
    assert (rungs["smaller patch"].saved_bytes or 0) < 0 < (rungs["larger patch"].saved_bytes or 0)
    assert "more FLOPs; usual claim" in rungs["gradient checkpointing"].remark
    top = rungs["smaller micro-batch"].peak_bytes or 0
    for name in ("offload", "lower resolution", "token dropping"):  # each alone on the micro-batch
        assert rungs[name].peak_bytes == top - (rungs[name].saved_bytes or 0)
    assert "none of about this size" in rungs["windowed attention"].remark
    assert "divided states" not in rungs


def test_relatives_are_of_about_the_size_or_clearly_smaller() -> None:
    small = catalog.resolve("vit_small_patch16_224")
    sizes = {name: catalog.resolve(name).num_parameters or 0 for name in windowed_like(small)}
    assert "swin_tiny_patch4_window7_224" in sizes
    own = small.num_parameters or 0
    assert all(own / 1.7 < size < own * 1.7 for size in sizes.values())
    assert all(0 < (catalog.resolve(name).num_parameters or 0) < 0.8 * own for name in smaller_than(small))


def test_the_ladder_of_several_gpus_divides_states() -> None:
    found = recommend_settings(TrainSettings.of(SWIN, gpu="t4", gpus=4), effective_batch=64, with_ladder=True)
    divided = {rung.to: rung for rung in found.ladder if rung.name in {"divided states", "offload"}}
    assert {"zero1", "zero2", "zero3", "zero2, optimizer", "zero3, all"} <= divided.keys()
    assert {to for to, rung in divided.items() if rung.saved_bytes is None} == {"fsdp", "fsdp, all"}  # Swin in fp16
    assert all(rung.saved_bytes > 0 for rung in divided.values() if rung.saved_bytes is not None)
    assert {rung.name: rung.remark for rung in found.ladder}["windowed attention"].endswith("windowed already")


def test_lighter_models_fit_with_the_settings_as_they_are() -> None:
    request = TrainSettings.of("vit_base_patch16_224", bs=64, memory="6GiB")
    lighter = recommend_settings(request, with_lighter=True).lighter
    assert lighter
    for model in lighter[:2]:
        assert fits(dataclasses.replace(request, model=model.name, res=(224, 224)).to_dict())
        assert model.num_parameters < 86_567_656


def test_the_command_prints_the_contract_and_exits_with_3_where_nothing_fits(capsys: Any) -> None:
    assert main(["recommend", TINY, "--effective-batch", "64", "--memory", "1200MiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"considered", "fitting", "plans", "nearest"} <= document.keys()
    names = {
        "rank",
        "settings",
        "effective_batch",
        "peak",
        "headroom_bytes",
        "relative_step_time",
        "keeps_recipe",
        "changes",
    }
    assert names <= document["plans"][0].keys()
    assert {"setting", "from", "to", "saved_bytes", "cost"} <= document["plans"][0]["changes"][0].keys()
    assert main(["recommend", "vit_base_patch16_224", "--bs", "1", "--memory", "900MiB", "--no-ladder"]) == 3
    shown = capsys.readouterr().out
    assert "Nothing fits 900MiB" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("model", [TINY, "WinKawaks/vit-tiny-patch16-224"])
def test_an_engine_that_is_named_has_the_buckets_of_one_that_is_found(model: str, engine: Any) -> None:
    request = TrainSettings.of(model, depth=2, memory="8GiB", gpus=2, bs=4, parallel=engine)
    named = recommend_settings(request, num_plans=1).plans[0]
    plan, settings = resolved(dataclasses.replace(request, parallel="ddp"))
    largest = 192 * 1000  # the head
    assert dict(named.settings["zero_options"]) == dict(bucket_options(engine, settings, plan, largest))
    # BUT a DeepSpeed file is the user's
    file = {"zero_optimization": {"stage": int(engine[-1])}}
    own = TrainSettings.of(model, depth=2, memory="8GiB", gpus=2, bs=4, deepspeed=file)
    assert not dict(recommend_settings(own, num_plans=1).plans[0].settings["zero_options"])


def test_a_remark_of_two_rungs_is_shown_once(capsys: Any) -> None:
    words = ["recommend", "facebook/dinov2-small", "--depth", "1", "--res", "224", "--bs", "4", "--train", "lora"]
    assert main([*words, "--memory", "8GiB", "--no-lighter"]) == 0
    assert capsys.readouterr().out.count("offload: when ZeRO-3 releases") == 1


def test_several_gpus_are_answered_or_refused() -> None:
    try:
        plans = vitmem.recommend(TINY, gpu="t4", gpus=2, effective_batch=64)
    except NotModelled:
        return
    assert all(plan.settings["bs"] * plan.settings["accum"] * 2 == 64 for plan in plans)
