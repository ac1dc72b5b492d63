"""LoRA on the estimator's side: which layers are adapted, what an adapter makes and keeps, and what is refused."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem.cli import main
from vitmem.engine import Scope
from vitmem.engine.autograd import backward, ones_like
from vitmem.engine.run import Autocast
from vitmem.engine.tensor import Tensor
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.families.nn import Conv2d, Linear
from vitmem.lora import Lora, is_trained
from vitmem.ops import relu_
from vitmem.optimizers.row import by_dtype
from vitmem.units import DType

TIMM, HF = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224"


def scope_of(run, *, dropout=0.0, targets=("fc",), copied=(), frozen=()):
    scope = Scope(run)
    scope.lora = Lora(rank=4, dropout=dropout, targets=targets, copied=frozenset(copied), frozen=frozenset(frozen))
    return scope


def freeze(scope):
    for name, parameter in scope.parameters.items():
        parameter.requires_grad = is_trained(name)


def test_names_and_shapes_are_those_of_peft(run):
    scope = scope_of(run, copied=["head"])
    Linear(scope / "fc", 10, 20)
    Linear(scope / "other", 10, 20)
    Linear(scope.row("head"), 20, 3)
    assert {name: tensor.shape for name, tensor in scope.parameters.items()} == {
        "fc.base_layer.weight": (20, 10),
        "fc.base_layer.bias": (20,),
        "fc.lora_A.default.weight": (4, 10),
        "fc.lora_B.default.weight": (20, 4),
        "other.weight": (20, 10),
        "other.bias": (20,),
        "head.original_module.weight": (3, 20),
        "head.original_module.bias": (3,),
        "head.modules_to_save.default.weight": (3, 20),
        "head.modules_to_save.default.bias": (3,),
    }


def test_a_convolution_is_adapted_by_two(run):
    scope = scope_of(run, targets=("proj",))
    layer = Conv2d(scope / "proj", 3, 16, (8, 8))
    freeze(scope)
    assert scope.parameters["proj.lora_A.default.weight"].shape == (4, 3, 8, 8)
    assert scope.parameters["proj.lora_B.default.weight"].shape == (16, 4, 1, 1)
    assert layer(Tensor.empty(run, (2, 3, 32, 32), DType.float32)).shape == (2, 16, 4, 4)


def test_an_adapter_in_fp32(run, watch):
    scope = scope_of(run)
    layer = Linear(scope / "fc", 10, 20)
    freeze(scope)
    x = Tensor.empty(run, (8, 10), DType.float32)
    watch.reset()
    out = layer(x)
    # the layer's own product; A, B, the scaled product, the sum
    assert watch.tensor_sizes() == [8 * 20 * 4, 8 * 4 * 4, 8 * 20 * 4, 8 * 20 * 4, 8 * 20 * 4]
    assert watch.living() == 8 * 4 * 4 + out.num_bytes  # what B is multiplied with, and the sum


def test_a_16_bit_input_is_widened_and_cast_again_under_autocast(run, watch):
    scope = scope_of(run, dropout=0.1)
    layer = Linear(scope / "fc", 10, 20, bias=False)
    freeze(scope)
    x = Tensor.empty(run, (8, 10), DType.float16)
    run.autocast = Autocast(DType.float16)
    watch.reset()
    layer(x)
    assert watch.sizes("autocast_weights") == [4 * 10 * 2, 20 * 4 * 2]  # of A and B: a frozen weight is cast each time
    others = [size for size in watch.sizes("activations") if size]
    # the frozen weight and its product; the widened input, a mask, what is dropped; A's input, A, B, scaled, the sum
    assert others == [400, 320, 320, 80, 320, 160, 64, 320, 320, 320]


def test_adapters_are_fp32_beside_16_bit_weights(run):
    run.parameter_dtype = DType.bfloat16
    scope = scope_of(run, copied=["head"])
    layer = Linear(scope / "fc", 10, 20)
    Linear(scope.row("head"), 20, 3)
    freeze(scope)
    wide = [name for name, tensor in scope.parameters.items() if tensor.dtype is DType.float32]
    assert wide == ["fc.lora_A.default.weight", "fc.lora_B.default.weight"]
    assert layer(Tensor.empty(run, (8, 10), DType.bfloat16)).dtype is DType.bfloat16


def test_an_adapter_that_never_runs_is_unused(run):
    scope = scope_of(run)
    layer = Linear(scope / "fc", 10, 20)
    freeze(scope)
    adapters = {"fc.lora_A.default.weight", "fc.lora_B.default.weight"}
    assert scope.unused == adapters
    out = layer(Tensor.empty(run, (8, 10), DType.float32))
    assert scope.unused == set()
    run.start_phase("backward", kind="temporaries")
    backward(out, ones_like(out))
    assert {name for name, p in scope.parameters.items() if p.accumulator.grad is not None} == adapters


def test_frozen_rows_get_no_adapter(run):
    scope = scope_of(run, frozen=["blocks.0"])
    for i in range(2):
        Linear(scope.row(f"blocks.{i}") / "fc", 10, 10)
    assert [name for name in scope.parameters if "lora_A" in name] == ["blocks.1.fc.lora_A.default.weight"]


def test_relu_in_place_on_what_owns_its_memory(run, parameter, watch):
    x = Tensor.empty(run, (8, 10), DType.float32)
    x.requires_grad, x.accumulator = True, parameter(8, 10).accumulator
    watch.reset()
    out = relu_(x)
    assert (watch.sizes(), out.storage) == ([], x.storage)


def test_foreach_takes_the_type_that_appears_last_first(run):
    kinds = (DType.float32, DType.bfloat16, DType.float32)
    tensors = [Tensor.empty(run, (1,), dtype) for dtype in kinds]
    assert [[x.dtype for x in alike] for alike in by_dtype(tensors)] == [[kinds[1]], [kinds[0], kinds[2]]]


def test_what_is_trained_and_what_is_asked_for():
    estimate = vitmem.estimate(TIMM, train="lora")
    adapters, head = 12 * 8 * (192 + 3 * 192), 192 * 1000 + 1000
    full = vitmem.estimate(TIMM).model
    assert estimate.model.num_trainable_parameters == adapters + head
    assert estimate.model.num_parameters == full.num_parameters + adapters + head
    asked = {name: estimate.request[name] for name in ("lora_rank", "lora_dropout", "lora_targets")}
    assert asked == {"lora_rank": 8, "lora_dropout": 0.0, "lora_targets": ["qkv"]}
    assert any("rank 8 (its default is 8) on qkv" in line for line in estimate.assumptions)
    assert vitmem.estimate(HF, train="lora", lora_targets="fc1, fc2,fc1").request["lora_targets"] == ["fc1", "fc2"]


@pytest.mark.parametrize(
    ("model", "usual"),
    [
        (HF, ["q_proj", "v_proj"]),
        ("facebook/data2vec-vision-base", ["query", "value"]),
        ("eva02_base_patch14_448", ["q_proj", "v_proj"]),
        ("cait_xxs24_224", ["qkv"]),
        ("swin_tiny_patch4_window7_224", ["qkv"]),
    ],
)
def test_query_and_value_are_adapted_unless_said(model, usual):
    assert vitmem.estimate(model, train="lora", bs=1).request["lora_targets"] == usual


@pytest.mark.parametrize("model", ["beit_base_patch16_224", "swinv2_tiny_window8_256", "torchvision/swin_t"])
def test_adapters_that_never_run_are_named(model):
    """timm's BEIT, EVA and SwinV2 and torchvision's Swin hand the packed weight to ``F.linear`` themselves."""
    found = vitmem.estimate(model, train="lora", bs=1)
    (warning,) = [line for line in found.warnings if "never run" in line]
    assert warning.startswith("12 adapters on qkv are never run")
    probed = vitmem.estimate(model, train="linear-probe", bs=1)
    assert found.states.gradient_bytes == probed.states.gradient_bytes


def test_blocks_before_the_first_adapter_save_nothing():
    layers = {row.name: row for row in vitmem.estimate(HF, train="lora", freeze_layers=3).layers}
    saved = [row.saved_activation_bytes for name, row in layers.items() if name.startswith("vit.layers.")]
    assert saved[:3] == [0, 0, 0]
    assert all(saved[3:])


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"lora_targets": "qkv,nope"}, InvalidRequest, r"'nope' names no layer of .*; it has proj, qkv, fc1, fc2"),
        ({"lora_targets": "query"}, InvalidRequest, "'query' names no layer"),
        ({"lora_targets": "head"}, InvalidRequest, "'head' names no layer"),
        ({"lora_targets": "all-linear,qkv"}, InvalidRequest, "all-linear stands alone"),
        ({"lora_targets": "qkv,,proj"}, InvalidRequest, "are no names of layers"),
        ({"lora_rank": 0}, InvalidRequest, "lora_rank 0"),
        ({"lora_dropout": 1.0}, InvalidRequest, "lora_dropout 1.0"),
        ({"freeze_layers": 12}, InvalidRequest, "freezes every layer that LoRA would adapt"),
        ({"train": "full", "lora_targets": "qkv"}, InvalidRequest, "lora_targets needs --train lora"),
        ({"train": "linear-probe", "lora_dropout": 0.1}, InvalidRequest, "lora_dropout needs --train lora"),
        ({"model": "torchvision/vit_b_16"}, NotModelled, r"nn.MultiheadAttention.*: conv_proj, mlp.0, mlp.3"),
        ({"model": "torchvision/vit_b_16", "lora_targets": "self_attention"}, NotModelled, "MultiheadAttention"),
        (
            {"model": "google/siglip-base-patch16-224", "lora_targets": "position_embedding"},
            NotModelled,
            "nn.Embedding are not modelled; name other layers",
        ),
        ({"model": "vit_base_patch16_xp_224"}, InvalidRequest, "has no query and value projections of their own"),
        ({"model": "xcit_nano_12_p8_224", "lora_targets": "conv1"}, InvalidRequest, "a convolution in 128 groups"),
    ],
)
def test_refusals(settings, error, said):
    with pytest.raises(error, match=said):
        vitmem.estimate(**{"model": TIMM, "train": "lora", **settings})


def test_the_command_line_takes_and_refuses_it(capsys):
    assert main(["estimate", TIMM, "--train", "lora", "--lora-rank", "4", "--lora-targets", "qkv,proj", "--json"]) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert (request["lora_rank"], request["lora_targets"]) == (4, ["qkv", "proj"])
    for code, flags in [(2, ["--lora-targets", "nope"]), (2, ["--lora-dropout", "2"]), (4, ["--parallel", "zero3"])]:
        assert main(["estimate", TIMM, "--train", "lora", *flags]) == code
        assert 1 <= len(capsys.readouterr().err.splitlines()) <= 2
    assert main(["estimate", "torchvision/vit_b_16", "--train", "lora"]) == 4
    assert "name other layers with --lora-targets" in capsys.readouterr().err
    assert main(["estimate", TIMM, "--lora-rank", "4"]) == 2
    assert capsys.readouterr().err == "error: lora_rank needs --train lora\n"


def test_targets_are_no_axis_of_a_sweep(capsys):
    line = ["sweep", TIMM, "--train", "lora", "--lora-targets", "qkv,proj", "--lora-rank", "4,8", "--json"]
    assert main(line) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["settings"] for row in rows] == [{"lora_rank": 4}, {"lora_rank": 8}]
