"""What a step moves and how long it takes beside another, on figures that a hand can follow."""

from __future__ import annotations

import dataclasses

import pytest
from vitmem.cost import Cost, cost_of, seconds
from vitmem.gpus import GpuRow, find
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


def num_parameters(**settings: object) -> int:
    return sum(p.numel for p in play(*resolved(TrainSettings.of(TINY, **settings))).trained.values())


def traffic(**settings: object) -> Traffic:
    return cost(precision="bf16", gpus=4, **settings).traffic


def test_ddp_sums_fp32_gradients_once_beside_the_last_backward_pass() -> None:
    num = num_parameters()
    for accum in (1, 5):
        seen = traffic(parallel="ddp", accum=accum)
        assert seen.link_bytes == seen.hideable_bytes == 2 * 4 * num * 3 // 4
        assert seen.hiding_share == pytest.approx(2 / 3 / accum)


def test_zero_1_and_2_sum_16_bit_gradients_and_gather_16_bit_weights() -> None:
    whole = 2 * num_parameters()  # bytes; padding to 8 elements a group comes on top
    for parallel, times in (("zero1", 1), ("zero2", 3)):
        seen = traffic(parallel=parallel, accum=3, zero_options={"reduce_bucket_size": 200_000})
        assert seen.link_bytes == pytest.approx((2 * times + 1) * whole * 3 / 4, rel=1e-4)
        assert seen.hideable_bytes == 0
    overlapping = traffic(parallel="zero2", zero_options={"reduce_bucket_size": 200_000, "overlap_comm": True})
    assert overlapping.hideable_bytes == pytest.approx(2 * whole * 3 / 4, rel=1e-4)


def test_zero_3_gathers_weights_and_divides_gradients_in_every_micro_step() -> None:
    options = {"reduce_bucket_size": 200_000, "stage3_param_persistence_threshold": 0}
    one, three = (traffic(parallel="zero3", accum=accum, zero_options=options) for accum in (1, 3))
    assert one.link_bytes == pytest.approx(2 * 2 * num_parameters() * 3 / 4, rel=1e-3)
    assert three.link_bytes == 3 * one.link_bytes
    assert one.hideable_bytes == one.link_bytes


def test_offload_moves_the_update_to_the_host() -> None:
    options = {"parallel": "zero2", "zero_options": {"reduce_bucket_size": 200_000}}
    here, there = (cost(precision="bf16", gpus=4, offload=where, **options) for where in ("none", "optimizer"))
    assert here.traffic.host_link_bytes == here.traffic.host_memory_bytes == 0
    assert there.traffic.host_memory_bytes == pytest.approx(30 * num_parameters(), rel=1e-4)
    assert there.traffic.host_link_bytes == pytest.approx(8 * num_parameters() / 4, rel=1e-4)
    assert there.optimizer_bytes < here.optimizer_bytes / 100


def test_what_nothing_hides_takes_time_by_the_link() -> None:
    nvlink, pcie = find("a100-80g"), find("a100-80g-pcie")
    assert (nvlink.link_gb_per_s, pcie.link_gb_per_s, nvlink.pcie_gb_per_s) == (300, 31.5, 31.5)
    work = cost(bs=64)
    busy = seconds(work, pcie)

    def extra(**fields: float) -> float:
        return seconds(dataclasses.replace(work, traffic=Traffic(**fields)), pcie) - busy  # type: ignore[arg-type]

    assert extra(link_bytes=10**9) == pytest.approx(1 / 31.5 / 0.7)
    assert extra(link_bytes=10**9, hideable_bytes=10**9, hiding_share=0.5) == pytest.approx(
        max(1 / 31.5 / 0.7 - busy / 2, 0)
    )
    assert extra(link_bytes=10**9, hideable_bytes=10**9, hiding_share=1e6) == 0
    assert extra(host_link_bytes=10**9) == pytest.approx(1 / 31.5 / 0.7)
    assert extra(host_memory_bytes=10**11) == pytest.approx(1)


def test_cards_that_reach_no_peer_exchange_through_the_memory_of_the_host() -> None:
    geforce, other = find("rtx4090"), find("rtx6000ada")
    assert (geforce.reaches_peers, other.reaches_peers, find("titanrtx").reaches_peers) == (False, True, False)
    work = cost(bs=64)

    def rate(gpu: GpuRow, ranks: int) -> float:
        traffic = Traffic(ranks=ranks, link_bytes=10**9)
        return 1 / (seconds(dataclasses.replace(work, traffic=traffic), gpu) - seconds(work, gpu))

    assert rate(geforce, 2) == pytest.approx(31.5 * 0.7)  # 25 GB/s of memory for each are more
    assert [rate(geforce, ranks) for ranks in (4, 8, 64)] == pytest.approx([12.5, 6.25, 6.25])
    assert rate(other, 8) == pytest.approx(31.5 * 0.7)
    for parallel in ("ddp", "zero1", "zero2", "zero3", "fsdp"):
        assert cost(precision="bf16", gpus=4, parallel=parallel).traffic.ranks == 4


def test_more_micro_steps_of_zero_2_take_more_communication_than_of_zero_1() -> None:
    gpu, options = find("rtx4090"), {"zero_options": {"reduce_bucket_size": 200_000}}
    one, two = (
        seconds(cost(precision="bf16", gpus=8, bs=8, accum=8, parallel=name, **options), gpu)
        for name in ("zero1", "zero2")
    )
    assert one < two
