"""The estimator against PyTorch's own CUDA allocator (``data/measurements``): allocated to the byte, and reserved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vitmem

FILES = sorted((Path(__file__).parents[1] / "data" / "measurements").glob("null_[!p]*.json"))
ROWS = [
    (measured["gpu"], row)
    for measured in (json.loads(path.read_text()) for path in FILES)
    for row in measured["rows"]
    if "error" not in row
]


def title(row):
    return " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in row["settings"].items())


def test_there_are_enough_rows_of_every_generation():
    assert len(ROWS) >= 400
    assert {gpu for gpu, _ in ROWS} == {"a100-40g", "t4", "rtx3090", "l4", "h100-80g"}


#: Rows that are not equal in every figure, by what they have in common. One that becomes equal leaves the list.
TITLES = {
    # the math kernel with a learnt mask: head sizes 12 and 15, which no fused kernel takes
    "bs=2 depth=2 dim=144 heads=12 beit_base_patch16_224 grad_checkpointing=True precision=bf16",
    "bs=2 depth=2 dim=180 heads=12 beit_base_patch16_224 attn_dropout=0.1 precision=fp32",
    # transformers' BEiT and Data2Vec: not traced
    "depth=2 dim=48 heads=3 mlp_ratio=2.0 microsoft/beit-base-patch16-224 res=144x112 bs=1 precision=pure-bf16",
    "bs=2 depth=3 res=96 dim=48 heads=3 mlp_ratio=2.0 microsoft/beit-base-patch16-224-pt22k freeze_layers=1 "
    "precision=fp16",
    "bs=2 depth=2 microsoft/beit-base-patch16-224-pt22k precision=fp32 attn=eager",
    "bs=2 depth=2 facebook/data2vec-vision-base precision=fp32 attn=sdpa",
    # not traced
    "bs=2 depth=2 facebook/dinov2-with-registers-giant res=512 precision=bf16 loop=plain",
    "bs=2 depth=2 facebook/dinov3-vits16-pretrain-lvd1689m res=100x75 precision=bf16 loop=timm",
    "bs=1 microsoft/swinv2-tiny-patch4-window8-256 res=110x94 precision=fp16 loop=timm",
    "bs=2 microsoft/swin-tiny-patch4-window7-224 res=96 window=3 grad_checkpointing=True "
    "precision=bf16 freeze_layers=3",
}
MISSES = {frozenset(known.split()) for known in TITLES}


def differences(gpu, row):
    """Estimate less measurement: the allocated peak, that of every phase and of the first step, and reserved."""
    estimate = vitmem.estimate(**row["settings"], gpu=gpu)
    left = row["left_bytes"]
    phases = {name: estimate.phases[name].allocated_bytes + left - size for name, size in row["phases"].items()}
    first = estimate.phases["first_step"].allocated_bytes + left - row["first_step_bytes"]
    allocated = estimate.peak.allocated_bytes + left - row["allocated_bytes"]
    return allocated, estimate.peak.reserved_bytes - row["reserved_bytes"], (*phases.values(), first)


@pytest.mark.parametrize(("gpu", "row"), ROWS, ids=[f"{gpu} {title(row)}" for gpu, row in ROWS])
def test_what_the_allocator_hands_out_and_reserves(gpu, row):
    allocated, reserved, others = differences(gpu, row)
    if frozenset(title(row).split()) not in MISSES:
        assert (allocated, reserved, set(others)) == (0, 0, {0})
    assert abs(allocated) <= 0.011 * row["allocated_bytes"]
    assert abs(reserved) <= 0.02 * row["reserved_bytes"]


def test_every_miss_is_one():
    missed = {frozenset(title(row).split()) for gpu, row in ROWS if frozenset(title(row).split()) in MISSES}
    assert missed == MISSES
    for miss in MISSES:
        found = [differences(gpu, row) for gpu, row in ROWS if frozenset(title(row).split()) == miss]
        assert any(allocated or reserved or any(others) for allocated, reserved, others in found), sorted(miss)
