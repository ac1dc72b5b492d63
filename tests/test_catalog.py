"""Names, folders, and what is wrong with them."""

from __future__ import annotations

import json

import pytest
from vitmem import catalog
from vitmem.errors import InvalidRequest, NotModelled, UnknownName
from vitmem.families import known_families, plan
from vitmem.settings import TrainSettings


@pytest.mark.parametrize(
    ("asked", "name", "library", "family"),
    [
        ("vit_base_patch16_224", "vit_base_patch16_224", "timm", "timm_vit"),
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224", "timm", "timm_vit"),
        ("timm/vit_base_patch16_224", "vit_base_patch16_224", "timm", "timm_vit"),
        ("hf_hub:timm/vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224", "timm", "timm_vit"),
        ("vit_base_patch16_224_in21k", "vit_base_patch16_224", "timm", "timm_vit"),
        ("microsoft/swin-tiny-patch4-window7-224", "microsoft/swin-tiny-patch4-window7-224", "transformers", "hf_swin"),
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224", "transformers", "hf_vit"),
        ("facebook/deit-base-patch16-224", "facebook/deit-base-patch16-224", "transformers", "hf_vit"),
        (
            "facebook/deit-base-distilled-patch16-224",
            "facebook/deit-base-distilled-patch16-224",
            "transformers",
            "hf_deit",
        ),
    ],
)
def test_a_name_resolves_to_its_library(asked, name, library, family):
    model = catalog.resolve(asked)
    assert (model.name, model.library, model.family) == (name, library, family)


def test_published_sizes_are_what_the_papers_say():
    # ViT-B/16: 86.6 M (Dosovitskiy et al. 2021, table 1); DeiT-Ti: 5.7 M (Touvron et al. 2021, table 1)
    assert catalog.resolve("google/vit-base-patch16-224").num_parameters == 86_567_656
    assert catalog.resolve("deit_tiny_patch16_224").num_parameters == 5_717_416


@pytest.mark.parametrize("asked", ["vit_bse_patch16_224", "google/vit-base-patch16", "Vit_Base_Patch16_224 "])
def test_an_unknown_name_gets_close_matches(asked):
    with pytest.raises(UnknownName, match=r"did you mean .*vit") as caught:
        catalog.resolve(asked)
    assert caught.value.exit_code == 2


def test_what_no_family_covers_is_not_modelled():
    with pytest.raises(NotModelled, match="convolutional stem") as caught:
        catalog.resolve("vit_base_r50_s16_384")
    assert caught.value.exit_code == 4


def test_names_can_be_searched():
    assert "deit_tiny_patch16_224" in catalog.names("deit_t")
    assert catalog.names("google/*huge*") == ["google/vit-huge-patch14-224-in21k"]
    assert catalog.names("no such thing") == []
    families = {catalog.resolve(name).family for name in catalog.names()}
    assert families <= set(known_families())


@pytest.fixture
def folder(tmp_path):
    """A folder with a config.json of the given content."""

    def make(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "config.json").write_text(text)
        return str(tmp_path)

    return make


def test_a_folder_may_have_sizes_that_no_published_model_has(folder):
    model = catalog.resolve(
        folder({"model_type": "vit", "hidden_size": 96, "num_attention_heads": 4, "extra": {"x": 1}})
    )
    assert model.family == "hf_vit"
    assert model.config["hidden_size"] == 96
    assert model.config["intermediate_size"] == 3072  # the class's default
    assert model.num_parameters is None


