"""Strategies for many GPUs: what their figures must satisfy whatever the model; real engines are in tests/validate."""

from __future__ import annotations

import pytest
import vitmem
from vitmem.engine import Run, Tensor
from vitmem.kernels import Kernels
from vitmem.parallel.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES, bucket_limits, buckets_of, finds_unused
from vitmem.settings import TrainSettings
from vitmem.units import DType

SMALL = {"model": "vit_tiny_patch16_224", "depth": 2, "bs": 2}


def tensors(*numels, dtype=DType.float32):
    run = Run(kernels=Kernels(), parameter_dtype=dtype)
    return [Tensor.empty(run, (numel,), dtype) for numel in numels]


def communication(**settings):
    return vitmem.estimate(**{**SMALL, **settings}).at_peak["communication"]


def test_a_bucket_is_closed_by_the_tensor_that_reaches_its_limit():
    limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES]  # 262,144 and 6,553,600 elements of fp32
    sizes = [numel for _, numel in buckets_of(tensors(262_143, 1, 6_553_599, 2, 5), limits)]
    assert sizes == [262_144, 6_553_601, 5]


def test_every_type_has_buckets_and_limits_of_its_own():
    mixed = [*tensors(300_000), *tensors(300_000, dtype=DType.bfloat16), *tensors(300_000)]
    found = buckets_of(mixed, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    assert found == [(DType.float32, 300_000), (DType.bfloat16, 300_000), (DType.float32, 300_000)]


@pytest.mark.parametrize("loop", ["trainer", "timm", "plain"])
@pytest.mark.parametrize("more", [{}, {"grad_checkpointing": True}, {"train": "linear-probe"}])
def test_ddp_adds_the_trained_parameters_once_more_and_a_map(loop, more):
    estimate = vitmem.estimate(**SMALL, loop=loop, gpus=2, **more)
    assert estimate.request["parallel"] == "ddp"
    trained = 4 * estimate.model.num_trainable_parameters
    assert 0 < estimate.at_tensor_peak["communication"] - trained < 1000  # 4 bytes for each parameter's name


def test_more_gpus_change_nothing_of_ddp():
    assert len({communication(gpus=gpus) for gpus in (2, 8, 64, 1024)}) == 1


def test_gradient_accumulation_keeps_the_buckets():
    assert communication(gpus=2, accum=4) == communication(gpus=2)


def test_unused_parameters_are_named_where_ddp_ends_with_an_error():
    settings = {"model": "facebook/vit-mae-base", "depth": 2, "bs": 2, "gpus": 2}
    masked = {"model": "facebook/dinov2-base", "depth": 2, "bs": 2, "gpus": 2}
    assert vitmem.estimate(**settings).peak.tensor_bytes
    assert vitmem.estimate(**masked).peak.tensor_bytes
    with pytest.raises(vitmem.errors.InvalidRequest, match="no gradient comes to dinov2"):
        vitmem.estimate(**masked, grad_checkpointing=True)


def test_buckets_of_a_size_that_is_asked_for_begin_with_one_of_that_size():
    """torch's default makes a smaller first one; 25 is accelerate's default, which it does not hand on."""
    small = [2**20, 25 * 2**20]
    assert bucket_limits(TrainSettings()) == bucket_limits(TrainSettings(ddp_bucket_cap_mb=25)) == small
    assert bucket_limits(TrainSettings(ddp_bucket_cap_mb=25, loop="plain")) == [25 * 2**20]
    assert bucket_limits(TrainSettings(ddp_bucket_cap_mb=40)) == [40 * 2**20]


def test_whether_unused_parameters_are_looked_for_is_the_users_or_the_loops():
    assert finds_unused(TrainSettings())
    assert not finds_unused(TrainSettings(ddp_find_unused_parameters=False))
    assert finds_unused(TrainSettings(ddp_find_unused_parameters=True, loop="plain"))


def test_several_gpus_without_a_strategy_train_alone():
    alone = vitmem.estimate(**SMALL, gpus=4, parallel="none")
    assert any("each trains a model of its own" in warning for warning in alone.warnings)
    assert alone.peak == vitmem.estimate(**SMALL).peak


def test_nccl_is_a_range_on_top_of_the_context():
    """By engine and GPUs: one rank of DDP or ZeRO makes a communicator of its own."""
    alone = vitmem.estimate(**SMALL, gpu="a100-40g").peak
    found = {}
    for parallel, gpus in (("ddp", 1), ("zero1", 1), ("ddp", 2), ("ddp", 4)):
        peak = vitmem.estimate(**SMALL, gpu="a100-40g", parallel=parallel, gpus=gpus).peak
        assert peak.device_low_bytes < peak.device_bytes < peak.device_high_bytes
        overhead = peak.device_bytes - peak.reserved_bytes - (alone.device_bytes - alone.reserved_bytes)
        found[parallel, gpus] = overhead // 2**20
    assert found == {("ddp", 1): 484, ("zero1", 1): 484, ("ddp", 2): 544, ("ddp", 4): 688}
