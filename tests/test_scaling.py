"""What one more image needs, read from one step more, against a run of its own."""

from __future__ import annotations

import dataclasses

import pytest
from vitmem import TrainSettings
from vitmem.pipeline import resolved
from vitmem.play import Played, play
from vitmem.scaling import with_larger_batch
from vitmem.timeline import allocated_peak

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"

CASES = [
    *(
        {"model": model, "loop": loop, "bs": 3, "depth": 3}
        for model in (TIMM, HF)
        for loop in ("trainer", "timm", "plain")
    ),
    {"model": TIMM, "loop": "plain", "bs": 4, "depth": 2, "zero_grad": "keep", "accum": 3},
    {"model": TIMM, "loop": "timm", "bs": 4, "depth": 2, "accum": 2, "ema": True},
    {"model": HF, "bs": 4, "depth": 2, "precision": "fp32", "train_samples": 41, "eval_bs": 9, "eval_samples": 30},
    {"model": HF, "bs": 4, "depth": 3, "grad_checkpointing": True, "precision": "bf16", "optim": "adafactor"},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "bs": 2},
    {"model": "facebook/vit-mae-base", "bs": 2, "depth": 2},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_step_more_tells_what_a_run_with_one_image_more_needs(case):
    plan, settings = resolved(TrainSettings.of(**case))
    played = Played(plan, settings)
    larger = with_larger_batch(played.step, played.ledger)
    run = play(plan, dataclasses.replace(settings, bs=settings.bs + 1)).run.ledger()
    assert larger is not None
    assert allocated_peak(larger, -1) == allocated_peak(run, -1) > allocated_peak(played.ledger, -1)
    begin = run.first_event(run.steps[-1])
    sizes = [run.bytes[event] for event in run.events[begin:] if event >= 0]
    assert [*larger.bytes[-len(sizes) :]] == sizes


def test_where_one_more_image_takes_other_kernels_no_step_tells():
    plan, settings = resolved(TrainSettings.of(model="swinv2_tiny_window8_256", bs=1, res=64))
    played = Played(plan, settings)
    assert with_larger_batch(played.step, played.ledger) is None
