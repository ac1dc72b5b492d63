"""timm's Eva: what the library refuses and what is not modelled is an error that says so."""

from __future__ import annotations

import dataclasses

import pytest
import vitmem
from vitmem import catalog, families
from vitmem.engine import Run, Scope
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Kernels
from vitmem.settings import TrainSettings
from vitmem.units import DType


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("eva02_tiny_patch14_224", {"heads": 5}, "not divisible by heads"),
        ("eva02_tiny_patch14_224", {"dim": 100, "heads": 10}, "multiple of 4 channels"),
        ("eva02_tiny_patch14_224", {"res": 8}, "smaller than one patch"),
        ("eva02_tiny_patch14_224", {"window": 7}, "no windows"),
        ("eva02_tiny_patch14_224", {"attn": "flash_attention_2"}, "use --attn sdpa"),
        ("vit_small_patch16_dinov3", {"res": 250}, "use --res 240"),
        ("vit_pe_core_tiny_patch16_384", {"dim": 100, "heads": 5}, "not divisible by pooling heads"),
        ("vit_base_patch16_sapiens2", {"depth": 2}, "refuses another --depth"),
        ("vit_base_patch16_sapiens2", {"heads": 8}, "not a multiple of 12 heads of keys"),
    ],
)
def test_what_the_library_refuses_is_an_error(name, settings, message):
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(name, **settings)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_kv_heads": 1}, InvalidRequest, "need attn_type rope"),
        ({"use_post_norm": True, "qk_norm": True}, InvalidRequest, "post-norm block has no qk_norm"),
        ({"global_pool": "token", "class_token": False}, InvalidRequest, "needs class_token"),
        ({"rope_type": "mixed", "rope_rotate_half": True}, InvalidRequest, "needs rope_rotate_half false"),
        ({"rope_type": "mrope"}, NotModelled, "rope_type mrope"),
        ({"dynamic_img_size": True}, NotModelled, "dynamic image size"),
        ({"rope_jitter_coords": 2.0}, NotModelled, "augmentation"),
        ({"dynamic_img_pad": True}, NotModelled, "dynamic_img_pad"),
        ({"invented": 1}, NotModelled, "invented is not modelled"),
    ],
)
def test_arguments_that_cannot_be_built_or_are_not_modelled(arguments, error, message):
    model = catalog.resolve("eva02_tiny_patch14_224")
    other = dataclasses.replace(model, config={**model.config, **arguments})
    with pytest.raises(error, match=message):
        families.plan(other, TrainSettings.of(model.name))


def test_what_decides_the_mlp_of_a_block():
    model = catalog.resolve("vit_small_plus_patch16_dinov3")
    config = {**model.config, "mlp_ratio": 2.6, "swiglu_align_to": 64}
    other = dataclasses.replace(model, config=config)
    scope = Scope(Run(kernels=Kernels(), parameter_dtype=DType.float32))
    families.plan(other, TrainSettings.of(model.name)).build(scope)
    # 384 * 2.6 = 998, up to the next multiple of 64
    assert scope.parameters["blocks.0.mlp.fc1_g.weight"].shape == (1024, 384)
