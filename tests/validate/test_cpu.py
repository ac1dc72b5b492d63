"""``vitmem validate --backend cpu``: real steps on this machine, torch's memory profiler as the witness."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")

from vitmem import ops
from vitmem.cli import main
from vitmem.device import CPU
from vitmem.pipeline import play_settings
from vitmem.settings import TrainSettings
from vitmem.validate.cpu import measure

VIT = {"model": "vit_tiny_patch16_224", "bs": 4, "depth": 3}
HF = {"model": "google/vit-base-patch16-224", "bs": 4, "depth": 2}
EXACT = [
    VIT | {"precision": "fp32", "loop": "plain"},
    VIT | {"precision": "bf16", "loop": "plain"},
    VIT | {"precision": "bf16", "loop": "timm"},
    VIT | {"precision": "fp16"},
    VIT | {"precision": "pure-bf16"},
    VIT | {"precision": "bf16", "dropout": 0.1, "attn_dropout": 0.1, "drop_path": 0.1},
    VIT | {"precision": "fp32", "attn": "eager", "attn_dropout": 0.1, "optim": "sgd-momentum"},
    HF | {"precision": "bf16"},
    HF | {"precision": "fp32", "optim": "sgd-momentum", "dropout": 0.1},
    {"model": "google/vit-base-patch16-224", "bs": 2, "depth": 4, "precision": "fp32"},  # oneDNN's backward is highest
    {"model": "facebook/dinov2-small", "bs": 2, "depth": 3, "res": 224, "precision": "bf16"},
    {"model": "vit_small_patch14_dinov2", "bs": 2, "depth": 3, "res": 224, "precision": "fp32", "attn_dropout": 0.1},
    {"model": "vit_small_patch16_dinov3", "bs": 2, "depth": 2, "res": 64, "precision": "fp32"},  # queries by head
    {"model": "facebook/dinov3-vits16-pretrain-lvd1689m", "bs": 2, "depth": 2, "res": 64, "precision": "bf16"},
    {"model": "eva02_tiny_patch14_224", "bs": 2, "depth": 2, "precision": "bf16"},  # a sum of two types is highest
    {"model": "beit_base_patch16_224", "bs": 2, "depth": 2, "precision": "bf16"},
    {"model": "beit_base_patch16_224", "bs": 2, "depth": 2, "precision": "fp32", "optim": "adamw_torch"},
    {"model": "swin_tiny_patch4_window7_224", "bs": 2, "precision": "fp32", "drop_path": 0.0},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "bs": 2, "precision": "fp32"},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "bs": 2, "precision": "bf16", "optim": "adamw_torch"},
]
#: The host's random state that each checkpoint saves (5056 bytes), HF BEiT's cached index (8 per pair of tokens).
WITHIN_A_THOUSANDTH = [
    VIT | {"precision": "bf16", "grad_checkpointing": True},
    {"model": "swin_tiny_patch4_window7_224", "bs": 2, "precision": "bf16", "grad_checkpointing": True},
    {"model": "microsoft/beit-base-patch16-224", "bs": 2, "depth": 2, "precision": "bf16"},
]
HOST_SCALARS_BYTES = 192


def both(settings):
    of_the_step = TrainSettings.of(**settings)
    return play_settings(of_the_step, CPU), measure(of_the_step)


def named(settings):
    return " ".join(map(str, settings.values()))


@pytest.mark.slow
@pytest.mark.parametrize("settings", EXACT, ids=named)
def test_real_steps_hold_what_the_estimate_says(settings):
    estimate, measured = both(settings)
    assert abs(measured.peak_bytes - estimate.peak.tensor_bytes) <= HOST_SCALARS_BYTES
    assert estimate.peak.phase == measured.peak_phase
    for phase, num_bytes in measured.phases.items():
        assert abs(num_bytes - estimate.phases[phase].tensor_bytes) <= HOST_SCALARS_BYTES, phase
    estimated = {layer.name: layer.saved_activation_bytes for layer in estimate.layers}
    for layer in measured.layers:
        assert abs(layer.saved_activation_bytes - estimated[layer.name]) <= HOST_SCALARS_BYTES, layer.name
    for kind, num_bytes in measured.at_peak.items():
        assert abs(num_bytes - estimate.at_tensor_peak[kind]) <= HOST_SCALARS_BYTES, kind


@pytest.mark.slow
@pytest.mark.parametrize("settings", WITHIN_A_THOUSANDTH, ids=named)
def test_what_only_the_host_keeps_is_all_that_is_missing(settings):
    estimate, measured = both(settings)
    assert 0 <= measured.peak_bytes - estimate.peak.tensor_bytes <= measured.peak_bytes // 800


COMMAND = ["validate", "--backend", "cpu", "vit_tiny_patch16_224", "--depth", "2", "--bs", "2"]


def test_the_command_passes_and_shows_kinds_phases_and_layers(capsys):
    assert main([*COMMAND, "--precision", "bf16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tolerance"] == 0.01
    assert abs(document["relative_error"]["tensor_bytes"]) < 1e-6
    kinds = {row["name"]: row for row in document["differences"]["kinds"]}
    assert {"parameters", "gradients", "optimizer_state", "activations", "inputs", "autocast_weights"} <= set(kinds)
    assert document["measurement"]["backend"] == "cpu"
    assert any("with what kernels borrowed" in note for note in document["measurement"]["notes"])


def test_a_wrong_rule_of_an_operator_is_exit_3_and_found_in_its_layer(capsys, monkeypatch, own_library):
    # GIVEN an estimator whose dropout keeps noise also at rate 0
    right = ops.dropout
    monkeypatch.setattr(ops, "dropout", lambda x, rate: right(x, 0.5))
    # THEN the validation fails, and the report points at the blocks and not at the head
    assert main([*COMMAND, "--precision", "fp32"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("FAILED: the estimate is")
    assert main([*COMMAND, "--precision", "fp32", "--json"]) == 3
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["differences"]["saved_activations"]}
    off = {name: row["estimated_bytes"] - row["measured_bytes"] for name, row in rows.items()}
    assert off["blocks.0"] > 2 * 197 * 192 * 4
    assert abs(off["head"]) < HOST_SCALARS_BYTES


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--gpu", "t4"], 2, "the cpu backend says nothing about a GPU; leave out --gpu and --memory"),
        (["--optim", "lion"], 4, "its update is not known there; choose one of adamw_torch"),
        (["--sdpa-kernel", "efficient"], 2, "cannot run on the CPU: the CPU has no such kernel"),
        (["--timeout", "0.05"], 4, "the run on the CPU took more than 0.05 s; give it a longer --timeout"),
    ],
)
def test_what_it_cannot_do_is_one_line(capsys, flags, code, message):
    assert main([*COMMAND, *flags]) == code
    assert message in capsys.readouterr().err
