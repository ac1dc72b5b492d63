"""Folders of BEiT, Data2VecVision and DINOv3 with sizes and options that no published model has, to the byte."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from vitmem.errors import InvalidRequest
from vitmem.pipeline import play_settings
from vitmem.settings import TrainSettings
from vitmem.timeline import NOT_TENSORS
from vitmem.validate.meta import measure

TINY = {
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 70,
    "image_size": 64,
    "patch_size": 16,
}
BIASES = {"use_relative_position_bias": True, "use_shared_relative_position_bias": True}
POSITIONS = {"use_absolute_position_embeddings": True, "use_mask_token": True}
DINOV3 = {"model_type": "dinov3_vit", **TINY, "pos_embed_shift": 0.1, "pos_embed_jitter": 1.2}
FOLDERS = [
    ({"model_type": "beit", **TINY, **BIASES}, {"precision": "bf16"}),
    ({"model_type": "beit", **TINY, **BIASES}, {"precision": "fp32", "attn": "eager", "grad_checkpointing": True}),
    ({"model_type": "beit", **TINY, **POSITIONS, "layer_scale_init_value": 0.0}, {"precision": "fp16"}),
    ({"model_type": "beit", **TINY, **POSITIONS, "image_size": [32, 128]}, {"precision": "bf16"}),
    ({"model_type": "beit", **TINY, **POSITIONS, "use_mean_pooling": False}, {"precision": "pure-bf16"}),
    ({"model_type": "beit", **TINY, "patch_size": [16, 8]}, {"precision": "bf16", "attn": "eager"}),
    # the shared bias is added to the layer's own in place, which copies its gradient
    ({"model_type": "data2vec-vision", **TINY, **BIASES}, {"precision": "bf16"}),
    ({"model_type": "data2vec-vision", **TINY, **BIASES}, {"precision": "fp32", "freeze_layers": 1}),
    ({"model_type": "data2vec-vision", **TINY, **BIASES}, {"precision": "fp16", "attn": "eager"}),
    ({"model_type": "data2vec-vision", **TINY, "layer_scale_init_value": 0.0}, {"precision": "fp16", "loop": "plain"}),
    ({**DINOV3, "architectures": ["DINOv3ViTModel"]}, {"precision": "bf16"}),
    ({**DINOV3, "pos_embed_rescale": None, "num_register_tokens": 3}, {"precision": "fp32", "attn": "eager"}),
    ({**DINOV3, "key_bias": True, "mlp_bias": False, "use_gated_mlp": True}, {"precision": "pure-bf16"}),
    ({**DINOV3, "patch_size": [16, 8], "drop_path_rate": 0.2}, {"precision": "fp16", "loop": "timm", "res": "96x64"}),
]


def of_folder(tmp_path, config, **settings):
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return TrainSettings.of(str(tmp_path), bs=2, **settings)


@pytest.mark.parametrize(("config", "settings"), FOLDERS, ids=str)
def test_a_folder_to_the_byte(tmp_path, config, settings):
    asked = of_folder(tmp_path, config, **settings)
    estimate, measured = play_settings(asked), measure(asked)
    kinds = {kind: size for kind, size in estimate.at_tensor_peak.items() if size and kind not in NOT_TENSORS}
    assert kinds == {kind: size for kind, size in measured.at_peak.items() if size}
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    assert estimate.states.saved_activation_bytes == measured.states.saved_activation_bytes
    assert estimate.model.num_parameters == measured.num_parameters


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"model_type": "beit", **TINY, **POSITIONS}, {"res": "64x96"}, "use a square --res"),
        ({"model_type": "beit", **TINY, **BIASES, "patch_size": [16, 16]}, {}, "patch_size as one number"),
        ({"model_type": "beit", **TINY, "layer_scale_init_value": 0}, {}, "the library wants it as 0.0"),
        ({"model_type": "beit", **TINY, "num_channels": 1}, {}, "images of 1 channels"),
        ({"model_type": "data2vec-vision", **TINY}, {"heads": 3}, "not divisible"),
        ({"model_type": "dinov3_vit", **TINY}, {"heads": 20}, "heads of a multiple of 4"),
        ({"model_type": "dinov3_vit", **TINY}, {"dropout": 0.1}, "no hidden_dropout_prob"),
    ],
    ids=str,
)
def test_what_the_library_refuses_is_an_error_on_both_sides(tmp_path, config, settings, message):
    asked = of_folder(tmp_path, config, **settings)
    with pytest.raises(InvalidRequest, match=message):
        play_settings(asked)
    with pytest.raises(InvalidRequest):
        measure(asked)


def test_a_second_rehearsal_finds_no_tensor_of_the_first(tmp_path):
    asked = of_folder(tmp_path, DINOV3, precision="fp32", loop="plain")
    first, second = measure(asked), measure(asked)
    assert first.at_peak == second.at_peak  # DINOv3's patch coordinates are cached outside the model
