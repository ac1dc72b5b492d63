"""Advice that a person who trains such models would give: what is offered, what is said of it, and what is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import vitmem
from vitmem import catalog
from vitmem.advice import recommend_settings
from vitmem.advice.changes import changes_of
from vitmem.advice.files import texts_of
from vitmem.advice.relatives import smaller_than
from vitmem.advice.trials import Trials
from vitmem.cli import main
from vitmem.errors import InvalidRequest
from vitmem.parallel.buckets import bucket_options
from vitmem.pipeline import resolved
from vitmem.settings import TrainSettings
from vitmem.units import format_bytes

TINY = "vit_tiny_patch16_224"


def recommended(effective_batch: int, *, num_plans: int = 5, forbid: tuple[str, ...] = (), **settings: Any) -> Any:
    asked = TrainSettings.of(**{"model": TINY, **settings})
    return recommend_settings(asked, effective_batch=effective_batch, num_plans=num_plans, forbid=forbid)


def test_an_engine_may_checkpoint_what_ddp_may_not() -> None:
    """DINOv2's mask token gets no gradient, which DDP takes without checkpointing only; ZeRO does not mind."""
    few = {"model": "facebook/dinov2-small", "res": 518, "depth": 3, "gpus": 2, "eval_bs": 1, "memory": "2000MiB"}
    found = recommended(4, forbid=("recipe", "offload", "alloc_conf"), **few)
    assert [(plan.settings["parallel"], plan.settings["grad_checkpointing"]) for plan in found.plans] == [
        ("zero1", True)
    ]


@pytest.mark.parametrize("words", [["--effective-batch", "1" + 12 * "0"], ["--effective-batch", "1048583000003"]])
def test_a_batch_that_no_micro_batches_make_up_is_refused(words: list[str], capsys: Any) -> None:
    assert main(["recommend", TINY, "--gpu", "t4", *words]) == 2
    assert "choose another --effective-batch" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--res", "100000"], ["--num-classes", "99999999"]])
def test_what_no_gpu_could_hold_is_answered(words: list[str], capsys: Any) -> None:
    """One tensor is larger than the whole device, also for the allocator with expandable segments."""
    assert main(["recommend", TINY, "--gpu", "t4", *words, "--no-ladder", "--no-lighter"]) == 3
    assert "Nothing fits t4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("vit_base_patch16_224", "vit_small_patch16_224"),
        ("vit_giant_patch14_224", "vit_huge_patch14_224"),
        ("google/vit-base-patch16-224", "WinKawaks/vit-small-patch16-224"),
        ("facebook/dinov2-giant", "facebook/dinov2-large"),
        ("swin_large_patch4_window12_384", "swin_base_patch4_window12_384"),
    ],
)
def test_the_next_smaller_model_is_the_one_that_people_mean(model: str, first: str) -> None:
    assert smaller_than(catalog.resolve(model))[0] == first


def test_a_lighter_model_takes_less_memory_and_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """dino-vits8 has a quarter of the parameters and four times the tokens."""
    named = ["facebook/dino-vits8", "WinKawaks/vit-tiny-patch16-224"]
    with monkeypatch.context() as patched:
        patched.setattr("vitmem.advice.ladder.smaller_than", lambda model: named)
        asked = TrainSettings.of("google/vit-base-patch16-224", gpu="t4", bs=8)
        rungs = {rung.name: rung for rung in recommend_settings(asked, with_ladder=True).ladder}
    assert rungs["lighter model"].to == named[1]
    least = TrainSettings.of("swin_tiny_patch4_window7_224", gpu="t4", bs=8)
    rungs = {rung.name: rung for rung in recommend_settings(least, with_ladder=True).ladder}
    assert rungs["lighter model"].remark.startswith("the catalogue has no smaller one")


