"""What a step moves and how long it takes beside another, on figures that a hand can follow."""

from __future__ import annotations

import dataclasses

import pytest
from vitmem.cost import Cost, cost_of, seconds
from vitmem.gpus import find
from vitmem.parallel.traffic import Traffic
from vitmem.pipeline import resolved
from vitmem.play import play
from vitmem.settings import TrainSettings

TINY = "vit_tiny_patch16_224"


def cost(**settings: object) -> Cost:
    return cost_of(play(*resolved(TrainSettings.of(TINY, **{"bs": 4, **settings}))))


def test_a_fused_adamw_reads_and_writes_parameters_and_state_and_reads_gradients() -> None:
    num = sum(p.numel for p in play(*resolved(TrainSettings.of(TINY, precision="fp32"))).updated.values())
    moved = cost(precision="fp32", loop="plain", optim="adamw_torch_fused").optimizer_bytes
    params_grads_state = 4 * num * (2 + 1 + 2 * 2)
    assert params_grads_state <= moved < 1.01 * params_grads_state


def test_micro_steps_multiply_the_passes_and_not_the_update() -> None:
    one, five = cost(accum=1, precision="bf16"), cost(accum=5, precision="bf16")
    assert five.flops == 5 * one.flops
    assert five.low_flops == five.flops
    assert five.optimizer_bytes == pytest.approx(one.optimizer_bytes, rel=1e-6)


def test_seconds_add_products_at_their_types_rate_and_traffic() -> None:
    gpu = find("a100-40g")
    work = Cost(
        forward_flops=312 * 10**12,
        backward_flops=0,
        recompute_flops=0,
        low_flops=312 * 10**12,
        layer_flops={},
        moved_bytes=0,
        optimizer_bytes=0,
        num_kernels=1,
        traffic=Traffic(),
    )
    assert seconds(work, gpu) == pytest.approx(312 / gpu.tensor_tflops / 0.5)
    assert seconds(dataclasses.replace(work, low_flops=0), gpu) == pytest.approx(312 / gpu.fp32_tflops / 0.5)
    idle = dataclasses.replace(work, forward_flops=0, low_flops=0, num_kernels=10**6)
    assert seconds(idle, gpu) == pytest.approx(5.0)
    moving = dataclasses.replace(idle, num_kernels=0, moved_bytes=10**12, optimizer_bytes=10**12)
    assert seconds(moving, gpu) == pytest.approx(2000 / gpu.bandwidth_gb_per_s / 0.8)


def test_checkpointing_takes_longer_and_a_larger_micro_batch_does_not() -> None:
    gpu = find("a100-40g")
    assert seconds(cost(grad_checkpointing=True, bs=64), gpu) > seconds(cost(bs=64), gpu)
    assert seconds(cost(bs=64), gpu) < seconds(cost(bs=4, accum=16), gpu)
