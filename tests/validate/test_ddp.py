"""DDP between two real processes under the real Trainer, storage by storage."""

from __future__ import annotations

import pytest
from ranks import SWIN, VIT, both, highest, peaks_of
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.launch import RankFailed, measure_ranks

SMALL = {**VIT, "dim": 64, "heads": 2, "depth": 2}
WIDE = {**VIT, "dim": 512, "heads": 8, "depth": 6}


def at_the_end_of_backward(played):
    """Bytes by kind, and the buckets."""
    ledger, end = played.ledger, played.steady[-2].end.event
    happened = ledger.events[:end]
    alive = [i for i in happened if i >= 0 and ~i not in set(happened)]
    buckets = sorted(ledger.bytes[i] for i in alive if ledger.kinds[i] == "communication" and ledger.bytes[i] > 1000)
    return snapshot(ledger, played.replay.blocks, end), buckets


@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        pytest.param({**WIDE, "grad_checkpointing": True}, marks=pytest.mark.slow),  # other buckets from step 2 on
        pytest.param({**WIDE, "ddp_bucket_cap_mb": 2}, marks=pytest.mark.slow),
        pytest.param({**WIDE, "ddp_bucket_cap_mb": 40, "ddp_find_unused_parameters": False}, marks=pytest.mark.slow),
        pytest.param({**SWIN, "precision": "bf16", "accum": 2}, marks=pytest.mark.slow),
        pytest.param({**SWIN, "gpus": 4}, marks=pytest.mark.slow),
        pytest.param({**SMALL, "train": "linear-probe", "precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param({**SMALL, "freeze_layers": 1, "bs": 3}, marks=pytest.mark.slow),
        pytest.param({**SMALL, "train": "lora", "precision": "bf16"}, marks=pytest.mark.slow),
    ],
    ids=["vit", "rebuilt", "small buckets", "large buckets", "swin", "four", "probe", "frozen", "lora"],
)
def test_ranks_hold_what_the_estimate_says(settings):
    played, ranks = both({"precision": "fp32", **settings, "parallel": "ddp"})
    kinds, buckets = at_the_end_of_backward(played)
    for rank in ranks:
        end = rank["moments"]["backward_end"]
        made = sorted(size for size, op in end["others"] if op == "aten.empty.memory_format" and size > 1000)
        assert made == buckets
        for kind in ("parameters", "gradients", "optimizer_state", "buffers"):
            assert end["kinds"][kind] == kinds.get(kind, 0)
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
def test_an_ema_copies_the_weights_once_more():
    played, ranks = both({**VIT, "precision": "bf16", "ema": True, "parallel": "ddp"})
    assert peaks_of(played) == {name: pytest.approx(peak, rel=1e-3) for name, peak in highest(ranks).items()}


@pytest.mark.slow
def test_a_rank_that_fails_is_named_and_takes_the_others_along():
    with pytest.raises(RankFailed, match=r"rank \d of 2 failed with exit code 1: .*size of tensor"):
        measure_ranks(TrainSettings.of(**{**SWIN, "res": "64", "window": 7, "gpus": 2, "parallel": "ddp"}))
