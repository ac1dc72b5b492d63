"""DeepSpeed files: what is read, what DeepSpeed refuses, and what is not modelled."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings

SMALL = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 2, "bs": 2, "precision": "bf16"}
FILE = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}


def estimate(**settings):
    return vitmem.estimate(**{**SMALL, **settings})


def test_a_file_is_read_and_a_flag_wins(tmp_path):
    document = {
        **FILE,
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    }
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(document))
    settings = TrainSettings.of(deepspeed=path, bs=2, gpus=2)
    assert (settings.parallel, settings.precision, settings.offload, settings.bs) == ("zero3", "bf16", "optimizer", 2)
    assert dict(settings.zero_options) == {"pin_memory": False}
    assert settings.notes == ("bs 2 as asked, not the 4 of train_micro_batch_size_per_gpu in ds.json",)
    inside = TrainSettings.of(training_args={"output_dir": "out", "bf16": True, "deepspeed": str(path)})
    assert (inside.parallel, inside.deepspeed) == ("zero3", "ds.json")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no ZeRO stage"),
        ({"zero_optimization": {"stage": 0}}, "no ZeRO stage"),
        ({"zero_optimization": {"stage": 2, "contiguous_gradients": False}}, "contiguous_gradients False"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "to nvme"),
        ({**FILE, "data_types": {"keep_in_fp32_modules": ["norm"]}}, "keeps a part of the model in fp32"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights True"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "a part of the"),
        ({**FILE, "torch_autocast": {"enabled": True}}, "torch_autocast"),
        ({**FILE, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "bf16_master_weights"),
        ({**FILE, "optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
    ],
)
def test_what_changes_memory_in_another_way_is_refused(document, message):
    with pytest.raises(NotModelled, match=message):
        TrainSettings.of(deepspeed=document)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"zero_optimization": {"stage": 4}}, "must be 1, 2 or 3"),
        ({"zero_optimization": {"stage": "2"}}, "whole number"),
        ({"zero_optimization": {"stage": 2.5}}, "zero_optimization.stage 2.5 is not valid"),
        ({"zero_optimization": {"stage": None}}, "zero_optimization.stage null is not valid"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": None}}, "reduce_bucket_size null is not valid"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "x", "offload_param": None}}, "at least 1"),
        ({**FILE, "bf16": {"enabled": None}}, "bf16.enabled null is not valid"),
        *(({"zero_optimization": section}, "must be a section in braces") for section in ([1], "auto", True, None)),
        ({**FILE, "communication_data_type": ["fp32"]}, "fp32, fp16 or bf16"),
        ({**FILE, "train_batch_size": 10**400, "gradient_clipping": -1}, "gradient_clipping -1"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_sise": 10}}, "did you mean reduce_bucket_size"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "large"}}, "whole number, at least 1"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}, "at least 1"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "yes"}}, "true or false"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "auto"}}, "Trainer fills no auto here"),
        ({"zero_optimization": {"stage": 2, "allgather_bucket_size": 5}}, "even number"),
        ({"zero_optimization": {"stage": 3, "offload_param": "cpu"}}, "section in braces"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "gpu"}}}, "none, cpu or nvme"),
        ({**FILE, "fp16": True}, "section in braces"),
        ({**FILE, "train_micro_batch_size_per_gpu": -1}, "at least 1"),
        ({**FILE, "data_types": {"grad_accum_dtype": "fp8"}}, "fp32, fp16 or bf16"),
        ({**FILE, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both fp16 and bf16"),
    ],
)
def test_what_deepspeed_itself_refuses_is_refused(document, message):
    with pytest.raises(InvalidRequest, match=message):
        TrainSettings.of(deepspeed=document)


#: The entries of transformers' and accelerate's examples (docs of transformers 5.24, accelerate 1.15).
ON_HOST = {"device": "cpu", "pin_memory": True}
ZERO2 = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": ON_HOST,
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 2e8,
        "contiguous_gradients": True,
        "round_robin_gradients": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
ZERO3 = {
    **ZERO2,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": ON_HOST,
        "offload_param": ON_HOST,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}


def test_files_as_people_write_them_are_read():
    for document, offload in ((ZERO2, "optimizer"), (ZERO3, "all")):
        found = estimate(deepspeed=document, gpus=4)
        assert (found.request["offload"], found.request["deepspeed"]) == (offload, "the DeepSpeed configuration")


def test_what_a_file_asks_for_in_vain_is_said():
    asked = {
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
        "activation_checkpointing": {"x": 1},
    }
    settings = TrainSettings.of(deepspeed=asked)
    assert settings.offload == "none"
    assert [note.split()[0] for note in settings.notes] == ["activation_checkpointing", "offload_param"]


def test_gradients_summed_in_fp32_are_those_of_a_part():
    wide = {**FILE, "data_types": {"grad_accum_dtype": "fp32"}}
    plain, summed = (estimate(deepspeed=document, gpus=2, accum=2).states.gradient_bytes for document in (FILE, wide))
    assert summed == pytest.approx(4 * estimate().model.num_parameters / 2, rel=1e-3)
    assert plain < summed
    with pytest.raises(NotModelled, match="ZeRO-2 and 3"):
        estimate(deepspeed={**wide, "zero_optimization": {"stage": 1}}, gpus=2)


def test_whole_numbers_may_be_written_as_fractions_and_options_be_null():
    zero = {"stage": 2.0, "reduce_bucket_size": 2e8, "overlap_comm": None, "offload_param": None}
    settings = TrainSettings.of(deepspeed={"zero_optimization": zero, "train_micro_batch_size_per_gpu": 4.0}, gpus=2)
    assert (settings.parallel, settings.bs) == ("zero2", 4)
    assert dict(settings.zero_options) == {"reduce_bucket_size": 200_000_000}


ALL_THREE = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize("sizes", [ALL_THREE, {"train_batch_size": 64}, {"train_batch_size": 10**30}])
def test_a_batch_that_trainer_refuses_is_refused(sizes, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**FILE, **sizes}))
    with pytest.raises(InvalidRequest, match=r"ds.json: train_batch_size \d+ is not gpus 4 x bs \d x accum"):
        TrainSettings.of(deepspeed=path, gpus=4)


def test_a_batch_that_agrees_and_one_that_a_flag_contradicts():
    whole = {**FILE, "train_batch_size": 64}
    assert TrainSettings.of(deepspeed=whole, gpus=8).notes == ()
    assert TrainSettings.of(deepspeed=whole, gpus=4, bs=16).notes == ()
    assert TrainSettings.of(deepspeed={**FILE, "train_batch_size": "auto"}, gpus=4).notes == ()
    assert TrainSettings.of(deepspeed=whole, gpus=4, bs=4, accum=2).notes == (
        "gpus 4 x bs 4 x accum 2 = 32 images per update as asked, not the 64 of train_batch_size in "
        "the DeepSpeed configuration",
    )


@pytest.mark.parametrize(
    ("arguments", "entries", "message"),
    [
        ({"per_device_train_batch_size": 4}, {"train_micro_batch_size_per_gpu": 8}, "train_micro_batch_size_per_gpu"),
        ({"gradient_accumulation_steps": 4}, {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps for acc"),
        ({"max_grad_norm": 1.0}, {"gradient_clipping": 0.5}, "gradient_clipping for clip_grad 0.5"),
        ({"fp16": True}, {"bf16": {"enabled": True}}, "bf16.enabled for precision bf16"),
        ({"fp16": False}, {"bf16": {"enabled": True}}, "bf16.enabled for precision bf16"),
        ({"per_device_train_batch_size": 4}, {"train_batch_size": 64}, "train_batch_size 64 is not gpus 2 x bs 4"),
    ],
)
def test_two_files_that_trainer_does_not_take_together_are_refused(arguments, entries, message):
    document = {**FILE, **entries}
    with pytest.raises(InvalidRequest, match=message):
        TrainSettings.of(training_args={**arguments, "deepspeed": document}, gpus=2)
    with pytest.raises(InvalidRequest, match=message):
        TrainSettings.of(training_args=arguments, deepspeed=document, gpus=2)
    TrainSettings.of(
        training_args={**arguments, "deepspeed": document}, gpus=2, bs=8, accum=4, clip_grad=1.0, precision="bf16"
    )


def test_the_optimizer_of_the_file_is_deepspeeds_whatever_the_arguments_say():
    document = {**FILE, "optimizer": {"type": "AdamW"}}
    settings = {"training_args": {"optim": "sgd", "bf16": True}, "deepspeed": document, "gpus": 2}
    assert TrainSettings.of(**settings).optim == "adamw_torch_fused"
    assert TrainSettings.of(**settings, optim="sgd").optim == "sgd"
