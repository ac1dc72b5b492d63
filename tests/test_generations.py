"""Versions of torch: which are known, and what each change of ``vitmem.generations`` moves, by hand."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem import blas, flash1
from vitmem.cli import main
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.generations import CHANGES, NEWEST, Torch
from vitmem.gpus import context_of, find
from vitmem.optimizers import OPTIMIZERS, optimizer_of
from vitmem.units import MIB, DType

SMALL = {"model": "vit_tiny_patch16_224", "depth": 2, "bs": 4, "loop": "plain", "gpu": "a100-40g"}
BATCH, TOKENS, WIDTH, HEADS, DEPTH = 4, 197, 192, 3, 2


def of(torch, **settings):
    return vitmem.estimate(**{**SMALL, **settings}, torch=torch)


def saved(torch, **settings):
    return of(torch, **settings).states.saved_activation_bytes


@pytest.mark.parametrize("text", ["2.1", "2.1.0+cu118", "2.1.0.dev20230623"])
def test_a_version_is_its_first_two_numbers(text):
    assert of(text).request["torch"] == "2.1"


@pytest.mark.parametrize("text", ["1.9", "1.14", "2.15", "3.0", "two", ""])
def test_an_unknown_version_names_the_known_ones(text):
    with pytest.raises(InvalidRequest, match=r"1\.10 to 1\.13 and 2\.0 to 2\.14|write it as 2\.14"):
        of(text)


def test_2_10_on_the_command_line_is_not_2_1(capsys):
    assert main(["estimate", "vit_tiny_patch16_224", "--depth", "1", "--torch", "2.10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["torch"] == "2.10"


def test_the_newest_version_is_the_default_and_has_every_change():
    assert of("2.14").to_dict() == vitmem.estimate(**SMALL).to_dict()
    assert all(Torch(NEWEST).has(change) for change in CHANGES)
    assert not any("torch" in line for line in of("2.14").not_modelled)
    assert any("torch 2.3" in line for line in of("2.3").not_modelled)


def test_softmax_kept_its_input():
    # 16-bit scores of every block; the logits' log-softmax keeps what the name `out` holds anyway
    assert saved("1.10") - saved("1.11") == DEPTH * BATCH * HEADS * TOKENS**2 * 2


def test_old_contexts_hold_every_kernel():
    row = find("rtx3090")
    now, then = context_of(row), context_of(row, lazy=False)
    assert now.high_bytes < then.low_bytes
    assert then.low_bytes <= (1644 - 158) * MIB <= then.expected_bytes  # torch 1.7.1+cu110 with a tensor of 158 MiB
    assert then.expected_bytes == 1687 * MIB  # torch 1.8.2+cu111
    for torch, context in (("1.12", then), ("1.13", now)):
        peak = of(torch, gpu="rtx3090").peak
        assert peak.device_bytes - peak.reserved_bytes == context.expected_bytes


@pytest.mark.parametrize(
    ("version", "capability", "num_bytes"),
    [
        ((1, 12), 8, 0),
        ((1, 13), 8, 4 * MIB),
        ((1, 13), 9, 4 * MIB),
        ((2, 0), 8, 8_519_680),
        ((2, 0), 9, 32 * MIB),
        ((2, 11), 10, 8_519_680),
        ((2, 12), 10, 32 * MIB),
        ((2, 13), 11, 8_519_680),
        ((2, 14), 11, 32 * MIB),
        ((2, 14), 12, 32 * MIB),
        ((2, 14), 8, 8_519_680),
    ],
)
def test_cublas_workspaces(version, capability, num_bytes):
    assert blas.workspace_bytes(Torch(version), capability) == num_bytes


def test_cublas_lt_borrowed_then_kept_then_shared():
    assert [blas.lt_workspace_bytes(Torch(v)) for v in ((1, 12), (1, 13), (2, 10), (2, 11))] == [0, MIB, MIB, 0]
    ends = {torch: of(torch).at_peak["workspaces"] for torch in ("2.8", "2.9", "2.11")}
    assert ends["2.9"] - ends["2.11"] == MIB  # only the main thread adds a bias
    assert ends["2.8"] == ends["2.11"]  # none is borrowed at the peak


def test_gradients_stayed():
    assert (of("1.13").request["zero_grad"], of("2.0").request["zero_grad"]) == ("keep", "after-step")
    assert of("1.13", zero_grad="after-step").request["zero_grad"] == "after-step"
    forward = {z: of("1.13", zero_grad=z).phases["forward"].tensor_bytes for z in ("keep", "after-step")}
    # the first block's activations are small: all gradients overlap the peak of the forward pass
    assert forward["keep"] - forward["after-step"] == of("1.13").states.gradient_bytes


def test_timm_attention_was_eager_before_there_was_another():
    assert (of("1.13").request["attn"], of("2.0").request["attn"]) == ("eager", "sdpa")
    with pytest.raises(InvalidRequest, match=r"torch 1\.13 has no sdpa attention"):
        of("1.13", attn="sdpa")
    with pytest.raises(NotModelled, match="scaled_dot_product_attention"):
        of("1.13", model="torchvision/vit_b_16")


def borrowed_by_the_step(torch, optim):
    """Bytes above parameters, gradients and state at the peak of the update, in fp32."""
    estimate = of(torch, precision="fp32", optim=optim, zero_grad="after-step")
    states = estimate.states
    lasting = states.parameter_bytes + states.gradient_bytes + states.optimizer_bytes + states.buffer_bytes
    return estimate.phases["optimizer_step"].tensor_bytes - lasting - INPUTS


INPUTS = BATCH * (3 * 224 * 224 * 4 + 8 + 1000 * 4) + 4  # x, y, out, loss
PARAMETERS = 1_268_776 * 4
LARGEST = max(768 * 192, 1000 * 192) * 4  # the head's weight


def test_updates_went_over_the_parameters_one_by_one():
    assert of("2.0").states.parameter_bytes == PARAMETERS
    figures = {(torch, name): borrowed_by_the_step(torch, name) for torch, name in CASES}
    assert figures == CASES


#: two lists in the first foreach Adam, one now; a root and a divisor of the largest parameter before; Nesterov's sum
CASES = {
    ("1.13", "adamw_torch"): 2 * LARGEST,
    ("2.0", "adamw_torch"): 2 * PARAMETERS,
    ("2.1", "adamw_torch"): PARAMETERS,
    ("1.13", "sgd-nesterov"): LARGEST,
    ("2.0", "sgd-nesterov"): 0,
    ("1.13", "sgd"): 0,
}


def test_an_update_that_is_not_known_is_refused():
    assert optimizer_of("rmsprop", Torch((2, 1))) is OPTIMIZERS["rmsprop"]
    for torch in ("1.13", "2.0"):
        with pytest.raises(NotModelled, match="rmsprop"):
            of(torch, optim="rmsprop")
    assert of("2.7", loop="trainer").request["optim"] == "adamw_torch"  # transformers takes the fused one from 2.8 on
    assert of("2.8", loop="trainer").request["optim"] == "adamw_torch_fused"


def test_flash_attention_1_makes_its_output_images_first():
    model = {"model": "torchvision/vit_l_16", "depth": DEPTH, "bs": BATCH}
    width, heads = 1024, 16
    copy = BATCH * TOKENS * width * 2  # what out_proj saves besides the kernel's own output
    lse = BATCH * heads * (208 - TOKENS) * 4  # rows rounded up to 16
    offsets = 2 * (BATCH + 1) * 4
    assert saved("2.1", **model) - saved("2.2", **model) == DEPTH * (copy + lse + offsets)
    # fp32 takes the efficient kernel in both
    assert saved("2.1", **model, precision="fp32") == saved("2.2", **model, precision="fp32")
    # packed projections need no copy
    assert saved("2.1") - saved("2.2") == DEPTH * (BATCH * HEADS * (208 - TOKENS) * 4 + offsets)


@pytest.mark.parametrize(
    ("dtype", "dim", "capability", "runs"),
    [
        (DType.float16, 64, (7, 5), True),
        (DType.bfloat16, 64, (7, 5), False),
        (DType.float32, 64, (8, 0), False),
        (DType.float16, 128, (8, 0), True),
        (DType.float16, 128, (8, 6), False),
        (DType.float16, 136, (8, 0), False),
        (DType.float16, 60, (8, 0), False),
    ],
)
def test_what_flash_attention_1_takes(dtype, dim, capability, runs):
    assert flash1.possible(dtype, dim, capability) is runs


def test_flash_attention_1_accumulates_where_keys_are_more_than_a_block():
    assert flash1.accumulator_bytes(2, 3, 256, 64, 256) == 0
    assert flash1.accumulator_bytes(2, 3, 257, 64, 256) == 4 * 2 * 257 * 3 * 64
    assert flash1.accumulator_bytes(2, 3, 197, 128, 128) == 4 * 2 * 197 * 3 * 128


def test_the_random_state_of_attention_moved_to_the_gpu():
    assert saved("2.7") - saved("2.6") == DEPTH * 24  # two uint64 and one more
    assert saved("2.7", precision="fp32") - saved("2.6", precision="fp32") == DEPTH * 16


def test_masks_and_the_math_kernel():
    swin = {"model": "swin_tiny_patch4_window7_224", "depth": None, "attn": "sdpa", "bs": 1}
    assert [of(torch, **swin).request["sdpa_kernel"] for torch in ("2.0", "2.1")] == ["math", "efficient"]
    turing = {"precision": "bf16", "gpu": "t4"}
    scores = BATCH * HEADS * TOKENS**2
    wide, narrow = saved("2.5", **turing), saved("2.4", **turing)
    operands = 3 * BATCH * TOKENS * WIDTH
    assert wide - narrow >= DEPTH * 2 * scores  # 4 bytes in place of 2
    assert wide - narrow <= DEPTH * 2 * (scores + 2 * operands)


@pytest.mark.parametrize(
    ("torch", "kernel"), [("2.8", "flash"), ("2.9", "cudnn"), ("2.10", "flash"), ("2.11", "cudnn"), ("2.14", "cudnn")]
)
def test_where_cudnn_attention_comes_first(torch, kernel):
    assert of(torch, gpu="h100-80g").request["sdpa_kernel"] == kernel


def test_layer_norm_borrows_partial_sums():
    from vitmem.kernels import Kernels

    old, new = (Kernels(torch=Torch(version)) for version in ((2, 7), (2, 8)))
    assert old.layer_norm_blocks(200_704, 96) == 0
    assert new.layer_norm_blocks(200_704, 96) == 6272


def test_what_runs_the_installed_torch_refuses_another(capsys):
    assert main(["validate", "--backend", "meta", "vit_tiny_patch16_224", "--torch", "2.1"]) == 4
    assert "leave out --torch 2.1" in capsys.readouterr().err
    assert main(["estimate", "resnet50", "--torch", "2.1"]) == 4
    assert "leave out --torch 2.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"torch": "2.2", "gpu": "t4", "precision": "bf16"}, "bf16 autocast on compute capability 7.5"),
        ({"torch": "2.0", "alloc_conf": "expandable_segments:True"}, "no expandable_segments"),
    ],
)
def test_what_an_older_torch_refuses(settings, refused):
    with pytest.raises(InvalidRequest, match=refused):
        vitmem.estimate(**{**SMALL, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"torch": "2.3", "gpu": "t4", "precision": "bf16"},
        {"torch": "2.2", "gpu": "t4", "precision": "fp16"},
        {"torch": "2.1", "alloc_conf": "expandable_segments:True"},
    ],
)
def test_what_it_does_not_refuse(settings):
    assert vitmem.estimate(**{**SMALL, **settings}).peak.allocated_bytes > 0


@pytest.mark.parametrize(
    ("gpu", "version", "named"),
    [
        ("rtx5090", "2.6", True),
        ("rtx5090", "2.7", False),
        ("h100-80g", "1.13", True),
        ("h100-80g", "2.0", False),
        ("v100-16g", "2.14", True),
        ("v100-16g", "2.6", False),
    ],
)
def test_wheels_that_do_not_run_on_the_gpu_are_named(gpu, version, named):
    found = vitmem.estimate(**{**SMALL, "gpu": gpu, "torch": version, "precision": "fp16"}).warnings
    assert any("on compute capability" in line or "kernels for compute" in line for line in found) is named


def test_a_kernel_for_eager_attention_is_said_to_be_unused():
    line = "sdpa_kernel flash is not used: attention is eager here"
    assert line in vitmem.estimate(**SMALL, attn="eager", sdpa_kernel="flash").warnings
    assert line not in vitmem.estimate(**SMALL, sdpa_kernel="flash").warnings
