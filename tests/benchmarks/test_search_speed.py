"""How long a search takes, and how many candidates it gets through; run with ``pytest tests/benchmarks -m slow``."""

from __future__ import annotations

from typing import Any

import pytest
from vitmem.advice import Recommendation, recommend_settings
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


#: Effective batches with more and more divisors, and more blocks: from hundreds of candidates to tens of thousands,
#: each with a memory that is short.
GROWING = [(8, 6), (32, 6), (32, 24), (256, 24), (1440, 24), (2520, 24)]


@pytest.mark.parametrize("with_ladder", [False, True], ids=["plans", "ladder"])
@pytest.mark.parametrize("settings", RECOMMENDED, ids=str)
def test_recommend(benchmark: Any, settings: dict[str, Any], with_ladder: bool) -> None:
    """``extra_info`` has the candidates that were considered, those that were played, and candidates per second."""
    request = TrainSettings.of(**settings)
    _benchmark(benchmark, request, {"effective_batch": 256, "with_ladder": with_ladder})


@pytest.mark.parametrize(("effective_batch", "depth"), GROWING)
def test_recommend_grows_with_its_candidates(benchmark: Any, effective_batch: int, depth: int) -> None:
    """Candidates per second do not fall: what is played grows no faster than what is considered."""
    request = TrainSettings.of("vit_large_patch16_224", res=512, depth=depth, memory=f"{1500 + 420 * depth}MiB")
    found = _benchmark(benchmark, request, {"effective_batch": effective_batch})
    assert found.played <= 20 + found.considered / 80


def _benchmark(benchmark: Any, request: TrainSettings, more: dict[str, Any]) -> Recommendation:
    found = benchmark.pedantic(recommend_settings, (request,), more, rounds=3, warmup_rounds=1)
    per_second = round(found.considered / benchmark.stats["median"])
    benchmark.extra_info |= {"considered": found.considered, "played": found.played, "per_second": per_second}
    print(f"\n{found.considered} candidates, {found.played} played, {per_second} per second")
    assert found.plans
    return found
