"""DDP between two real processes under the real Trainer, storage by storage."""

from __future__ import annotations

import pytest
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.launch import RankFailed, measure_ranks

VIT = {"model": "google/vit-base-patch16-224", "dim": 64, "heads": 2, "depth": 2, "res": "32"}
WIDE = {**VIT, "dim": 512, "heads": 8, "depth": 6}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3}


def figures(settings):
    """Of the estimate at the end of the last backward pass: bytes by kind, and the buckets; and its peaks."""
    plan, asked = resolved(settings)
    played = Played(plan, asked)
    ledger, end = played.ledger, played.steady[-2].end.event
    happened = ledger.events[:end]
    alive = [i for i in happened if i >= 0 and ~i not in set(happened)]
    buckets = sorted(ledger.bytes[i] for i in alive if ledger.kinds[i] == "communication" and ledger.bytes[i] > 1000)
    peaks = {}
    for summary in played.steady:
        peaks[summary.name] = max(peaks.get(summary.name, 0), summary.tensor_peak.total_bytes)
    return snapshot(ledger, played.replay.blocks, end), buckets, peaks


@pytest.mark.parametrize(
    "settings",
    [
        VIT,
        pytest.param({**WIDE, "grad_checkpointing": True}, marks=pytest.mark.slow),  # other buckets from step 2 on
        pytest.param({**SWIN, "precision": "bf16", "accum": 2}, marks=pytest.mark.slow),
    ],
    ids=["vit", "rebuilt", "swin"],
)
def test_two_ranks_hold_what_the_estimate_says(settings):
    asked = TrainSettings.of(**{"bs": 2, "precision": "fp32", "gpus": 2, "parallel": "ddp", **settings})
    kinds, buckets, peaks = figures(asked)
    for rank in measure_ranks(asked):
        end = rank["moments"]["backward_end"]
        made = sorted(size for size, op in end["others"] if op == "aten.empty.memory_format" and size > 1000)
        assert made == buckets
        for kind in ("parameters", "gradients", "optimizer_state", "buffers"):
            assert end["kinds"][kind] == kinds.get(kind, 0)
        assert rank["peaks"] == {phase: pytest.approx(peak, rel=0.02) for phase, peak in peaks.items()}


@pytest.mark.slow
def test_a_rank_that_fails_is_named_and_takes_the_others_along():
    with pytest.raises(RankFailed, match=r"rank \d of 2 failed with exit code 1: .*size of tensor"):
        measure_ranks(TrainSettings.of(**{**SWIN, "res": "64", "window": 7, "gpus": 2, "parallel": "ddp"}))
