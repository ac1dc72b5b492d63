"""ZeRO's formulas at any number of GPUs, and DeepSpeed files; real engines are in tests/validate."""

from __future__ import annotations

import itertools
import re
import time

import pytest
import vitmem
from hypothesis import given, settings
from hypothesis import strategies as st
from vitmem.engine import Run, Tensor
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Kernels
from vitmem.parallel.partitions import FlatGroup, candidates, candidates_behind
from vitmem.pipeline import resolved
from vitmem.play import play
from vitmem.settings import TrainSettings
from vitmem.units import DType, format_bytes, parse_bytes

SMALL = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "bs": 2, "precision": "bf16"}
FILE = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
RANKS = (1, 2, 3, 8, 64, 1024)


def group(*numels, ranks):
    run = Run(kernels=Kernels(), parameter_dtype=DType.bfloat16)
    return FlatGroup([Tensor.empty(run, (n,), DType.bfloat16) for n in numels], ranks, decayed=False)


def estimate(**settings):
    return vitmem.estimate(**{**SMALL, **settings})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=12), st.sampled_from(RANKS))
def test_parts_add_up_to_the_whole_and_its_padding(numels, ranks):
    flat = group(*numels, ranks=ranks)
    assert flat.unpadded == sum(numels)
    assert flat.part * ranks == flat.numel
    assert 0 <= flat.numel - flat.unpadded < 2 * ranks
    assert sum(flat.padding(rank) for rank in range(ranks)) == flat.numel - flat.unpadded
    slices = [part for index in range(len(numels)) for part in flat.slices(index)]
    assert sum(numel for _, numel in slices) == flat.unpadded
    owned = {(rank, index): numel for rank in range(ranks) for index, numel in flat.owned(rank).items()}
    assert owned == {(rank, index): numel for index in range(len(numels)) for rank, numel in flat.slices(index)}
    assert {rank for rank, _ in slices} >= set(ranks_to_play(flat))


