"""The sweep over a ledger: totals over time, the peaks, and what is alive at them. No other module knows order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .ledger import Ledger

__all__ = ["Moment", "PhaseSummary", "phase_summaries", "snapshot"]

#: Kinds that a kernel borrows: allocated, but no tensor of the program.
NOT_TENSORS = frozenset({"workspaces", "rounding"})

#: The caching allocator hands out multiples of this (c10/core/CachingDeviceAllocator.h, kMinBlockSize).
BLOCK_BYTES = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in time: ``event`` events have happened; the totals are those after the last of them."""

    event: int
    tensor_bytes: int
    allocated_bytes: int
    phase: str
    layer: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSummary:
    """One phase of the ledger: the moments of its two peaks, and the totals at its end."""

    name: str
    tensor_peak: Moment
    allocated_peak: Moment
    end: Moment


def rounded(num_bytes: int) -> int:
    """What the allocator gives for a request."""
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES


def phase_summaries(ledger: Ledger) -> list[PhaseSummary]:
    """One summary per entry of ``ledger.phases``, in order; the same name may come several times."""
    tensor_sizes = [0 if kind in NOT_TENSORS else size for size, kind in zip(ledger.bytes, ledger.kinds)]
    block_sizes = [rounded(size) for size in ledger.bytes]
    summaries = []
    tensors = blocks = 0
    for name, first, last in _spans(ledger):
        best_tensors = best_blocks = (-1, first, first)
        at_tensors = at_blocks = first
        max_tensors, max_blocks = tensors, blocks
        for position, event in enumerate(ledger.events[first:last], first + 1):
            if event >= 0:
                tensors += tensor_sizes[event]
                blocks += block_sizes[event]
                if tensors > max_tensors:
                    max_tensors, at_tensors, best_tensors = tensors, position, (event, tensors, blocks)
                if blocks > max_blocks:
                    max_blocks, at_blocks, best_blocks = blocks, position, (event, tensors, blocks)
            else:
                tensors -= tensor_sizes[~event]
                blocks -= block_sizes[~event]
        summaries.append(
            PhaseSummary(
                name=name,
                tensor_peak=_moment(ledger, name, at_tensors, best_tensors[0], max_tensors),
                allocated_peak=_moment(ledger, name, at_blocks, best_blocks[0], max_blocks),
                end=Moment(event=last, tensor_bytes=tensors, allocated_bytes=blocks, phase=name, layer="model"),
            )
        )
    return summaries


def _moment(ledger: Ledger, phase: str, position: int, allocation: int, total: int) -> Moment:
    layer = ledger.layers[allocation] if allocation >= 0 else "model"
    return Moment(event=position, tensor_bytes=total, allocated_bytes=total, phase=phase, layer=layer)


def _spans(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    ends = [first for _, first in ledger.phases[1:]] + [len(ledger.events)]
    for (name, first), last in zip(ledger.phases, ends):
        yield name, first, last


def alive(ledger: Ledger, event: int) -> set[int]:
    """The allocations alive after the first ``event`` events."""
    living: set[int] = set()
    for happened in ledger.events[:event]:
        if happened >= 0:
            living.add(happened)
        else:
            living.discard(~happened)
    return living


def snapshot(ledger: Ledger, event: int) -> dict[str, int]:
    """Bytes by kind alive after ``event`` events, ``rounding`` included: they add up to the allocated total."""
    by_kind: dict[str, int] = {}
    rounding = 0
    for i in alive(ledger, event):
        size, kind = ledger.bytes[i], ledger.kinds[i]
        by_kind[kind] = by_kind.get(kind, 0) + size
        rounding += rounded(size) - size
    by_kind["rounding"] = rounding
    return by_kind
