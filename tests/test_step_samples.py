"""The estimator against the third training step of the real models, followed by an independent program.

``tests/data/step_samples.json`` says how it was made. Two differences are known, and checked to be exactly that:
an efficient-attention call keeps its seed and offset on the GPU (16 bytes, which the samples take for host scalars),
and with fp16 the samples hold 12 bytes more of scaler scalars after ``unscale_`` than
``torch.amp.GradScaler`` keeps (one found_inf of 4 bytes survives ``unscale_``).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vitmem
from vitmem import catalog
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings

SAMPLES = json.loads((Path(__file__).parent / "data" / "step_samples.json").read_text())["configs"]
KNOWN = set(catalog.names())
COVERED = [sample for sample in SAMPLES if sample["settings"]["model"] in KNOWN]


def test_the_samples_of_every_covered_family_are_used():
    assert len(COVERED) >= 20


def play(sample):
    settings = TrainSettings.of(**sample["settings"])
    plan, settings = resolved(settings)
    return Played(plan, settings)


def seeds(sample, calls):
    """Bytes of the seeds and offsets of so many live efficient-attention calls."""
    return 16 * calls if sample["sdpa"].get("efficient") else 0


@pytest.mark.parametrize("sample", COVERED, ids=lambda s: " ".join(str(v) for v in s["settings"].values()))
def test_a_real_step_to_the_byte(sample):
    expected = sample["expected"]
    settings = sample["settings"]
    played = play(sample)
    blocks = len(played.step.model.blocks)
    probe = settings.get("train") == "linear-probe"  # nothing before the classifier is kept
    live = 0 if probe else blocks - settings.get("checkpoint_layers", 0) - settings.get("freeze_layers", 0)
    ends = {summary.name: summary.end.total_bytes for summary in played.steady}
    highest = {
        name: max(s.tensor_peak.total_bytes for s in played.steady if s.name == name)
        for name in ("forward", "backward", "optimizer_step")
    }
    assert ends["forward"] - seeds(expected, live) == expected["end_of_forward_bytes"]
    assert ends["backward"] == expected["end_of_backward_bytes"]
    assert ends["optimizer_step"] == expected["end_of_step_bytes"]
    # the forward's last temporary comes before or after the last attention call
    assert 0 <= highest["forward"] - expected["phases"]["forward"] <= seeds(expected, live)
    assert 0 <= highest["backward"] - expected["phases"]["backward"] <= seeds(expected, live)
    scalers = 12 if settings["precision"] == "fp16" else 0
    assert highest["optimizer_step"] == expected["phases"]["optimizer_step"] - scalers


@pytest.mark.parametrize("sample", COVERED, ids=lambda s: " ".join(str(v) for v in s["settings"].values()))
def test_the_states_to_the_byte(sample):
    expected = sample["expected"]
    estimate = vitmem.estimate(**sample["settings"])
    states = estimate.states
    live = sum(row.saved_activation_bytes > 0 and "." in row.name for row in estimate.layers)
    assert estimate.model.num_parameters == expected["num_parameters"]
    assert estimate.model.num_trainable_parameters == expected["num_trainable_parameters"]
    assert estimate.model.image_size == tuple(expected["image_size"])
    assert states.parameter_bytes == expected["parameter_bytes"]
    assert states.buffer_bytes == expected["buffer_bytes"]
    assert states.gradient_bytes == expected["gradient_bytes"]
    assert states.optimizer_bytes == expected["optimizer_bytes"]
    difference = states.saved_activation_bytes - expected["saved_activation_bytes"]
    assert difference % 16 == 0
    assert 0 <= difference <= seeds(expected, live)
    assert estimate.peak.phase == expected["peak"]["phase"]
