"""The estimator against PyTorch's own CUDA allocator (``data/measurements``): allocated to the byte, and reserved."""

from __future__ import annotations

import json
from collections import Counter
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
    assert len(ROWS) >= 1300
    num_rows = Counter(gpu for gpu, _ in ROWS)
    assert {gpu for gpu, num in num_rows.items() if num >= 200} >= {"a100-40g", "rtx4090", "h200", "rtx5090"}
    assert {gpu for gpu, _ in ROWS} >= {"a100-40g", "t4", "rtx3090", "l4", "h100-80g"}


def test_forced_attention_kernels_are_among_them():
    assert {row["settings"].get("sdpa_kernel") for _, row in ROWS} >= {"flash", "efficient", "cudnn", "math"}


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
    assert (allocated, set(others), reserved) == (0, {0}, 0)
