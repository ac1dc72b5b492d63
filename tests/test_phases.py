"""What is played of a long evaluation stands for all of it; an epoch's last step; what a report says of the phases."""

from __future__ import annotations

import pytest
import vitmem
from hypothesis import given, settings
from hypothesis import strategies as st
from vitmem.allocator import rounded
from vitmem.errors import InvalidRequest
from vitmem.ledger import Ledger, followed_by
from vitmem.loops import evaluation
from vitmem.phases import last_sizes
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.report.estimate import estimate_report
from vitmem.settings import TrainSettings
from vitmem.step import played
from vitmem.timeline import phase_summaries

TINY = {"model": "vit_tiny_patch16_224", "depth": 1, "bs": 1, "res": 64}


def peaks(asked):
    """The evaluation's largest totals: of tensors, and of what an allocator rounds up."""
    plan, asked = resolved(asked)
    played = Played(plan, asked)
    ledger = played.course.ledger
    phases = phase_summaries(ledger, [rounded(size) for size in ledger.bytes])
    found = [s for s in phases if s.name == "evaluation"]
    return (
        max(s.tensor_peak.total_bytes for s in found),
        max(s.allocated_peak.total_bytes for s in found),
    )


@settings(max_examples=40, deadline=None)
@given(
    loop=st.sampled_from(["trainer", "plain", "timm"]),
    eval_bs=st.integers(1, 9),
    eval_samples=st.integers(1, 120),
    eval_accum=st.none() | st.integers(1, 12),
    num_classes=st.sampled_from([2, 1000, 30_000]),
)
def test_the_played_batches_stand_for_all(loop, eval_bs, eval_samples, eval_accum, num_classes):
    asked = TrainSettings.of(
        **TINY,
        loop=loop,
        eval_bs=eval_bs,
        eval_samples=eval_samples,
        eval_accum=eval_accum if loop == "trainer" else None,
        num_classes=num_classes,
    )
    some = peaks(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "parts", every_part)
        assert peaks(asked) == some


def every_part(asked, ranks=1):
    """All batches, one after the other."""
    sizes = [min(asked.eval_bs, asked.eval_samples - start) for start in range(0, asked.eval_samples, asked.eval_bs)]
    for place, size in enumerate(sizes, 1):
        yield evaluation.Part(size, moves=bool(asked.eval_accum) and place % asked.eval_accum == 0)


def test_fifty_thousand_images_are_not_played_one_by_one():
    large = vitmem.estimate(**TINY, eval_samples=50_000, eval_bs=8)
    piled_up = 50_000 * (1000 * 4 + 8 + 4)  # logits, label, loss
    evaluated = large.phases["evaluation"].tensor_bytes
    assert 2 * piled_up < evaluated < 2 * piled_up + 64 * 2**20
    assert any("evaluation needs more than a steady step" in warning for warning in large.warnings)
    accumulated = vitmem.estimate(**TINY, eval_samples=50_000, eval_bs=8, eval_accum=10)
    assert accumulated.phases["evaluation"].tensor_bytes < evaluated - 2 * piled_up + 64 * 2**20


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({"bs": 4}, ()),
        ({"bs": 4, "train_samples": 40}, ()),
        ({"bs": 4, "train_samples": 41}, (1,)),
        ({"bs": 4, "train_samples": 41, "loop": "timm"}, ()),
        ({"bs": 4, "accum": 3, "train_samples": 24}, ()),
        ({"bs": 4, "accum": 3, "train_samples": 26}, (2,)),
        ({"bs": 4, "accum": 3, "train_samples": 34}, (4, 4, 2)),
        ({"bs": 4, "accum": 3, "train_samples": 32}, (4, 4)),
        ({"bs": 4, "accum": 3, "train_samples": 3}, (3,)),
    ],
)
def test_an_epochs_last_step(asked, sizes):
    assert last_sizes(TrainSettings.of(**asked)) == sizes