@pytest.mark.parametrize("ranks", RANKS)
def test_shards_of_stage_3_add_up_to_the_whole_and_its_padding(ranks):
    """Every parameter is padded by itself."""
    plan, asked = resolved(TrainSettings(**{**SMALL, "depth": 1}, parallel="zero3", gpus=ranks))
    numels = [p.numel for p in play(plan, asked).trained.values()]
    padded = sum(-(-numel // ranks) for numel in numels)
    found = estimate(depth=1, parallel="zero3", gpus=ranks).states
    assert found.optimizer_bytes == 12 * padded + 2 * 4  # masters, both moments, and a count of each group
    assert found.gradient_bytes == 2 * padded + 1  # and a flag for infinities
    assert 0 <= padded * ranks - sum(numels) < len(numels) * ranks


def ranks_to_play(flat):
    return candidates([flat], {id(p): place for place, p in enumerate(flat.parameters)})


def test_a_rank_that_keeps_less_and_later_is_no_candidate():
    assert ranks_to_play(group(60, 10, 10, ranks=2)) == [1, 0]  # the first has the largest slice
    assert ranks_to_play(group(20, 20, 5, 5, ranks=2)) == [1, 0]  # the second begins earlier, the first keeps more
    assert ranks_to_play(group(40, 40, ranks=2)) == [1]


@pytest.mark.parametrize(
    ("stage", "bucket", "more"),
    [
        (2, "auto", {}),
        (1, 20_000, {"gpus": 4}),  # gradients larger than a bucket stay: 42,713,096 and 43,669,256 bytes were measured
        (1, 20_000, {"gpus": 4, "offload": "optimizer"}),  # the last, with the host's: 54,743,740 and 55,186,068
        (1, 1_000_000, {"train": "lora", "lora_targets": ("all-linear",)}),  # 16,788,628 and 16,996,012 in the update
    ],
)
def test_the_rank_that_needs_most_is_followed(stage, bucket, more):
    file = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": stage, "reduce_bucket_size": bucket}}
    asked = {**SMALL, "res": "32", "gpus": 2, **more, "parallel": f"zero{stage}"}
    followed = phases(vitmem.estimate(**asked, deepspeed=file))
    options = TrainSettings.of(deepspeed=file).zero_options
    ranks = [phases(vitmem.estimate(**asked, zero_options=(*options, ("rank", rank)))) for rank in range(asked["gpus"])]
    most = max(ranks, key=lambda peaks: (max(peaks), sum(peaks)))
    assert followed == most
    assert ranks.count(most) == 1


def phases(estimate):
    return [estimate.phases[name].tensor_bytes for name in ("forward", "backward", "optimizer_step")]


def test_a_rank_that_needs_most_behind_the_backward_pass_is_played():
    assert candidates_behind([group(10, 10, 10, 10, ranks=4)], 100, 2) == [0]
    assert candidates_behind([group(10, 14, 16, ranks=2)], 10, 2) == [1]  # what is larger than a bucket stays
    assert candidates_behind([group(20, 8, 16, 8, 20, ranks=3)], 100, 2) == [1, 0]  # the first has the largest slice


@pytest.mark.parametrize("parallel", ["zero1", "zero2", "zero3"])
def test_more_gpus_never_need_more_of_each(parallel):
    found = [estimate(parallel=parallel, gpus=gpus, deepspeed=FILE) for gpus in (2, 8, 64, 1024)]
    slack = 12 * 2 * 1024 * 2  # padding of two flat buffers, and less of every small parameter
    for fewer, more in itertools.pairwise(found):
        assert more.peak.tensor_bytes <= fewer.peak.tensor_bytes + slack
        for name in ("parameter_bytes", "optimizer_bytes", "saved_activation_bytes"):
            assert getattr(more.states, name) <= getattr(fewer.states, name) + slack
        # stage 2 keeps the gradients of whole parameters that a part touches, of two at least where it is small
        whole = 2 * 2 * 4 * 192 * 768 if parallel == "zero2" else 0
        assert more.states.gradient_bytes <= fewer.states.gradient_bytes + slack + whole


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


@pytest.mark.parametrize("parallel", ["zero1", "zero2", "zero3"])
def test_advice_leaves_out_an_engine_that_does_not_train_the_model(parallel):
    """Checkpointed SigLIP: a part of its head gets no gradient, and DDP ends with an error; ZeRO does not."""
    asked = {"model": "google/siglip-base-patch16-224", "depth": 1, "bs": 1, "grad_checkpointing": True, "gpus": 2}
    with pytest.raises(InvalidRequest, match="DDP ends the second step"):
        vitmem.estimate(**asked, parallel="ddp")
    warning = next(
        line for line in vitmem.estimate(**asked, parallel=parallel).warnings if "reduce_bucket_size" in line
    )
    assert "--parallel ddp" not in warning


def test_what_the_advice_on_buckets_says_is_true():
    """What it names is estimated again, and has the figure of that estimate's headline."""
    small = {"depth": 2, "res": 64, "gpus": 2}
    (warning,) = [text for text in estimate(**small, parallel="zero2").warnings if "reduce_bucket_size" in text]
    said = {what: parse_bytes(size) for what, size in _NEEDS.findall(warning)}
    advised = {"zero_optimization": {"stage": 2, "reduce_bucket_size": int(_ADVISED.findall(warning)[0])}}
    found = {
        "the step": estimate(**small, parallel="zero2"),
        "--parallel ddp": estimate(**small, parallel="ddp"),
        "DeepSpeed file it": estimate(**small, deepspeed=advised),
    }
    for what, number in found.items():
        assert said[what] == parse_bytes(format_bytes(number.peak.allocated_bytes)), what
    assert any(number.at_peak["rounding"] > 2**20 for number in found.values())
    assert said["DeepSpeed file it"] < said["--parallel ddp"] < said["the step"]


_NEEDS = re.compile(r"(the step|--parallel ddp|DeepSpeed file it) needs ([\d.]+ [KMG]iB)")
_ADVISED = re.compile(r'"reduce_bucket_size": (\d+)')


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


@pytest.mark.parametrize(("gpus", "on_a_node"), [(4, 4), (8, 8), (64, 8)])
def test_a_node_holds_what_its_ranks_do(gpus, on_a_node):
    host = estimate(parallel="zero2", gpus=gpus, offload="optimizer").host
    loader = estimate().host
    of_one = loader["pinned_bytes"] + loader["dataloader_bytes"] + host["offload_bytes"]
    assert (host["node_gpus"], host["node_bytes"]) == (on_a_node, on_a_node * of_one)


def test_a_model_that_deepspeed_casts_by_half_is_refused_as_torch_does():
    """Buffers stay in fp32; measured between real ranks, "expected m1 and m2 to have the same dtype"."""
    swin = {"model": "swin_tiny_patch4_window7_224", "dim": 24, "heads": None, "depth": None, "gpus": 2}
    plain = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 100_000}}
    with pytest.raises(InvalidRequest, match='"buffer_dtype": "bf16"'):
        estimate(**swin, deepspeed=plain)
    assert estimate(**swin, deepspeed={**plain, "data_types": {"buffer_dtype": "bf16"}}).peak.tensor_bytes
    assert estimate(**{**swin, "precision": "fp32"}, deepspeed=plain).peak.tensor_bytes


def test_what_deepspeed_does_not_do_is_named():
    for asked, kind, message in (
        ({"loop": "timm"}, NotModelled, "under Trainer"),
        ({"precision": "pure-bf16"}, InvalidRequest, "--precision bf16"),
        ({"optim": "adafactor"}, NotModelled, "flat partitions"),
        ({"parallel": "zero3", "ema": True}, InvalidRequest, "--zero 2, or leave out --ema"),
        ({"offload": "all"}, InvalidRequest, "--offload optimizer, or --zero 3"),
        ({"parallel": "zero3", "train": "lora"}, NotModelled, "use --zero 2"),
        ({"model": "vit_tiny_patch16_224", "deepspeed": FILE, "dim": None, "heads": None}, InvalidRequest, "auto"),
    ):
        with pytest.raises(kind, match=message):
            estimate(**{"gpus": 2, "parallel": "zero2", **asked})
    with pytest.raises(InvalidRequest, match="--zero 2 or 3"):
        estimate(gpus=2, offload="optimizer")


def test_many_ranks_take_no_more_than_their_number():
    """Slices of a bucket are as many as the ranks: each is summed up once (all of them again, 4096 took 11 s)."""
    began = time.process_time()
    estimate(parallel="zero2", gpus=16_384, precision="fp16")
    assert time.process_time() - began < 5


def test_more_gpus_than_anybody_has_are_refused():
    with pytest.raises(InvalidRequest, match="gpus 65537 is too large; at most 65536"):
        TrainSettings(gpus=65_537)
