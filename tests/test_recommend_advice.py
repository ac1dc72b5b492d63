"""Advice that a person who trains such models would give: what is offered, what is said of it, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem.advice import recommend_settings
from vitmem.cli import main
from vitmem.settings import TrainSettings

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
