"""Floating-point operations of a step against ``torch.utils.flop_counter`` on the real models."""

from __future__ import annotations

from math import prod
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from vitmem.cost import cost_of
from vitmem.pipeline import resolved
from vitmem.play import play
from vitmem.settings import TrainSettings
from vitmem.validate.meta import rehearse

TIMM, HF, SWIN = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224", "swin_tiny_patch4_window7_224"
STEPS = 3

CASES: list[dict[str, Any]] = [
    {"model": TIMM, "depth": 3},
    {"model": TIMM, "depth": 3, "attn": "eager", "precision": "fp32"},
    {"model": TIMM, "depth": 4, "grad_checkpointing": True},
    {"model": TIMM, "depth": 4, "grad_checkpointing": True, "checkpoint_layers": 2, "drop_path": 0.1},
    {"model": TIMM, "train": "linear-probe"},
    {"model": TIMM, "train": "lora"},
    {"model": TIMM, "patch_drop": 0.25, "depth": 2, "loop": "timm"},
    {"model": HF, "depth": 4, "grad_checkpointing": True, "accum": 3},
    {"model": HF, "depth": 2, "sdpa_kernel": "math"},
    {"model": HF, "depth": 2, "dim": 100, "heads": 5},
    {"model": "google/vit-base-patch16-224", "freeze_layers": 3},
    {"model": "vit_base_patch16_224", "res": 384},
    {"model": SWIN, "precision": "bf16"},
    {"model": SWIN, "attn": "sdpa", "grad_checkpointing": True, "checkpoint_layers": 5},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "grad_checkpointing": True},
    {"model": "microsoft/swin-tiny-patch4-window7-224", "res": 256},
    {"model": "microsoft/swinv2-tiny-patch4-window8-256", "grad_checkpointing": True},
    {"model": "facebook/dinov2-small", "res": 224},
    {"model": "microsoft/beit-base-patch16-224", "depth": 3},
    {"model": "torchvision/vit_b_16"},
    {"model": "xcit_nano_12_p16_224"},
]


def conv_backward_flops(
    grad_shape: Any, x_shape: Any, weight_shape: Any, *args: Any, out_shape: Any = None, **_: Any
) -> int:
    """Either gradient takes what the forward pass does; torch 2.14's own formula counts a weight's gradient as if its
    groups were connected (XCiT's depthwise convolutions)."""
    *_, wanted = args
    return 2 * prod(grad_shape) * prod(weight_shape[1:]) * (wanted[0] + wanted[1])


def counted(settings: TrainSettings) -> int:
    """What the real model computes in one optimizer step, without an evaluation."""
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: conv_backward_flops})
    with mock.patch("vitmem.validate.meta.eval_sizes", return_value=()), counter:
        rehearse(settings)
    total = counter.get_total_flops()
    assert total % STEPS == 0
    return total // STEPS


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_flops_are_those_of_the_real_model(case: dict[str, Any]) -> None:
    settings = TrainSettings.of(bs=2, **case)
    cost = cost_of(play(*resolved(settings)))
    assert cost.flops == counted(settings)
    assert sum(cost.layer_flops.values()) == cost.flops


def test_checkpointing_computes_the_forward_pass_again_but_for_what_nobody_needs() -> None:
    plain, again = (
        cost_of(play(*resolved(TrainSettings.of(TIMM, bs=2, grad_checkpointing=on)))) for on in (False, True)
    )
    assert (again.forward_flops, again.backward_flops) == (plain.forward_flops, plain.backward_flops)
    assert plain.recompute_flops == 0
    tokens, width, depth = 197, 192, 12
    last_linear = 2 * 2 * tokens * width * 4 * width  # its output is saved by nothing: torch stops before it
    blocks = sum(flops for name, flops in forward_by_layer().items() if "blocks." in name)
    assert again.recompute_flops == blocks - depth * last_linear


def forward_by_layer() -> dict[str, int]:
    step = play(*resolved(TrainSettings.of(TIMM, bs=2)))
    layers: dict[str, int] = {}
    for product in step.run.products:
        if product.phase >= step.run.steps[-1] and step.run.phases[product.phase][0] == "forward":
            layers[product.layer] = layers.get(product.layer, 0) + product.flops
    return layers
