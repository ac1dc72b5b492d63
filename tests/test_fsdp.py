"""FSDP2 at any number of GPUs, and Trainer's arguments for it; torch's own allocator is in data/measurements."""

from __future__ import annotations

import itertools
import json

import pytest
import vitmem
from vitmem import InvalidRequest, NotModelled, TrainSettings
from vitmem.kernels import Gpu
from vitmem.parallel.fsdp_copies import chunk_cat_bytes, split_with_sizes_copy_bytes
from vitmem.pipeline import resolved
from vitmem.play import play

VIT = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 2, "bs": 2, "precision": "bf16"}
TIMM = {"model": "vit_tiny_patch16_224", "depth": 2, "bs": 2, "precision": "bf16", "loop": "plain"}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "bs": 2, "precision": "bf16"}
FILE = {"output_dir": "out", "bf16": True, "fsdp": True}
RANKS = (2, 3, 8, 64, 1024)


def estimate(**settings):
    model = {"precision": "bf16"} if "model" in settings else VIT
    return vitmem.estimate(**{**model, "parallel": "fsdp", "gpus": 4, **settings})


def engine(**settings):
    return play(*resolved(TrainSettings.of(**{"parallel": "fsdp", **settings}))).strategy


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("model", [VIT, TIMM, SWIN])
def test_shards_add_up_to_the_whole_and_its_padding(model, ranks):
    fsdp = engine(**model, gpus=ranks)
    for s in (s for unit in fsdp.units for s in unit.parameters):
        rows, *rest = s.parameter.shape
        padding = s.numel * ranks - s.parameter.numel
        row = s.parameter.numel // rows
        assert padding % row == 0
        assert padding // row < ranks  # no rank has a row more than it needs
        assert s.shard.shape == (-(-rows // ranks), *rest)
        assert s.memory.num_bytes == 2 * s.numel * ranks


@pytest.mark.parametrize("model", [VIT, TIMM])
def test_every_parameter_is_in_one_unit_and_none_is_left_whole(model):
    fsdp = engine(**model, gpus=4)
    found = [id(s.parameter) for unit in fsdp.units for s in unit.parameters]
    assert sorted(found) == sorted(id(p) for p in fsdp.step.scope.parameters.values())
    assert not any(unit.is_whole for unit in fsdp.units)  # between two steps
    assert all(unit.parameters for unit in fsdp.units)


@pytest.mark.parametrize("model", [VIT, TIMM, SWIN])
def test_more_gpus_need_more_of_what_is_gathered_only(model):
    found = [estimate(**model, gpus=gpus) for gpus in (2, 8, 64, 1024)]
    for fewer, more in itertools.pairwise(found):
        assert more.states.optimizer_bytes <= fewer.states.optimizer_bytes
        assert more.states.gradient_bytes <= fewer.states.gradient_bytes
        gathered = [e.at_tensor_peak["communication"] + e.at_tensor_peak["parameters"] for e in (fewer, more)]
        assert more.peak.tensor_bytes - gathered[1] <= fewer.peak.tensor_bytes - gathered[0]


def test_states_are_those_of_shards_in_fp32():
    found, units = estimate(gpus=2), engine(**VIT, gpus=2).units
    shares = [s.numel for unit in units for s in unit.parameters]
    assert sum(shares) == pytest.approx(found.model.num_parameters / 2, rel=0.02)  # but for tokens and positions
    assert found.states.gradient_bytes == 4 * sum(shares)
    assert found.states.optimizer_bytes == 8 * sum(shares) + 4 * len(shares)


def test_what_stays_whole_is_not_gathered_again():
    less, more = (estimate(depth=6, reshard_after_forward=choice) for choice in (True, False))
    difference = more.phases["forward"].tensor_bytes - less.phases["forward"].tensor_bytes
    block = 4 * (192 * 192 + 192) + 4 * 192 + 2 * 192 * 3072 + 3072 + 192
    assert difference == 2 * (5 * block + 192 * 3 * 16 * 16 + 192)  # five blocks and the patch embeddings, in bf16


def test_offload_leaves_nothing_of_the_states_on_the_gpu():
    found = estimate(offload="all")
    states = found.states
    assert (states.parameter_bytes, states.gradient_bytes, states.optimizer_bytes) == (0, 0, 0)
    share = found.model.num_parameters / 4
    assert 16 * share < found.host["offload_bytes"] < 24 * share  # shards and gradients in powers of two, two states
    assert found.host["pinned_bytes"] > 8 * share


def test_the_last_micro_step_alone_divides_gradients_under_trainer():
    once, twice = (estimate(gpus=64, bs=1, accum=accum) for accum in (1, 2))
    whole, batch = 2 * once.model.num_parameters, 4 * 3 * 224 * 224 + 8
    more = twice.peak.tensor_bytes - once.peak.tensor_bytes - batch
    assert 0.7 * whole < more < whole
    plain = [vitmem.estimate(**TIMM, parallel="fsdp", gpus=64, accum=accum) for accum in (1, 2)]
    assert plain[1].peak.tensor_bytes - plain[0].peak.tensor_bytes < 0.3 * whole


def test_tables_of_the_copies_by_hand():
    """torch's allocator gave 10984, 1672 and 11248 bytes for these on an A100 (16, 4 and 16 parameters, two ranks)."""
    block = [73728, 384] * 4 + [384] * 4 + [1179648, 6144, 1179648, 384]
    assert split_with_sizes_copy_bytes(block, 2, Gpu()) == 10984
    assert split_with_sizes_copy_bytes([768, 3840, 384000, 2000], 2, Gpu()) == 1672
    assert chunk_cat_bytes(block) == 11248


def test_large_copies_take_more_than_one_turn_for_a_thread():
    """num_sms * threads / 128 * 2 blocks at most: twice as many bytes of two ranks, half the blocks each."""
    most = Gpu().num_sms * Gpu().threads_per_sm // 128 * 2
    assert split_with_sizes_copy_bytes([2048 * most // 2], 2, Gpu()) == 8 * (most // 2 + 5)
    assert split_with_sizes_copy_bytes([2048 * 4 * most // 2], 2, Gpu()) == 8 * (most + 5)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"gpus": 1}, InvalidRequest, "--gpus 2"),
        ({"loop": "timm"}, NotModelled, "--loop plain"),
        ({"offload": "optimizer"}, InvalidRequest, "--offload all"),
        ({"ema": True}, NotModelled, "leave out --ema"),
        ({"train_samples": 1000}, NotModelled, "leave out --train-samples"),
        ({"train": "lora"}, NotModelled, "--loop plain"),
        ({"optim": "adafactor"}, NotModelled, "adamw_torch"),
        ({"wrap_layers": "SwinLayer"}, NotModelled, "use ViTLayer"),
        ({"loop": "plain", "wrap_layers": "ViTLayer"}, InvalidRequest, "leave it out"),
        ({"parallel": "ddp", "wrap_layers": "ViTLayer"}, InvalidRequest, "--parallel fsdp"),
        ({"parallel": None, "gpus": 1, "reshard_after_forward": False}, InvalidRequest, "--parallel fsdp"),
        ({"model": "swin_tiny_patch4_window7_224"}, NotModelled, "leaves buffers in fp32"),
        ({"model": "openai/clip-vit-base-patch32"}, NotModelled, "--loop plain"),
        ({"model": "torchvision/vit_b_16", "loop": "plain"}, NotModelled, "torchvision"),
    ],
)
def test_what_is_refused(settings, error, words):
    with pytest.raises(error, match=words):
        estimate(**settings)


def test_the_setting_that_accelerate_needs_is_named():
    assert any('["ViTLayer"]' in line and "TypeError" in line for line in estimate().warnings)
    assert not any("TypeError" in line for line in estimate(wrap_layers="ViTLayer").warnings)
    assert not any("transformer_layer_cls_to_wrap" in line for line in estimate(**SWIN).warnings)
    timm = {**TIMM, "loop": "trainer"}
    assert any('["Block"]' in line for line in estimate(**timm).warnings)


def test_padding_is_named_where_it_is_much():
    assert any("position_embeddings [1, 197, 192]" in line for line in estimate(gpus=1024).warnings)
    assert not any("padding" in line for line in estimate(gpus=4).warnings)


def test_trainers_arguments_are_obeyed():
    config = {"transformer_layer_cls_to_wrap": ["ViTLayer"], "reshard_after_forward": False, "fsdp_cpu_offload": True}
    found = TrainSettings.of(training_args={**FILE, "fsdp_config": config})
    assert (found.parallel, found.wrap_layers, found.reshard_after_forward) == ("fsdp", "ViTLayer", False)
    assert found.offload == "all"
    old = TrainSettings.of(training_args={**FILE, "fsdp": "shard_grad_op auto_wrap offload"})
    assert (old.parallel, old.reshard_after_forward, old.offload) == ("fsdp", False, "all")
    checkpoints = {"transformer_layer_cls_to_wrap": "ViTLayer", "activation_checkpointing": "true"}
    assert TrainSettings.of(training_args={**FILE, "fsdp_config": checkpoints}).grad_checkpointing
    assert TrainSettings.of(training_args={**FILE, "fsdp": "", "fsdp_config": {"version": 1}}).parallel is None
    written = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
    assert TrainSettings.of(training_args={**FILE, "fsdp_config": written}).parallel == "fsdp"


def test_a_flag_beside_trainers_arguments_is_named(tmp_path):
    path = tmp_path / "fsdp.json"
    path.write_text(json.dumps({"reshard_after_forward": False}))
    found = TrainSettings.of(training_args={**FILE, "fsdp_config": str(path)}, reshard_after_forward=True, gpus=2)
    assert found.reshard_after_forward is True
    assert found.notes == (
        "reshard_after_forward True as asked, not the False of reshard_after_forward in the training arguments",
    )


@pytest.mark.parametrize(
    ("fsdp", "config", "error", "words"),
    [
        ("hybrid_shard", {}, NotModelled, "FSDP1's"),
        (True, {"version": 1}, NotModelled, "use 2"),
        (True, {"xla": True}, NotModelled, "xla"),
        (True, {"auto_wrap_policy": "SIZE_BASED_WRAP"}, NotModelled, "auto_wrap_policy"),
        (True, {"reshard_after_forward": "full_shard"}, InvalidRequest, "true or false"),
        (True, {"activation_checkpointing": True}, NotModelled, "transformer_layer_cls_to_wrap"),
        (True, ["no"], InvalidRequest, "a section in braces"),
        (True, "nowhere.json", InvalidRequest, r"nowhere\.json"),
    ],
)
def test_what_fsdp_config_cannot_say(fsdp, config, error, words):
    with pytest.raises(error, match=words):
        TrainSettings.of(training_args={**FILE, "fsdp": fsdp, "fsdp_config": config})


def test_checkpointing_twice_is_refused():
    config = {"activation_checkpointing": True, "transformer_layer_cls_to_wrap": "ViTLayer"}
    with pytest.raises(NotModelled, match="checkpoints twice"):
        TrainSettings.of(training_args={**FILE, "gradient_checkpointing": True, "fsdp_config": config})
