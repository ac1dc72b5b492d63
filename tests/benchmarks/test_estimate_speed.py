"""How long an estimate takes; run with ``pytest tests/benchmarks -m slow``."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem.pipeline import estimate_settings
from vitmem.settings import TrainSettings


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_base_patch16_224", "google/vit-base-patch16-224", "vit_giant_patch14_224"])
def test_estimate(benchmark: Any, model: str) -> None:
    estimate = benchmark(estimate_settings, TrainSettings(model=model))
    assert estimate.peak.tensor_bytes > 0
