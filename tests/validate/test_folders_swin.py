"""Folders of transformers' Swin and Swin v2 with sizes and options that no published model has, to the byte."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import vitmem
from vitmem.errors import InvalidRequest
from vitmem.settings import TrainSettings
from vitmem.timeline import NOT_TENSORS
from vitmem.validate.meta import measure

TINY = {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SWIN, V2 = {"model_type": "swin", **TINY}, {"model_type": "swinv2", **TINY}
NESTED = {"grad_checkpointing": True, "precision": "bf16"}
FOLDERS = [
    # the position bias of a single head keeps the strides of its table, which the fused kernel cannot read
    ({**SWIN, "num_heads": [1, 2]}, {"precision": "fp16"}),
    ({**SWIN, "num_heads": [2, 1]}, {"precision": "fp32", "bs": 1}),
    ({**SWIN, "use_absolute_embeddings": True}, {"precision": "bf16", "res": "48x96", "window": 3}),
    ({**SWIN, "qkv_bias": False, "hidden_act": "relu", "mlp_ratio": 3}, {"precision": "fp16", "attn": "eager"}),
    ({**SWIN, "patch_size": [4, 2]}, {"precision": "bf16", "res": "63x45", "window": 2}),
    ({**SWIN, "window_size": 1}, {"precision": "bf16"}),
    ({**SWIN, "depths": [1], "num_heads": [2, 2]}, {"precision": "fp32", "loop": "plain"}),
    # checkpointing: a stage without blocks, one block of a stage, frozen blocks inside a checkpointed stage
    ({**SWIN, "depths": [0, 3]}, NESTED),
    ({**SWIN, "depths": [2, 3, 2], "num_heads": [1, 2, 2], "window_size": 2}, {**NESTED, "checkpoint_layers": 4}),
    ({**SWIN, "depths": [3, 2]}, {**NESTED, "freeze_layers": 2}),
    ({**V2, "num_heads": [1, 2]}, {"precision": "fp16"}),
    ({**V2, "qkv_bias": False, "hidden_act": "silu"}, {"precision": "bf16", "attn_dropout": 0.1}),
    # the window follows the height of the grid that a stage was built for, rounded down
    ({**V2, "depths": [1, 2, 2], "num_heads": [1, 2, 4]}, {"precision": "fp32", "res": "44x100", "window": 8}),
    ({**V2, "patch_size": [4, 2], "pretrained_window_sizes": [6, 3]}, {"precision": "bf16", "res": "63x45"}),
    ({**V2, "depths": [2, 0, 3], "num_heads": [1, 1, 2]}, {**NESTED, "checkpoint_layers": 2}),
]


def of_folder(tmp_path, config, **settings):
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"model": str(tmp_path), "bs": 2, **settings}


@pytest.mark.parametrize(("config", "settings"), FOLDERS, ids=str)
def test_a_folder_to_the_byte(tmp_path, config, settings):
    asked = of_folder(tmp_path, config, **settings)
    estimate, measured = vitmem.estimate(**asked), measure(TrainSettings.of(**asked))
    kinds = {kind: size for kind, size in estimate.at_tensor_peak.items() if size and kind not in NOT_TENSORS}
    assert kinds == {kind: size for kind, size in measured.at_peak.items() if size}
    assert {name: estimate.phases[name].tensor_bytes for name in measured.phases} == measured.phases
    assert estimate.states.saved_activation_bytes == measured.states.saved_activation_bytes
    assert estimate.model.num_parameters == measured.num_parameters


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (SWIN, {"res": 24}, "the grid of stage 1 is 3 wide, less than a window of 4"),
        (SWIN, {"heads": 2}, "num_heads per stage"),
        (SWIN, {"depth": 2}, "depths per stage"),
        (SWIN, {"dim": 17}, "width 17 of stage 0 is not divisible by 2 heads"),
        (SWIN, {"patch_drop": 0.1}, "no patch_drop_rate"),
        ({**SWIN, "num_heads": [2]}, {}, "2 stages but only 1 num_heads"),
        ({**SWIN, "num_heads": [0, 2]}, {}, "not divisible by 0 heads"),
        ({**SWIN, "num_channels": 1}, {}, "images of 1 channels"),
        ({**SWIN, "use_absolute_embeddings": True}, {"res": 66}, "make --res a multiple of the patch size"),
        (V2, {"attn": "sdpa"}, "eager attention only"),
        (V2, {"res": 7}, "at least 8"),
        ({**V2, "use_absolute_embeddings": True}, {}, "set use_absolute_embeddings to false"),
        ({**V2, "mlp_ratio": 4}, {}, "the library wants it as 4.0"),
        ({**V2, "pretrained_window_sizes": [0]}, {}, "only 1 pretrained_window_sizes"),
        (V2, {"grad_checkpointing": True, "checkpoint_layers": 1}, "use --checkpoint-layers 0 or 2"),
    ],
    ids=str,
)
def test_what_the_library_refuses_is_an_error_on_both_sides(tmp_path, config, settings, message):
    asked = of_folder(tmp_path, config, **settings)
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(**asked)
    with pytest.raises(InvalidRequest):
        measure(TrainSettings.of(**asked))


def test_fused_attention_is_named_as_new_where_it_runs(tmp_path):
    asked = of_folder(tmp_path, SWIN)
    assert any("releases through 5.0" in text for text in vitmem.estimate(**asked).assumptions)
    assert not any("releases through 5.0" in text for text in vitmem.estimate(**asked, attn="eager").assumptions)


def test_pixels_over_a_whole_number_of_patches_are_padded(tmp_path):
    warnings = vitmem.estimate(**of_folder(tmp_path, SWIN), res="66x64").warnings
    (warning,) = [line for line in warnings if "patch size" in line]
    assert "adds 2 pixels of zeros; 64 and 68 are" in warning
