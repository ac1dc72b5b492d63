"""Rehearsals: what they add up to, what they leave behind, and what they refuse."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from vitmem.errors import InvalidRequest, NotModelled, UnknownName
from vitmem.settings import TrainSettings
from vitmem.validate.meta import measure, rehearse

TINY = {"model": "vit_tiny_patch16_224", "depth": 2, "bs": 2, "loop": "plain"}


@pytest.fixture(scope="module")
def rehearsal():
    return rehearse(TrainSettings(**TINY, precision="bf16"))


def test_every_table_adds_up(rehearsal):
    measurement = rehearsal.measurement
    states = measurement.states
    assert sum(measurement.at_peak.values()) == measurement.peak_bytes == max(measurement.phases.values())
    assert sum(layer.parameter_bytes for layer in measurement.layers) == states.parameter_bytes
    assert sum(layer.saved_activation_bytes for layer in measurement.layers) == states.saved_activation_bytes


def test_layers_come_in_the_order_of_the_model(rehearsal):
    names = [layer.name for layer in rehearsal.measurement.layers]
    assert names == ["model", "patch_embed", "blocks.0", "blocks.1", "norm", "head"]


def test_equal_blocks_save_equal_bytes(rehearsal):
    saved = {layer.name: layer.saved_activation_bytes for layer in rehearsal.measurement.layers}
    assert saved["blocks.0"] == saved["blocks.1"] > 0


def test_gradients_belong_to_the_layer_of_their_parameter(rehearsal):
    gradients = [event for event in rehearsal.events if event.kind == "gradients"]
    head = {event.bytes for event in gradients if event.layer == "head"}
    assert {1000 * 192 * 4, 1000 * 4} <= head


def test_precision_halves_what_is_saved_but_not_the_weights():
    full, mixed = (measure(TrainSettings(**TINY, precision=name)).states for name in ("fp32", "bf16"))
    assert full.parameter_bytes == mixed.parameter_bytes
    assert full.autocast_weight_bytes == 0 < mixed.autocast_weight_bytes < mixed.parameter_bytes / 2
    assert mixed.saved_activation_bytes < full.saved_activation_bytes


def test_checkpointing_saves_activations_and_spends_none_on_gradients():
    plain = measure(TrainSettings(**TINY)).states
    checkpointed = measure(TrainSettings(**TINY, grad_checkpointing=True)).states
    first = measure(TrainSettings(**TINY, grad_checkpointing=True, checkpoint_layers=1)).states
    saved = [state.saved_activation_bytes for state in (checkpointed, first, plain)]
    assert saved == sorted(set(saved))
    assert checkpointed.gradient_bytes == plain.gradient_bytes


def test_a_folder_with_a_configuration_is_a_model(tmp_path):
    config = {"model_type": "vit", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    measurement = measure(TrainSettings(model=str(tmp_path), bs=1))
    assert "vit.layers.0" in [layer.name for layer in measurement.layers]
    assert measurement.num_parameters < 1_000_000


def test_a_rehearsal_leaves_no_trace_in_torch_and_timm():
    from timm.layers import config

    before = (torch.clear_autocast_cache, config._USE_FUSED_ATTN, torch.is_autocast_enabled("cpu"))
    measure(TrainSettings(**TINY, attn="eager"))
    assert before == (torch.clear_autocast_cache, config._USE_FUSED_ATTN, torch.is_autocast_enabled("cpu"))
    assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"model": "vit_tiny_patch16_225"}, UnknownName, "did you mean vit_tiny_patch16_224"),
        ({**TINY, "heads": 5}, InvalidRequest, "cannot be built"),
        ({**TINY, "compile": True}, NotModelled, "compile"),
        ({"model": "torchvision/vit_b_61"}, UnknownName, "did you mean torchvision/vit_b_16"),
        ({**TINY, "precision": "fp32", "sdpa_kernel": "flash"}, InvalidRequest, "flash attention kernel"),
        ({**TINY, "attn": "flash_attention_2"}, NotModelled, "flash-attn"),
    ],
)
def test_refusals_are_one_line(settings, error, words):
    with pytest.raises(error, match=words) as caught:
        measure(TrainSettings(**settings))
    assert "\n" not in str(caught.value)