def test_bf16_is_slow_where_the_gpu_has_none() -> None:
    """Before sm80 its products go through fp32's units: fp16 is what is meant there."""
    asked: dict[str, Any] = {"precision": "bf16", "eval_bs": 8, "memory": None}
    plans = recommended(64, gpu="t4", **asked).plans
    assert plans[0].settings["precision"] == "fp16"
    assert [(change.setting, change.to) for change in plans[0].changes] == [("precision", "fp16")]
    assert plans[-1].settings["precision"] == "bf16"
    assert plans[-1].relative_step_time > 3
    assert {plan.settings["precision"] for plan in recommended(64, gpu="rtx3090", **asked).plans} == {"bf16"}


def test_plans_that_differ_in_attention_say_so(capsys: Any) -> None:
    assert main(["recommend", "swin_tiny_patch4_window7_224", "--bs", "8", "--gpu", "t4", "--no-ladder"]) == 0
    shown = capsys.readouterr().out
    assert "attn sdpa" in shown.partition("Plans that fit")[2].partition("What plan")[0]
    assert "attn eager" in shown


def test_a_prime_share_names_batches_of_all_gpus() -> None:
    notes = recommended(254, gpus=2, gpu="rtx4090").notes
    assert any("--effective-batch 252 or 256" in note for note in notes)


def test_where_no_micro_batch_fits_the_ladder_stands_on_the_one_that_takes_the_least() -> None:
    """Accumulated gradients beside the weights' 16-bit copies take more than the whole batch's activations."""
    asked = TrainSettings.of("vit_large_patch16_224", res=32, bs=8, gpus=2, memory="4GiB")
    rungs = {rung.name: rung for rung in recommend_settings(asked, with_ladder=True, forbid=("recipe",)).ladder}
    batch = rungs["smaller micro-batch"]
    assert (batch.to, batch.saved_bytes, batch.fits) == ("8 x 1", 0, False)
    assert "takes the least" in batch.remark


def test_the_ladder_says_why_engines_are_faster() -> None:
    asked = TrainSettings.of(TINY, bs=8, gpus=2, gpu="t4")
    rungs = [
        r for r in recommend_settings(asked, with_ladder=True).ladder if r.name == "divided states" and r.saved_bytes
    ]
    assert rungs
    assert all("16 bits" in rung.remark for rung in rungs)


def test_an_allocator_that_makes_room_saves_where_the_verdict_looks() -> None:
    """The steady step reserves more with expandable segments here, a resumed run less: that is what decides."""
    asked: dict[str, Any] = {"model": "vit_base_patch16_224", "precision": "bf16", "gpu": "t4"}
    plans = recommended(256, forbid=("precision", "recipe"), **asked).plans
    saved = [change.saved_bytes for plan in plans for change in plan.changes if change.setting == "alloc_conf"]
    assert saved
    assert all(num_bytes > 0 for num_bytes in saved)


@pytest.mark.parametrize(
    ("optim", "loses", "keeps"),
    [("adafactor", "no momentum", False), ("adamw_bnb_8bit", "8 bits", False), ("adamw_torch_fused", "nothing", True)],
)
def test_an_optimizer_says_what_training_loses_by_it(optim: Any, loses: str, keeps: bool) -> None:
    """Another implementation of the same update loses nothing, another state does."""
    asked = resolved(TrainSettings.of(TINY, optim="adamw_torch", gpu="t4"))[1]
    (change,) = changes_of(Trials(asked), asked, dataclasses.replace(asked, optim=optim))
    assert loses in change.loses
    assert change.keeps_recipe is keeps


def test_an_evaluation_that_does_not_fit_is_made_smaller_before_the_recipe_changes() -> None:
    """Eight large images at once take more than the training of one."""
    asked: dict[str, Any] = {"model": "vit_base_patch16_224", "depth": 6, "res": 1024, "memory": "2000MiB"}
    best = recommended(2, forbid=("recipe",), **asked).plans[0]
    assert best.keeps_recipe
    assert best.settings["eval_bs"] == 4
    change = next(change for change in best.changes if change.setting == "eval_bs")
    assert (change.from_, change.to, change.saved_bytes > 0) == (8, 4, True)
    assert not recommended(2, forbid=("recipe", "eval_bs", "parallel", "offload"), **asked).plans
    assert not recommended(2, forbid=("recipe", "parallel", "offload"), **{**asked, "eval_bs": 8}).plans


