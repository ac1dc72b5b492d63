"""Candidates of a search: what they share with each other, and that sharing changes no figure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import vitmem
import vitmem.candidate
from vitmem.advice import recommend_settings
from vitmem.candidate import Candidate
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

TINY: dict[str, Any] = {"model": "vit_tiny_patch16_224", "depth": 4, "bs": 16, "memory": "8GiB"}
EXPANDABLE = "expandable_segments:True"


def of_estimate(settings: TrainSettings) -> tuple[Any, ...]:
    estimate = vitmem.estimate(**settings.to_dict())
    assert estimate.verdict is not None
    return estimate.verdict["fits"] == "yes", estimate.peak, estimate.verdict["headroom_bytes"]


def figures(candidate: Candidate) -> tuple[Any, ...]:
    return candidate.fits, candidate.peak, candidate.headroom_bytes


@pytest.mark.parametrize("memory", ["8GiB", "1100MiB"])
@pytest.mark.parametrize("lets_go", [None, Candidate.rest, Candidate.release])
def test_another_allocator_is_asked_about_the_same_play(memory: str, lets_go: Any, monkeypatch: Any) -> None:
    # GIVEN a candidate, and what was let go of it
    plain = TrainSettings.of(**TINY | {"memory": memory}, precision="fp32")
    expandable = dataclasses.replace(plain, alloc_conf=EXPANDABLE)
    candidate = Candidate(plain)
    before = figures(candidate)
    assert before == of_estimate(plain)
    if lets_go is not None:
        lets_go(candidate)
    plays: list[Any] = []
    played = vitmem.candidate.Played
    monkeypatch.setattr(vitmem.candidate, "Played", lambda *args, **more: plays.append(args) or played(*args, **more))
    # WHEN it is asked with other options of the allocator
    other = candidate.under(expandable)
    # THEN those are its figures, from the play that there was
    assert figures(other) == of_estimate(expandable)
    assert other.peak != candidate.peak
    assert len(plays) == (lets_go is Candidate.release)
    assert figures(candidate) == before


ENGINES = [
    [("zero1", "none"), ("zero2", "none"), ("zero2", "optimizer"), ("zero3", "none"), ("zero3", "all")],
    [("fsdp", "none"), ("fsdp", "all")],
]
HF_TINY = "WinKawaks/vit-tiny-patch16-224"
STEPS: list[dict[str, Any]] = [
    {"model": HF_TINY, "precision": "bf16"},
    {"model": HF_TINY, "precision": "fp32", "grad_checkpointing": True, "checkpoint_layers": 2},
    {"model": HF_TINY, "precision": "fp16", "accum": 3, "freeze_layers": 2},
    {"model": "vit_tiny_patch16_224", "precision": "fp32"},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "precision": "bf16", "depth": None},
]


@pytest.mark.parametrize("engines", ENGINES, ids=["zero", "fsdp"])
@pytest.mark.parametrize("asked", STEPS, ids=str)
def test_activations_are_the_same_with_every_stage_and_offload(asked: dict[str, Any], engines: list[Any]) -> None:
    found = set()
    for parallel, offload in engines:
        try:
            settings = TrainSettings.of(**TINY | {"gpus": 2} | asked, parallel=parallel, offload=offload)
            found.add(Candidate(settings).activation_bytes)
        except NotModelled:
            continue
    assert len(found) == 1
    assert all(found)


def test_a_few_plays_decide_thousands_of_candidates() -> None:
    request = TrainSettings.of("vit_large_patch16_224", res=512, gpu="rtx4090", gpus=8)
    found = recommend_settings(request, effective_batch=256)
    assert found.considered >= 3000
    assert found.played <= 17
