"""MAE's pre-training and the vision towers of CLIP and SigLIP: what they refuse, and folders of unpublished sizes."""

from __future__ import annotations

import dataclasses
import json

import pytest
import vitmem
from vitmem import catalog, families
from vitmem.engine import Run, Scope
from vitmem.errors import InvalidRequest, NoFamily
from vitmem.kernels import Kernels
from vitmem.settings import TrainSettings
from vitmem.units import DType

MAE, MSN = "facebook/vit-mae-base", "facebook/vit-msn-small"
CLIP, SIGLIP = "openai/clip-vit-base-patch32", "google/siglip-base-patch16-224"

SMALL = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 80, "image_size": 64}
DECODER = {
    "decoder_hidden_size": 40,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 56,
}


@pytest.fixture
def folder(tmp_path):
    """A folder with a config.json of the given fields."""

    def make(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (MAE, {"train": "linear-probe"}, "no classifier to train; use --train full"),
        (MAE, {"num_classes": 10}, "leave out --num-classes"),
        (MAE, {"res": "224x160"}, "use --res 160|use --res 224"),
        (MAE, {"res": 100}, "use --res 96"),
        (MAE, {"drop_path": 0.1}, "leave out --drop-path"),
        (MAE, {"checkpoint_layers": 21, "grad_checkpointing": True}, "more than the 20 blocks"),
        (MSN, {"window": 7}, "leave out --window"),
        (CLIP, {"res": "224x160"}, "square images only; use --res 224"),
        (CLIP, {"dropout": 0.1}, "leave out --dropout"),
        (SIGLIP, {"res": "160x224"}, "square images only; use --res 224"),
        (SIGLIP, {"heads": 7}, "not divisible"),
    ],
)
def test_what_the_library_refuses_is_an_error(name, settings, message):
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(name, bs=1, **settings)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "vit_mae", "patch_size": [16, 16]}, "one number"),
        ({"model_type": "vit_mae", "decoder_hidden_size": 30}, "not divisible by 4"),
        ({"model_type": "vit_mae", "num_channels": 1}, "1 channels"),
        ({"model_type": "clip", "vision_config": {"image_size": [224, 224]}}, "one number"),
        ({"model_type": "siglip", "vision_config": {"patch_size": [16, 16]}}, "one number"),
    ],
)
def test_a_config_that_the_library_cannot_train_is_an_error(folder, config, message):
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(folder(**config), bs=1)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "vit_mae", "decoder_num_attention_heads": 3},
        {"model_type": "clip", "vision_config": {"hidden_act": "xielu"}},
    ],
)
def test_a_config_that_only_the_library_can_build_is_left_to_it(folder, config):
    path = folder(**config)
    with pytest.raises(NoFamily):
        families.plan(catalog.resolve(path), TrainSettings.of(path))


def test_a_number_in_the_settings_replaces_a_pair_in_the_config(folder):
    path = folder(model_type="clip", vision_config={**SMALL, "image_size": [64, 64], "patch_size": [16, 16]})
    assert vitmem.estimate(path, bs=1, res=64, patch=16).model.num_tokens == 17


def test_a_pretraining_model_says_what_its_loops_do():
    estimate = vitmem.estimate(MAE, bs=1, depth=1)
    assert any("no labels" in line for line in estimate.assumptions)
    assert any("49 of 196 patches" in line for line in estimate.assumptions)
    assert not any("classifier" in line for line in estimate.assumptions)


def test_the_fixed_positions_are_not_trained():
    model = vitmem.estimate(MAE, bs=1, depth=1).model
    assert model.num_parameters - model.num_trainable_parameters == 197 * 768 + 197 * 512


@pytest.mark.parametrize(
    ("ratio", "kept"), [(0.75, 4), (0.0, 16), (1.0, 0), (0.9, 1), (1.25, 12)], ids=lambda value: f"{value}"
)
def test_the_encoder_keeps_the_first_of_the_shuffled_patches(ratio, kept):
    model = catalog.resolve(MAE)
    few = dataclasses.replace(model, config={**model.config, "image_size": 64, "mask_ratio": ratio})
    plan = families.plan(few, TrainSettings.of(MAE))
    assert f"{kept} of 16 patches" in plan.assumptions[0]
    plan.build(Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32)))


FOLDERS = [
    {"model_type": "vit_msn", **SMALL, "patch_size": [8, 16], "qkv_bias": False, "hidden_dropout_prob": 0.1},
    {"model_type": "vit_mae", **SMALL, **DECODER, "patch_size": 16, "mask_ratio": 0.6},
    {"model_type": "vit_mae", **SMALL, **DECODER, "patch_size": 16, "architectures": ["ViTMAEForPreTraining"]},
    {"model_type": "clip", "vision_config": {**SMALL, "patch_size": 16, "attention_dropout": 0.1}},
    {"model_type": "siglip", "vision_config": {**SMALL, "patch_size": 16, "hidden_act": "relu"}},
    {"model_type": "siglip", "vision_config": {**SMALL, "patch_size": 16, "vision_use_head": False}},
]


@pytest.mark.parametrize("config", FOLDERS, ids=lambda config: config["model_type"])
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"precision": "fp32", "loop": "plain", "attn": "eager"}])
def test_a_folder_of_unpublished_sizes_to_the_byte(folder, config, settings):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from vitmem.validate.meta import measure

    settings = {"model": folder(**config), "bs": 2, **settings}
    estimate, measured = vitmem.estimate(**settings), measure(TrainSettings.of(**settings))
    assert estimate.model.num_parameters == measured.num_parameters
    assert estimate.peak.tensor_bytes == measured.peak_bytes
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    assert estimate.states.saved_activation_bytes == measured.states.saved_activation_bytes