@pytest.mark.parametrize(("memory", "engines"), [("8600MiB", ["ddp"]), ("4100MiB", ["ddp", "zero1"])])
def test_offload_is_for_the_room_that_it_makes(memory: str, engines: list[str]) -> None:
    """ZeRO trains Swin in 16 bits and is faster by that alone; a larger batch by way of the host adds little."""
    asked = {"model": "microsoft/swin-tiny-patch4-window7-224", "res": 448, "gpus": 2, "memory": memory}
    found = recommended(64, forbid=("recipe", "grad_checkpointing"), **asked)
    assert [plan.settings["parallel"] for plan in found.plans] == engines
    assert all(plan.settings["offload"] == "none" for plan in found.plans)


@pytest.mark.parametrize("num_plans", [0, -1, "3", 2.5, True, None])
def test_a_number_of_plans_that_is_none_is_refused(num_plans: Any) -> None:
    with pytest.raises(InvalidRequest, match="num_plans"):
        recommended(8, gpu="t4", num_plans=num_plans)


def test_images_of_all_micro_steps_are_remarked_where_they_take_much() -> None:
    """Trainer fetches them all before the first; a tiny model of a large batch is short of memory by nothing else."""
    (note,) = [note for note in recommended(16384, gpu="t4").notes if note.startswith("Trainer has the images")]
    assert "9.19 GiB; --loop plain" in note
    assert not any("all" in note and "images" in note for note in recommended(64, gpu="t4").notes)


def test_offload_says_what_it_takes_on_the_host() -> None:
    asked: dict[str, Any] = {"model": "vit_base_patch16_224", "res": 64, "memory": "2100MiB", "eval_bs": 1}
    found = recommended(2, forbid=("recipe",), **asked)
    plan = next(plan for plan in found.plans if plan.settings["offload"] != "none")
    host = vitmem.estimate(**plan.settings).host["offload_bytes"]
    assert host is not None
    assert any(f"keeps {format_bytes(host)} of host memory" in note for note in found.notes)


def test_zero_3_is_tried_for_models_beyond_deepspeeds_own_limits() -> None:
    """Its limits are raised above two passes, in the written file too, which reads back as the same estimate."""
    asked = TrainSettings.of("vit_huge_patch14_224", bs=1, gpus=2, parallel="zero3", precision="bf16", gpu="rtx4090")
    plan = recommend_settings(asked, num_plans=1, forbid=("recipe",)).plans[0]
    document = json.loads(texts_of(plan, "rtx4090")["ds_config.json"])
    zero = document["zero_optimization"]
    assert zero["stage3_max_reuse_distance"] == zero["stage3_max_live_parameters"] == 1_600_000_000
    read = vitmem.estimate(asked.model, bs=1, gpus=2, precision="bf16", gpu="rtx4090", deepspeed=document)
    assert read.peak == plan.peak
    assert "stage3_max_live_parameters" not in dict(options_of(TINY))


def options_of(model: str) -> Any:
    plan, settings = resolved(TrainSettings.of(model, gpus=2, parallel="zero3"))
    return bucket_options("zero3", settings, plan, 1)


@pytest.mark.parametrize(
    ("gpu", "precision", "says"), [("a10g", "fp16", True), ("a10g", "bf16", False), ("t4", "fp16", False)]
)
def test_fp16_is_remarked_where_the_gpu_has_bf16(gpu: str, precision: Any, says: bool) -> None:
    notes = recommended(64, gpu=gpu, precision=precision).notes
    assert any("--precision bf16 does neither" in note for note in notes) is says


def test_bf16_takes_what_fp16_takes() -> None:
    """What the remark says: but for the scaler's scalars."""
    peaks = [vitmem.estimate(TINY, bs=64, precision=p).peak.allocated_bytes or 0 for p in ("fp16", "bf16")]
    assert abs(peaks[0] - peaks[1]) < 10_000