def test_a_timm_folder_names_its_architecture(folder):
    model = catalog.resolve(folder({"architecture": "vit_small_patch16_224", "model_args": {"depth": 3}}))
    assert (model.family, model.config["depth"], model.config["embed_dim"]) == ("timm_vit", 3, 384)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1, 2]", "no JSON object"),
        ({}, "no model_type"),
        ({"model_type": 3}, "no model_type"),
        ({"model_type": "vit", "hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"model_type": "vit", "hidden_size": -8}, "hidden_size is -8"),
        ({"model_type": "vit", "hidden_size": True}, "hidden_size is True"),
        ({"model_type": "vit", "image_size": [224, 0]}, "image_size is 0"),
        ({"model_type": "vit", "image_size": [1, 2, 3]}, "image_size is"),
        ({"model_type": "vit", "hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5"),
        ({"model_type": "vit", "qkv_bias": "yes"}, "qkv_bias is 'yes'"),
        ({"model_type": "swin", "depths": [2, "two", 6, 2]}, "depths is"),
        ({"model_type": "swin", "depths": []}, "depths is"),
        ({"model_type": "swin", "depths": [2, 1001, 2, 2]}, "depths is"),
        ({"model_type": "swin", "window_size": None}, "window_size is None"),
        ({"model_type": "vit", "num_hidden_layers": 1001}, "num_hidden_layers is 1001"),
        ({"model_type": "clip", "vision_config": [1]}, "vision_config is"),
        ({"model_type": "clip", "vision_config": {"hidden_size": 0}}, "vision_config.hidden_size is 0"),
        ({"architecture": "vit_small_patch16_224", "model_args": [1]}, "model_args"),
        ({"architecture": "vit_small_patch16_224", "model_args": {"dept": 3}}, "did you mean depth"),
        ({"architecture": "vit_small_patch16_224", "model_args": {"depth": "3"}}, "depth is '3'"),
        ({"architecture": "vit_small_patch16_224", "model_args": {"drop_path_rate": 2}}, "drop_path_rate is 2"),
        ({"architecture": "vit_smal_patch16_224"}, "did you mean vit_small_patch16_224"),
        ({"architecture": "../vit"}, "unknown model"),
    ],
)
def test_a_bad_config_is_one_clear_line(folder, content, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        catalog.resolve(folder(content))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_can_hold_every_kind_of_value(folder):
    swin = catalog.resolve(folder({"model_type": "swin", "depths": [2, 2, 2], "num_heads": [2, 4, 8], "mlp_ratio": 2}))
    assert (swin.family, swin.config["depths"], swin.config["window_size"]) == ("hf_swin", [2, 2, 2], 7)
    clip = catalog.resolve(folder({"model_type": "clip", "vision_config": {"patch_size": [14, 14]}, "text_config": {}}))
    assert clip.config["vision_config"]["patch_size"] == [14, 14]
    assert clip.config["vision_config"]["hidden_act"] == "quick_gelu"
    arguments = {
        "img_size": [256, 192],
        "norm_layer": "rmsnorm",
        "init_values": 1e-5,
        "fc_norm": None,
        "num_classes": 3,
    }
    timm = catalog.resolve(folder({"architecture": "vit_tiny_patch16_224.augreg_in21k", "model_args": arguments}))
    assert (timm.config["img_size"], timm.config["norm_layer"]) == ([256, 192], "RmsNorm")
    assert "num_classes" not in timm.config


def test_widths_that_heads_do_not_divide_are_refused_where_the_library_does(folder):
    model = catalog.resolve(folder({"model_type": "siglip", "vision_config": {"hidden_size": 100}}))
    with pytest.raises(InvalidRequest, match="hidden_size 100 is not divisible by 12 heads"):
        plan(model, TrainSettings())
    plan(catalog.resolve(folder({"model_type": "vit", "hidden_size": 100})), TrainSettings())


def test_another_model_type_is_not_modelled(folder):
    with pytest.raises(NotModelled, match="model_type 'bert'"):
        catalog.resolve(folder({"model_type": "bert"}))


def test_a_folder_that_is_not_there_or_not_readable(tmp_path):
    with pytest.raises(InvalidRequest, match="does not exist"):
        catalog.resolve(str(tmp_path / "nothing"))
    with pytest.raises(InvalidRequest, match="not a file"):
        catalog.resolve(str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        catalog.resolve(str(tmp_path))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InvalidRequest):
        catalog.resolve(str(loop))


@pytest.mark.parametrize(
    "asked", ["~no-such-user-here/model", "/" + "x" * 5000, "x" * 100_000, "nul\0byte", "/nul\0byte", "a/b/c"]
)
def test_strange_names_are_one_clear_line(asked):
    with pytest.raises(InvalidRequest) as caught:
        catalog.resolve(asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {"architecture": "vit_base_r50_s16_384"},
        {"model_type": "resnet"},
        {"model_type": "vit", "quantization_config": {"load_in_8bit": True}},
        {"model_type": "vit", "problem_type": "multi_label_classification"},
    ],
)
def test_a_folder_of_what_is_not_modelled(folder, content):
    with pytest.raises(NotModelled):
        catalog.resolve(folder(content))


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(10_000_001)
    with pytest.raises(InvalidRequest, match="larger than 10 MB"):
        catalog.resolve(str(tmp_path))
