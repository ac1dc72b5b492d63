"""The estimator against PyTorch's own CUDA allocator beside the steady step (``data/measurements/null_phases_*``):
an epoch's smaller last step, an evaluation, the training behind it, and a run that a checkpoint begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vitmem

FILES = sorted((Path(__file__).parents[1] / "data" / "measurements").glob("null_phases_*.json"))
ROWS = [
    (measured["gpu"], row)
    for measured in (json.loads(path.read_text()) for path in FILES)
    for row in measured["rows"]
    if "error" not in row
]
#: An evaluation of more batches is played by four of them: which block a tensor gets can then differ.
PLAYED = 5
#: Of more micro-steps three or four are played: where a block settles can then differ by a small segment.
PLAYED_MICRO_STEPS = 4


def title(row):
    return " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in row["settings"].items())


def test_there_are_enough_rows():
    assert len(ROWS) >= 80
    assert {row["settings"].get("loop", "trainer") for _, row in ROWS} == {"trainer", "timm", "plain"}
    assert sum(row["last_batch_bytes"] is not None for _, row in ROWS) >= 5


def estimated(gpu, row):
    """The row's figures, as the estimator has them."""
    estimate = vitmem.estimate(**row["settings"], gpu=gpu)
    figures = {
        "allocated_bytes": estimate.peak.allocated_bytes,
        "steady_reserved_bytes": estimate.peak.reserved_bytes,
    }
    for name in ("last_batch", "evaluation", "resume"):
        phase = estimate.phases[name]
        figures[f"{name}_bytes"] = None if phase is None else phase.allocated_bytes
        figures[f"{name}_reserved_bytes"] = None if phase is None else phase.reserved_bytes
    reserved = estimate.verdict["usable_bytes"] - estimate.verdict["headroom_bytes"]
    return estimate.request, figures | {"worst": reserved}


@pytest.mark.parametrize(("gpu", "row"), ROWS, ids=[f"{gpu} {title(row)}" for gpu, row in ROWS])
def test_what_every_phase_is_handed_and_reserves(gpu, row):
    request, figures = estimated(gpu, row)
    assert row["left_bytes"] == 0
    measured = {name: row[name] for name in figures if name != "worst"}
    measured["worst"] = max(row["reserved_bytes"], row["resume_reserved_bytes"])
    if request["eval_samples"] > PLAYED * request["eval_bs"]:
        evaluation = figures.pop("evaluation_bytes")
        assert evaluation == pytest.approx(measured.pop("evaluation_bytes"), rel=0.011)
    if row["settings"].get("accum", 1) > PLAYED_MICRO_STEPS:
        reserved = figures.pop("resume_reserved_bytes")
        assert reserved == pytest.approx(measured.pop("resume_reserved_bytes"), abs=2**21)
    assert figures == measured


def test_what_the_loops_add_is_among_them():
    asked = {name for _, row in ROWS for name, value in row["settings"].items() if value}
    assert asked >= {"ema", "mixup", "label_smoothing", "lora_dropout", "accum", "train_samples"}
