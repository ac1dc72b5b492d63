"""What an engine's configuration costs on a small model, and what to write instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, NotModelled
from ..units import format_bytes
from .fsdp_advice import fsdp_advice
from .rivals import following, peak_of
from .zero_config import ZeroConfig, hidden_size

if TYPE_CHECKING:
    from ..allocator import AllocatorConfig
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["advice"]


def advice(step: Step, peak_bytes: int, allocator: AllocatorConfig) -> tuple[str, ...]:
    """On the step of resolved settings with ZeRO or FSDP, whose estimate says ``peak_bytes``; nothing without."""
    parallel = step.settings.parallel or ""
    if parallel == "fsdp":
        return tuple(fsdp_advice(step))
    if not parallel.startswith("zero"):
        return ()
    config = ZeroConfig.of(step.settings, step.plan)
    return (
        *_on_buckets(step, config, peak_bytes, allocator),
        *(_on_convolutions(step, config) if config.stage == 3 else ()),
    )


def _on_buckets(step: Step, config: ZeroConfig, needed: int, allocator: AllocatorConfig) -> Iterator[str]:
    """A bucket has its full size whatever the model's: the same step with a smaller one, and with less of ZeRO."""
    numel = sum(p.numel for p in step.trained.values())
    if config.reduce_bucket_size <= numel:
        return
    settings, count = step.settings, 1 + (config.overlap_comm and config.stage < 3)
    smaller, same = _smaller(step), following(settings, getattr(step.strategy, "rank", 0))
    options = {**dict(same.zero_options), "reduce_bucket_size": smaller}
    fixed = peak_of(step, dataclasses.replace(same, zero_options=tuple(options.items())), allocator)
    rivals = {"ddp": {"parallel": "ddp", "zero_options": ()}, "zero1": {"parallel": "zero1"}}
    less = [
        f"--parallel {name} needs {format_bytes(peak)}"
        for name, changes in rivals.items()
        if settings.offload == "none"
        and name != settings.parallel
        and (peak := _of_rival(step, dataclasses.replace(settings, **changes), allocator)) is not None  # type: ignore[arg-type]
        and peak < needed
    ]
    buckets = format_bytes(count * config.reduce_bucket_size * step.dtype.size)
    yield (
        f"reduce_bucket_size {config.reduce_bucket_size:,} is {buckets} whatever the model, more than the gradients of "
        f"its {numel:,} parameters: the step needs {format_bytes(needed)}{''.join(f', {text}' for text in less)}; "
        f'with "reduce_bucket_size": {smaller} in the DeepSpeed file it needs {format_bytes(fixed)}'
    )


def _of_rival(step: Step, settings: TrainSettings, allocator: AllocatorConfig) -> int | None:
    """The peak of another engine in bytes; None where it does not train this model."""
    try:
        return peak_of(step, settings, allocator)
    except (InvalidRequest, NotModelled):
        return None


def _smaller(step: Step) -> int:
    """What Trainer fills ``auto`` with, or the largest parameter."""
    try:
        width = hidden_size(step.settings, step.plan)
    except InvalidRequest:
        return max(p.numel for p in step.trained.values())
    return width * width


def _on_convolutions(step: Step, config: ZeroConfig) -> Iterator[str]:
    """A convolution that something calls past its module finds what stage 3 leaves of its weight."""
    for name, p in step.trained.items():
        if len(p.shape) == 4 and p.numel > config.stage3_param_persistence_threshold:
            yield (
                f"ZeRO-3 empties {name} between its uses: code that runs the convolution past DeepSpeed's hooks ends "
                "with 'weight should have at least three dimensions' (github.com/deepspeedai/DeepSpeed/issues/7518); "
                f'"stage3_param_persistence_threshold": {p.numel} keeps it whole'
            )
