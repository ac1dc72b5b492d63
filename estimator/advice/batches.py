"""Micro-batches and micro-steps that make up an effective batch."""

from __future__ import annotations

import dataclasses

from ..errors import InvalidRequest
from ..settings import TrainSettings

__all__ = ["batches", "checked_accum", "checked_share", "with_batch"]

#: Larger micro-batches and more micro-steps are not tried.
_MAX_BS, _MAX_ACCUM = 1 << 20, 1024

_NO_BATCHES = (
    f"{{:,}} images per GPU and update are no whole number of {{}}micro-batches of up to {_MAX_BS:,} images in up to "
    f"{_MAX_ACCUM:,} micro-steps; choose another --effective-batch"
)


def batches(settings: TrainSettings, per_gpu: int) -> list[int]:
    """The micro-batches that make up ``per_gpu`` images in whole micro-steps, the smallest first: up to a million
    images, in up to a thousand micro-steps. Raises InvalidRequest where there are none."""
    step = 2 if settings.mixup and settings.loop == "timm" else 1  # timm mixes the halves of a batch
    first = -(-per_gpu // (_MAX_ACCUM * step)) * step
    sizes = [bs for bs in range(max(first, step), min(per_gpu, _MAX_BS) + 1, step) if per_gpu % bs == 0]
    if not sizes:
        raise InvalidRequest(_NO_BATCHES.format(per_gpu, "even " if step == 2 else ""))
    return sizes


def with_batch(settings: TrainSettings, bs: int, per_gpu: int) -> TrainSettings:
    """``settings`` with the accumulation that keeps the effective batch."""
    return dataclasses.replace(settings, bs=bs, accum=per_gpu // bs)


def checked_share(effective_batch: int, gpus: int) -> int:
    """The images of one GPU per step; raises InvalidRequest where the GPUs do not share the batch evenly."""
    if isinstance(effective_batch, bool) or not isinstance(effective_batch, int) or effective_batch < 1:
        raise InvalidRequest(f"effective batch {effective_batch!r} is not valid; it must be a whole number, at least 1")
    if rest := effective_batch % gpus:
        below, above = effective_batch - rest, effective_batch - rest + gpus
        raise InvalidRequest(_not_met(f"cannot be shared by {gpus} GPUs", effective_batch, below, above))
    return effective_batch // gpus


def checked_accum(effective_batch: int, gpus: int, bs: int) -> int:
    """The micro-steps of ``bs`` images, where that stays; raises InvalidRequest where they do not add up."""
    step = bs * gpus
    if rest := effective_batch % step:
        below, above = effective_batch - rest, effective_batch - rest + step
        why = f"is no multiple of {step} ({bs} images x {gpus})"
        raise InvalidRequest(_not_met(why, effective_batch, below, above))
    return effective_batch // step


def _not_met(why: str, effective_batch: int, below: int, above: int) -> str:
    near = " or ".join(str(batch) for batch in (below, above) if batch)
    return (
        f"effective batch {effective_batch} {why}; use {near}, and scale the learning rate by the same factor (SGD) or "
        "by its root (Adam)"
    )
