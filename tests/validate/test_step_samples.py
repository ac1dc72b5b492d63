"""The rehearsal against an independent program that followed the same real steps (``tests/data/step_samples.json``).

Equal to the byte but for two known differences:

- an efficient-attention call keeps its seed and offset on the GPU, 2 x 8 bytes while its graph lives; the samples take
  them for host scalars;
- while fp16 gradients are clipped or stepped, the samples hold 12 bytes of the scaler's scalars that
  ``GradScaler.unscale_`` has let go of (one ``found_inf`` of 4 bytes is what stays allocated on a CUDA device).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vitmem.settings import TrainSettings
from vitmem.validate.meta import rehearse

pytestmark = pytest.mark.slow

SAMPLES = json.loads((Path(__file__).parents[1] / "data" / "step_samples.json").read_text(encoding="utf-8"))["configs"]

SEED_BYTES = 16
SCALER_BYTES = 12


def title(sample):
    return "-".join(str(value) for value in sample["settings"].values())


@pytest.mark.parametrize("sample", SAMPLES, ids=title)
def test_a_rehearsed_step_equals_the_sample(sample):
    expected = sample["expected"]
    rehearsal = rehearse(TrainSettings.of(**sample["settings"]))
    measurement, states = rehearsal.measurement, rehearsal.measurement.states
    seeds = SEED_BYTES * expected["sdpa"].get("efficient", 0)
    scaler = SCALER_BYTES if sample["settings"]["precision"] == "fp16" else 0
    for name in ("num_parameters", "num_trainable_parameters"):
        assert getattr(measurement, name) == expected[name]
    for name in expected:
        if name.endswith("_bytes"):
            slack = seeds if name in ("saved_activation_bytes", "end_of_forward_bytes") else 0
            assert 0 <= getattr(states, name) - expected[name] <= slack, name
    for phase in ("forward", "backward"):
        assert 0 <= measurement.phases[phase] - expected["phases"][phase] <= seeds, phase
    assert measurement.phases["optimizer_step"] == expected["phases"]["optimizer_step"] - scaler
    assert measurement.peak_phase == expected["peak"]["phase"]
    assert sum(measurement.at_peak.values()) == measurement.peak_bytes