def test_a_smaller_last_batch_can_make_the_allocator_reserve_more():
    # measured under PyTorch's own allocator as well (data/measurements/null_phases_a100-40g.json)
    asked = {"model": "WinKawaks/vit-tiny-patch16-224", "bs": 16, "depth": 3, "train_samples": 35, "gpu": "a100-40g"}
    estimate = vitmem.estimate(**asked)
    last, steady = estimate.phases["last_batch"], estimate.peak
    assert last.allocated_bytes < steady.allocated_bytes
    assert last.reserved_bytes > steady.reserved_bytes
    assert estimate.verdict["phase"] == "last_batch"
    assert vitmem.estimate(**asked | {"train_samples": None}).phases["last_batch"] is None


def test_what_only_trainer_has_is_refused_elsewhere():
    with pytest.raises(InvalidRequest, match="eval_accum is Trainer's"):
        TrainSettings.of(**TINY, loop="plain", eval_accum=2)


def test_a_kernel_that_only_an_evaluation_runs_is_not_known():
    vit = {"model": "torchvision/vit_b_32", "depth": 1, "bs": 1}
    assert vitmem.estimate(**vit).phases["evaluation"] is not None
    estimate = vitmem.estimate(**vit, precision="fp32")
    assert estimate.phases["evaluation"] is None
    assert any("fused kernel" in line for line in estimate.not_modelled)


def test_what_is_freed_of_an_earlier_step_has_the_same_rank_from_the_youngest_on():
    # GIVEN two batches of one size, old and new, of which the step frees the old one
    source = Ledger(
        bytes=(8, 8, 8),
        kinds=("inputs",) * 3,
        layers=("model",) * 3,
        events=(0, 1, 2, ~0),
        phases=(("setup", 0), ("forward", 2)),
        steps=(1,),
    )
    # WHEN the step follows a moment at which only the new one is there
    lonely = Ledger(bytes=(8,), kinds=("inputs",), layers=("model",), events=(0,), phases=(("setup", 0),))
    assert followed_by(lonely, source, 2).events == (0, 1)
    assert followed_by(source, source, 2).events == (0, 1, 2, ~0, 3, ~1)


def test_the_report_says_which_phase_needs_the_most():
    asked = {"model": "WinKawaks/vit-tiny-patch16-224", "depth": 2, "bs": 1, "gpu": "t4"}
    report = estimate_report(vitmem.estimate(**asked, eval_bs=64))
    lines = " ".join(report.subtitle)
    assert "An evaluation needs more: " in lines
    assert "The most is reserved in an evaluation." in lines
    rows = {name: [row[0] for row in table.rows] for table in report.tables for name in [table.name]}
    assert "evaluation" in rows["phases"]
    assert "last batch" not in rows["phases"]
    assert "a checkpoint on disk" in rows["host"]
    quiet = " ".join(estimate_report(vitmem.estimate(**asked | {"bs": 64}, eval_bs=1)).subtitle)
    assert "needs more" not in quiet


def test_of_an_older_torch_only_training_is_known():
    older = vitmem.estimate(**TINY, torch="2.8")
    assert (older.phases["evaluation"], older.phases["resume"]) == (None, None)
    assert [line for line in older.not_modelled if "only known of the newest torch, not of 2.8" in line]


@pytest.mark.parametrize(
    ("sizes", "places"),
    [
        ((4,), [0]),
        ((4, 4), [0, 1]),
        ((4, 1), [0, 1]),
        ((4,) * 4, [0, 1, 2, 3]),
        ((4,) * 5, [0, 1, 2]),  # odd and even ones settle apart
        ((4,) * 6, [0, 1, 2, 3]),
        ((4, 4, 4, 4, 1), [0, 1, 4]),
        ((4, 4, 4, 4, 4, 1), [0, 1, 2, 5]),
    ],
)
def test_which_micro_steps_are_played(sizes, places):
    assert played(sizes) == places
