"""FSDP2 between real processes under the real Trainer, storage by storage, and one rank of many on a null device."""

from __future__ import annotations

import json

import pytest
from vitmem.cli import main
from vitmem.device import CPU
from vitmem.errors import NotModelled
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.launch import measure_ranks
from vitmem.validate.distributed.one_rank import first_of

VIT = {"model": "google/vit-base-patch16-224", "dim": 64, "heads": 2, "depth": 2, "res": "32", "bs": 2}
WIDE = {**VIT, "dim": 192, "heads": 3, "depth": 4}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3, "bs": 2}
DINO = {"model": "facebook/dinov2-small", "depth": 2, "res": "28", "bs": 2}
BEIT = {"model": "microsoft/beit-base-patch16-224", "dim": 64, "heads": 2, "depth": 2, "res": "32", "bs": 2}
TIMM = {"model": "vit_tiny_patch16_224", "depth": 2, "res": "32", "bs": 2}
_STATES = ("parameters", "gradients", "optimizer_state", "buffers")


def figures(settings):
    """The estimate's bytes by kind at the end of the backward pass, and its peaks."""
    played = Played(*resolved(settings), CPU.gpu)
    peaks = {}
    for summary in played.steady:
        peaks[summary.name] = max(peaks.get(summary.name, 0), summary.tensor_peak.total_bytes)
    return snapshot(played.ledger, played.replay.blocks, played.steady[-2].end.event), peaks


@pytest.mark.parametrize(
    "settings",
    [
        VIT,
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                WIDE,
                {**WIDE, "precision": "bf16"},
                {**WIDE, "gpus": 4, "precision": "bf16"},
                {**WIDE, "gpus": 3},
                {**WIDE, "accum": 2, "precision": "bf16"},
                {**WIDE, "grad_checkpointing": True, "bs": 8},
                {**WIDE, "reshard_after_forward": False},
                SWIN,
                {**SWIN, "precision": "bf16"},
                DINO,
                BEIT,
                TIMM,
                {**TIMM, "precision": "bf16"},
            )
        ),
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_ranks_hold_what_the_estimate_says(settings):
    asked = TrainSettings.of(**{"precision": "fp32", "gpus": 2, **settings, "parallel": "fsdp"})
    kinds, peaks = figures(asked)
    wanted = {"version": 2}
    if asked.reshard_after_forward is False:
        wanted["reshard_after_forward"] = False
    ranks = measure_ranks(asked, fsdp=wanted)
    end = ranks[0]["moments"]["backward_end"]
    assert {kind: end["kinds"][kind] for kind in _STATES} == {kind: kinds.get(kind, 0) for kind in _STATES}
    highest = {phase: max(rank["peaks"][phase] for rank in ranks) for phase in peaks}
    assert highest == {phase: pytest.approx(peak, rel=0.001) for phase, peak in peaks.items()}
    for rank in ranks[1:]:  # the first has the most of everything that is divided
        assert all(
            rank["moments"]["rest"]["kinds"][kind] <= ranks[0]["moments"]["rest"]["kinds"][kind] for kind in _STATES
        )


@pytest.mark.slow
def test_the_command_starts_the_ranks_and_passes(capfd):
    """The issue's own line."""
    line = "validate --backend cpu --parallel fsdp --gpus 2 vit_tiny_patch16_224 --bs 2 --json"
    assert main(line.split()) == 0
    found = json.loads(capfd.readouterr().out)
    assert abs(found["relative_error"]["tensor_bytes"]) < 0.02
    assert "2 processes" in found["measurement"]["device"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--loop", "plain"], ["--offload", "all"]])
def test_one_rank_of_many_on_a_null_device(capfd, more):
    line = "validate --backend null --gpu rtx4090 --parallel fsdp --gpus 8 vit_tiny_patch16_224 --depth 2 --bs 2 --json"
    assert main([*line.split(), *more]) == 0
    found = json.loads(capfd.readouterr().out)["relative_error"]
    assert (found["allocated_bytes"], found["reserved_bytes"]) == (0, 0)


@pytest.mark.parametrize("parallel", [None, "ddp", "zero2"])
def test_other_engines_are_not_measured_alone(parallel):
    with pytest.raises(NotModelled, match="--backend cpu"):
        first_of(TrainSettings(gpus=2, parallel=parallel))
