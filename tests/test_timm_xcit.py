"""What XCiT and CaiT say and refuse, as timm does."""

from __future__ import annotations

import pytest
import vitmem
from vitmem.errors import InvalidRequest

XCIT, CAIT = "xcit_nano_12_p16_224", "cait_xxs24_224"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (XCIT, {"patch": 14}, "8 or 16"),
        (XCIT, {"res": "100x96"}, "use 112"),
        (XCIT, {"heads": 3}, "not divisible"),
        (XCIT, {"window": 7}, "no --window"),
        (XCIT, {"res": 16, "bs": 1}, "more than one patch"),
        (XCIT, {"attn": "sdpa", "sdpa_kernel": "flash", "precision": "bf16"}, "lie apart"),
        (XCIT, {"attn": "flash_attention_2"}, "--attn sdpa"),
        (XCIT, {"dim": 4, "heads": 1}, "no channel"),
        (CAIT, {"patch_drop": 0.1}, "no --patch-drop"),
        (CAIT, {"heads": 5}, "not divisible"),
        (CAIT, {"res": 8}, "smaller than one patch"),
        (CAIT, {"attn": "flash_attention_2"}, "--attn sdpa"),
    ],
)
def test_what_timm_refuses_is_an_error_that_says_what_to_do(name, settings, message):
    with pytest.raises(InvalidRequest, match=message):
        vitmem.estimate(name, depth=1, **settings)


@pytest.mark.parametrize(("precision", "on_cudnn"), [("fp32", True), ("fp16", True), ("bf16", False)])
def test_cudnns_reserve_is_named_where_cudnn_runs(precision, on_cudnn):
    estimate = vitmem.estimate(XCIT, depth=1, bs=1, precision=precision)
    assert any("batch normalisation" in line for line in estimate.not_modelled) is on_cudnn


def test_a_width_that_leaves_pixels_over_is_rounded_up():
    estimate = vitmem.estimate(XCIT, depth=1, bs=1, res="64x100")
    assert estimate.model.num_tokens == 4 * 7 + 1
    assert not estimate.warnings


def test_the_request_can_be_made_again():
    # timm's switch also checkpoints the class attention blocks, which no number of layers says
    estimate = vitmem.estimate(XCIT, depth=2, bs=1, grad_checkpointing=True, attn="sdpa", precision="bf16")
    assert estimate.request["checkpoint_layers"] is None
    assert estimate.request["sdpa_kernel"] == "auto"  # math between channels, flash for the class token
    assert any("math kernel" in line for line in estimate.assumptions)
    again = vitmem.estimate(XCIT, **{k: v for k, v in estimate.request.items() if k not in {"model", "patch"}})
    assert again.peak == estimate.peak
    assert vitmem.estimate(XCIT, depth=1, bs=1).request["attn"] == "auto"
