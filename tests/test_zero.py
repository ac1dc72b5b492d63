"""ZeRO's formulas at any number of GPUs, and DeepSpeed files; real engines are in tests/validate."""

from __future__ import annotations

import itertools
import json

import pytest
import vitmem
from vitmem.engine import Run, Tensor
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Kernels
from vitmem.parallel.partitions import FlatGroup, most_loaded
from vitmem.settings import TrainSettings
from vitmem.units import DType

SMALL = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "bs": 2, "precision": "bf16"}
FILE = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
RANKS = (1, 2, 3, 8, 64, 1024)


def group(*numels, ranks):
    run = Run(kernels=Kernels(), parameter_dtype=DType.bfloat16)
    return FlatGroup([Tensor.empty(run, (n,), DType.bfloat16) for n in numels], ranks, decayed=False)


def estimate(**settings):
    return vitmem.estimate(**{**SMALL, **settings})


@pytest.mark.parametrize("ranks", RANKS)
def test_parts_add_up_to_the_whole_and_its_padding(ranks):
    flat = group(30_538, 1, 77, 4_096, ranks=ranks)
    assert flat.part * ranks == flat.numel
    assert 0 <= flat.numel - flat.unpadded < 2 * ranks
    assert sum(flat.padding(rank) for rank in range(ranks)) == flat.numel - flat.unpadded
    slices = [part for index in range(4) for part in flat.slices(index)]
    assert sum(numel for _, numel in slices) == flat.unpadded
    owned = {(rank, index): numel for rank in range(ranks) for index, numel in flat.owned(rank).items()}
    assert owned == {(rank, index): numel for index in range(4) for rank, numel in flat.slices(index)}


def test_the_rank_with_the_largest_whole_parameters_is_the_most_loaded():
    assert most_loaded([group(10, 30, ranks=2)]) == 0  # 10 and 30 touch the first half, 30 the second
    assert most_loaded([group(30, 5, 5, ranks=2)]) == 1  # 30 alone; 30, 5 and 5


@pytest.mark.parametrize("parallel", ["zero1", "zero2", "zero3"])
def test_more_gpus_never_need_more_of_each(parallel):
    peaks = [estimate(parallel=parallel, gpus=gpus).peak.tensor_bytes for gpus in (2, 8, 64, 1024)]
    slack = 64 * 1024 * 16  # padding: of a flat buffer, of every small parameter
    assert all(more <= fewer + slack for fewer, more in itertools.pairwise(peaks))


def test_states_per_parameter_are_deepspeeds():
    found = estimate(parallel="zero2", gpus=4)
    whole = found.model.num_parameters
    assert found.states.parameter_bytes == pytest.approx(2 * whole, abs=2 * 2 * 8)
    assert found.states.optimizer_bytes == pytest.approx(12 * whole / 4, abs=12 * 2 * 2 + 8)
    third = estimate(parallel="zero3", gpus=4)
    assert third.states.optimizer_bytes == pytest.approx(12 * whole / 4, rel=1e-4)


def test_buckets_have_their_full_size_whatever_the_model():
    peak = estimate(parallel="zero2", gpus=2).at_tensor_peak["communication"]
    assert peak >= 2 * 500_000_000
    smaller = estimate(deepspeed=FILE, gpus=2)
    assert smaller.at_tensor_peak["communication"] < 2 * 2 * 192 * 192 * 8


def test_a_bucket_larger_than_the_model_is_named_with_what_to_write_instead():
    settings = {"gpus": 2, "parallel": "zero2"}
    (warning,) = [text for text in estimate(**settings).warnings if "reduce_bucket_size" in text]
    assert "--parallel ddp needs" in warning
    fixed = '"reduce_bucket_size": 36864'
    assert fixed in warning
    assert not [text for text in estimate(deepspeed=FILE, gpus=2).warnings if "reduce_bucket_size" in text]


def test_zero_leaves_activations_and_says_so():
    alone, many = (estimate(**more) for more in ({"precision": "pure-bf16"}, {"gpus": 8, "parallel": "zero2"}))
    assert alone.states.saved_activation_bytes == many.states.saved_activation_bytes
    assert any("not activations" in text for text in many.warnings)


def test_a_convolution_that_stage_3_empties_is_named():
    kernel = 192 * 3 * 16 * 16
    (warning,) = [text for text in estimate(gpus=2, parallel="zero3").warnings if "convolution" in text]
    assert f'"stage3_param_persistence_threshold": {kernel} keeps it whole' in warning
    whole = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": kernel}}
    assert not [text for text in estimate(gpus=2, deepspeed=whole).warnings if "convolution" in text]


def test_offload_moves_states_to_the_host():
    for stage in (1, 2, 3):
        moved = estimate(parallel=f"zero{stage}", gpus=2, offload="optimizer")
        assert moved.states.optimizer_bytes == 0
        assert moved.host["offload_bytes"] > 18 * moved.model.num_parameters // 2
        assert moved.host["pinned_bytes"] < moved.host["offload_bytes"]


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
        ({**FILE, "data_types": {"grad_accum_dtype": "fp32"}}, "data_types"),
        ({**FILE, "optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
    ],
)
def test_what_changes_memory_in_another_way_is_refused(document, message):
    with pytest.raises(NotModelled, match=message):
        TrainSettings.of(deepspeed=document)


def test_what_deepspeed_does_not_do_is_named():
    for settings, kind, message in (
        ({"loop": "timm"}, NotModelled, "under Trainer"),
        ({"precision": "pure-bf16"}, InvalidRequest, "--precision bf16"),
        ({"optim": "adafactor"}, NotModelled, "flat partitions"),
        ({"ema": True}, NotModelled, "EMA"),
        ({"model": "vit_tiny_patch16_224", "deepspeed": FILE, "dim": None, "heads": None}, InvalidRequest, "auto"),
    ):
        with pytest.raises(kind, match=message):
            estimate(**{"gpus": 2, "parallel": "zero2", **settings})
    with pytest.raises(InvalidRequest, match="--zero 2 or 3"):
        estimate(gpus=2, offload="optimizer")
