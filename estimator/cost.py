"""What a training step computes and moves, read from its play, and how long that takes beside another plan's step.

Floating-point operations are those of matrix products, convolutions and attention kernels, as
``torch.utils.flop_counter`` counts them. Seconds are for comparing plans with each other: no kernel reaches a GPU's
peak, and the share that it does reach is taken to be the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .host import NODE_GPUS
from .parallel.traffic import Traffic
from .units import DType

if TYPE_CHECKING:
    from .gpus import GpuRow
    from .step import Step

__all__ = ["ASSUMPTION", "HOST_ASSUMPTION", "LINK_ASSUMPTION", "Cost", "cost_of", "seconds"]

#: Shares of the peak rates, and the time until the next kernel of an eager step starts: judgement, see ASSUMPTION.
_MATH_EFFICIENCY = 0.5
_BANDWIDTH_EFFICIENCY = 0.8
_SECONDS_PER_KERNEL = 5e-6
_LINK_EFFICIENCY = 0.7
_HOST_GB_PER_S = 100

ASSUMPTION = (
    f"relative times: {_MATH_EFFICIENCY:.0%} of the GPU's peak FLOP/s (fp32 without TF32), "
    f"{_BANDWIDTH_EFFICIENCY:.0%} of its bandwidth, at least {_SECONDS_PER_KERNEL * 1e6:g} us per kernel; every tensor "
    "is written once and read once; data loading is not counted"
)

#: What holds for several GPUs, and for states in host memory.
LINK_ASSUMPTION = (
    f"communication: {_LINK_EFFICIENCY:.0%} of NVLink's rate where it joins all GPUs, else of PCI Express with 16 "
    f"lanes, within one machine of up to {NODE_GPUS}; GeForce cards through the host's memory, {_HOST_GB_PER_S} GB/s "
    "for all of them; the engine's own volumes, hidden behind the work that they run beside"
)
HOST_ASSUMPTION = (
    f"offload: {_LINK_EFFICIENCY:.0%} of PCI Express with 16 lanes, and {_HOST_GB_PER_S} GB/s of host memory for the "
    "update of all GPUs together"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One optimizer step on one GPU, all its micro-steps together.

    ``backward_flops`` are without what checkpointing computes again, ``recompute_flops``; ``low_flops`` is the part of
    all three with 16-bit operands that the GPU has units for: bf16 before sm80 goes through fp32's. ``layer_flops`` has
    the rows of the per-layer table. ``moved_bytes`` are the tensors of the forward and backward passes,
    ``optimizer_bytes`` what the update reads and writes; ``traffic`` leaves the GPU.
    """

    forward_flops: int
    backward_flops: int
    recompute_flops: int
    low_flops: int
    layer_flops: Mapping[str, int]
    moved_bytes: int
    optimizer_bytes: int
    num_kernels: int
    traffic: Traffic

    @property
    def flops(self) -> int:
        """All of the step."""
        return self.forward_flops + self.backward_flops + self.recompute_flops


def cost_of(step: Step) -> Cost:
    """The first step that later ones repeat, also of a play that has gone on.

    Its every micro-step computes what the others do: not all of them are played.
    """
    run, accum = step.run, step.settings.accum
    names = [name for name, _ in run.phases]
    phases = _phases(step)
    first = phases.start
    played = names[first : phases.stop].count("backward")
    parts = dict.fromkeys(("forward", "backward", "recompute", "low"), 0)
    layers: dict[str, int] = {}
    for product in run.products:
        if product.phase not in phases:
            continue
        flops = product.flops * accum // played
        parts["recompute" if product.recomputed else names[product.phase]] += flops
        layers[product.layer] = layers.get(product.layer, 0) + flops
        if product.dtype.size == 2 and (product.dtype is not DType.bfloat16 or run.kernels.has_bfloat16):
            parts["low"] += flops
    made = list(_made(step))
    passes = [size for name, kind, size in made if name != "optimizer_step" and kind != "inputs"]
    update = [size for name, _, size in made if name == "optimizer_step"]
    return Cost(
        forward_flops=parts["forward"],
        backward_flops=parts["backward"],
        recompute_flops=parts["recompute"],
        low_flops=parts["low"],
        layer_flops=layers,
        moved_bytes=2 * sum(passes) * accum // played,
        optimizer_bytes=2 * sum(update) + _updated_bytes(step),
        num_kernels=len(passes) * accum // played + len(update),
        traffic=step.strategy.traffic(),
    )


def _phases(step: Step) -> range:
    run, last = step.run, step.strategy.num_steps - 1
    return range(run.steps[last], run.steps[last + 1] if last + 1 < len(run.steps) else len(run.phases))


def _made(step: Step) -> Iterator[tuple[str, str, int]]:
    """Phase, kind and bytes of every allocation of the step."""
    run = step.run
    starts = [start for _, start in run.phases] + [len(run.events)]
    for phase in _phases(step):
        name, start, end = run.phases[phase][0], starts[phase], starts[phase + 1]
        for event in run.events[start:end]:
            if event >= 0:
                num_bytes, kind, _ = run.allocations[event]
                yield name, kind, num_bytes


def _updated_bytes(step: Step) -> int:
    """What is there before the update and changes in place: parameters and state are read and written, gradients read;
    unscaling and clipping each read and write the gradients once more. An engine that updates by itself does so for a
    part, or on the host."""
    run = step.run
    if step.strategy.traffic().host_memory_bytes:
        return 0
    events = set(run.events)
    rows = enumerate(run.allocations)
    states = sum([size for i, (size, kind, _) in rows if kind == "optimizer_state" and ~i not in events])
    parameters = gradients = sum(p.num_bytes for p in step.updated.values()) // step.strategy.num_parts
    passes = 1 + 2 * bool(step.scaler) + (2 if step.settings.loop == "trainer" else 0)
    return 2 * parameters + 2 * states + passes * gradients


def seconds(cost: Cost, gpu: GpuRow) -> float:
    """The time of a step for comparing plans: products at their type's rate and everything else at the bandwidth, or
    the launches where these take longer, and what of the communication nothing hides."""
    math = cost.low_flops / gpu.tensor_tflops + (cost.flops - cost.low_flops) / gpu.fp32_tflops
    moved = (cost.moved_bytes + cost.optimizer_bytes) / (gpu.bandwidth_gb_per_s * 1e9)
    busy = math / (_MATH_EFFICIENCY * 1e12) + moved / _BANDWIDTH_EFFICIENCY
    busy = max(busy, cost.num_kernels * _SECONDS_PER_KERNEL)
    return busy + _exposed_seconds(cost.traffic, gpu, busy)


def _exposed_seconds(traffic: Traffic, gpu: GpuRow, busy: float) -> float:
    """What a step of ``busy`` seconds waits for: links, the host's link, and the update in host memory."""
    link, host_link = (rate * _LINK_EFFICIENCY * 1e9 for rate in (gpu.link_gb_per_s, gpu.pcie_gb_per_s))
    if not gpu.reaches_peers:  # every rank's bytes are written to the host's memory and read there
        link = min(link, _HOST_GB_PER_S * 1e9 / (2 * min(traffic.ranks, NODE_GPUS)))
    beside = max(traffic.hideable_bytes / link - traffic.hiding_share * busy, 0)
    alone = (traffic.link_bytes - traffic.hideable_bytes) / link
    host = traffic.host_link_bytes / host_link + traffic.host_memory_bytes / (_HOST_GB_PER_S * 1e9)
    return beside + alone + host
