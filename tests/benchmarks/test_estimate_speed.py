"""How long an estimate takes, and its parts; run with ``pytest tests/benchmarks -m slow``."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median
from typing import Any

import pytest
from vitmem.engine import library
from vitmem.ledger import with_last_step_again
from vitmem.pipeline import estimate_settings, resolved
from vitmem.play import play
from vitmem.replay import replay
from vitmem.settings import TrainSettings

pytestmark = pytest.mark.slow

#: A base model of either library, the deepest ones of the catalogue, and stages of unequal blocks.
MODELS = [
    "vit_base_patch16_224",
    "google/vit-base-patch16-224",
    "vit_giant_patch14_224",
    "cait_m48_448",
    "swin_large_patch4_window12_384",
]
ROUNDS = 10


@pytest.mark.parametrize("model", MODELS)
def test_estimate(benchmark: Any, model: str) -> None:
    estimate = benchmark(estimate_settings, TrainSettings(model=model))
    assert estimate.peak.tensor_bytes > 0


@pytest.mark.parametrize("model", MODELS)
def test_the_first_estimate_of_a_model(benchmark: Any, model: str) -> None:
    """What blocks did in earlier plays is not known."""
    settings = TrainSettings(model=model)
    estimate = benchmark.pedantic(estimate_settings, args=(settings,), setup=library.clear, rounds=30)
    assert estimate.peak.tensor_bytes > 0


@pytest.mark.parametrize("model", MODELS)
def test_one_play(benchmark: Any, model: str) -> None:
    plan, settings = resolved(TrainSettings(model=model))
    assert benchmark(play, plan, settings).run.events


@pytest.mark.parametrize("model", MODELS)
def test_replay(benchmark: Any, model: str) -> None:
    step = play(*resolved(TrainSettings(model=model)))
    ledger = with_last_step_again(step.run.ledger())
    assert benchmark(replay, ledger).reserved_bytes > 0


def seconds(*command: str) -> float:
    """Wall time of a whole Python process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def test_the_process_against_an_empty_one(record_property: Any) -> None:
    """``vitmem estimate`` over ``python -c pass``, pair by pair in one run; the median is printed, not judged."""
    estimate = ("-m", "vitmem", "estimate", "--res", "512", "--bs", "8")
    seconds(*estimate)  # compiles what is not compiled yet
    ratio = median(seconds(*estimate) / seconds("-c", "pass") for _ in range(ROUNDS))
    record_property("ratio_to_an_empty_process", ratio)
    print(f"\nvitmem estimate takes {ratio:.1f} times what an empty Python process does")
    assert ratio > 1
