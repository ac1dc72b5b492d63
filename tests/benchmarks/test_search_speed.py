"""How long a search takes, and how many candidates it gets through; run with ``pytest tests/benchmarks -m slow``."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem.advice import recommend_settings
from vitmem.settings import TrainSettings
from vitmem.solver import solve_settings

pytestmark = pytest.mark.slow

SOLVED: list[tuple[str, dict[str, Any]]] = [
    ("bs", {"model": "vit_base_patch16_224", "precision": "bf16", "gpu": "rtx4090"}),
    ("bs", {"model": "swin_base_patch4_window12_384", "precision": "bf16", "gpu": "rtx4090"}),
    ("bs", {"model": "vit_giant_patch14_224", "precision": "bf16", "gpu": "h100-80g"}),
    ("res", {"model": "vit_base_patch16_224", "bs": 32, "gpu": "rtx4090"}),
    ("gpu", {"model": "vit_base_patch16_224", "res": 512, "bs": 32}),
]
RECOMMENDED: list[dict[str, Any]] = [
    {"model": "vit_base_patch16_224", "gpu": "t4"},
    {"model": "vit_large_patch16_224", "gpu": "rtx4090", "gpus": 8},
    {"model": "vit_large_patch16_224", "gpu": "rtx4090", "gpus": 8, "res": 512},
    {"model": "microsoft/swin-base-patch4-window12-384", "gpu": "rtx4090", "gpus": 2, "res": 512},
    {"model": "vit_giant_patch14_224", "gpu": "rtx4090", "gpus": 8},
]


@pytest.mark.parametrize(("what", "settings"), SOLVED, ids=str)
def test_solve(benchmark: Any, what: str, settings: dict[str, Any]) -> None:
    assert benchmark(solve_settings, what, TrainSettings.of(**settings)).value


@pytest.mark.parametrize("settings", RECOMMENDED, ids=str)
def test_recommend(benchmark: Any, settings: dict[str, Any]) -> None:
    """``extra_info`` has the candidates that were considered, those that were played, and candidates per second."""
    request = TrainSettings.of(**settings)
    found = benchmark.pedantic(recommend_settings, (request,), {"effective_batch": 256}, rounds=3, warmup_rounds=1)
    per_second = round(found.considered / benchmark.stats["median"])
    benchmark.extra_info |= {"considered": found.considered, "played": found.played, "per_second": per_second}
    print(f"\n{found.considered} candidates, {found.played} played, {per_second} per second")
    assert found.plans
