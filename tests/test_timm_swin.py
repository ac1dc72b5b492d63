"""What timm's Swin families take and refuse, and the windows that they arrive at."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem import catalog, families
from vitmem.engine import Run, Scope
from vitmem.errors import InvalidRequest, NoFamily
from vitmem.kernels import Kernels
from vitmem.settings import TrainSettings
from vitmem.units import DType

V1, V2, CR = "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"


def buffers(name, **settings):
    """The buffers of the model that the settings name: path -> shape."""
    plan = families.plan(catalog.resolve(name), TrainSettings.of(name, **settings))
    scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
    plan.build(scope)
    return {path: tensor.shape for path, tensor in scope.buffers.items()}


@pytest.mark.parametrize("name", [V1, V2, CR])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 2}, "takes no --depth"),
        ({"heads": 3}, "takes no --heads"),
        ({"patch_drop": 0.0}, "takes no --patch-drop"),
        ({"dim": 100}, "not divisible"),
        ({"res": 3}, "smaller than one patch"),
        ({"attn": "flash_attention_2"}, "leave out --attn"),
    ],
)
def test_what_timm_refuses_is_an_error(name, settings, message):
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(name, **settings)


def test_only_swin_v1_can_fuse_its_attention():
    for name in (V2, CR):
        with pytest.raises(InvalidRequest, match="cosine attention is eager"):
            vitmem.estimate(name, attn="sdpa")
    assert families.plan(catalog.resolve(V1), TrainSettings.of(V1, attn="sdpa")).attn == "sdpa"


def test_a_window_is_a_size_or_a_fraction_of_the_patch_grid():
    # 224 pixels are a grid of 56 patches: an eighth is 7, and a grid of 7 neither shifts nor needs a mask
    assert buffers(CR)["stages.0.blocks.1.attn_mask"] == (64, 49, 49)
    assert "stages.3.blocks.1.attn_mask" not in buffers(CR)
    assert buffers(CR, window=4)["stages.3.blocks.1.attn_mask"] == (4, 16, 16)
    # 64 x 128 patches of 4 pixels
    assert buffers(CR, res="256x512")["stages.0.blocks.0.attn.relative_coordinates_log"] == ((8 * 16) ** 2, 2)
    # grids of 6 and 3 are smaller than the window of 8
    assert buffers(V2, res=96)["layers.2.blocks.0.attn.relative_coords_table"] == (1, 11, 11, 2)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        (V2, {"dynamic_img_size": True}, NoFamily, "dynamic_img_size True is not modelled"),
        (V2, {"act_layer": "silu"}, NoFamily, "act_layer 'silu' is not modelled"),
        (CR, {"global_pool": "max"}, NoFamily, "global_pool 'max' is not modelled"),
        (CR, {"window_size": 0}, InvalidRequest, "window_size 0 is no size"),
        (V1, {"window_size": None}, InvalidRequest, "window_size is None"),
        (CR, {"depths": [2, 2]}, InvalidRequest, "2 depths for 4 numbers of heads"),
    ],
)
def test_a_folder_with_other_arguments(tmp_path, name, arguments, error, message):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name, "model_args": arguments}))
    with pytest.raises(error, match=message):
        families.plan(catalog.resolve(str(tmp_path)), TrainSettings.of(str(tmp_path)))


def test_a_folder_may_set_the_window_of_a_model_that_has_a_ratio(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": CR, "model_args": {"window_size": 4}}))
    assert buffers(str(tmp_path)) == buffers(CR, window=4)
