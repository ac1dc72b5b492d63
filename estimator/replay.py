"""A ledger through the caching allocator: the block behind every allocation, and what is reserved."""

from __future__ import annotations

from typing import NamedTuple

from .allocator import AllocatorConfig, Block, CachingAllocator, OutOfMemory
from .ledger import Ledger

__all__ = ["Replay", "replay"]


class Replay(NamedTuple):
    """``blocks[i]`` is the size of the block that allocation ``i`` got: rounded up, and with what was not split off.

    ``reserved_bytes`` is the most that segments ever took. ``failed`` is the event that ran out of memory, None where
    everything fitted; what comes after it did not happen. ``reserved_at`` is the most up to each event asked for.
    """

    blocks: tuple[int, ...]
    reserved_bytes: int
    num_retries: int
    failed: int | None
    reserved_at: tuple[int, ...] = ()


def replay(ledger: Ledger, config: AllocatorConfig | None = None, *, marks: tuple[int, ...] = ()) -> Replay:
    """Every allocation and free of ``ledger`` in order, from an empty allocator on; ``marks`` are events."""
    allocator = CachingAllocator(config)
    sizes = [0] * len(ledger.bytes)
    living: dict[int, Block] = {}
    reserved: dict[int, int] = {}
    start, failed = 0, None
    for stop in sorted({*marks, *ledger.releases, len(ledger.events)}):
        failed = _stretch(allocator, ledger, range(start, stop), living, sizes)
        reserved[stop] = allocator.max_reserved
        if failed is not None:
            break
        if stop in ledger.releases:
            allocator.release_cached()
        start = stop
    return Replay(
        blocks=tuple(sizes),
        reserved_bytes=allocator.max_reserved,
        num_retries=allocator.num_retries,
        failed=failed,
        reserved_at=tuple(reserved.get(mark, allocator.max_reserved) for mark in marks),
    )


def _stretch(
    allocator: CachingAllocator, ledger: Ledger, places: range, living: dict[int, Block], sizes: list[int]
) -> int | None:
    """The events of these places; the one that ran out of memory."""
    malloc, free = allocator.malloc, allocator.free
    requests, side, start = ledger.bytes, ledger.side, places.start
    for place, event in enumerate(ledger.events[start : places.stop], start):
        if event < 0:
            if (block := living.pop(~event, None)) is not None:
                free(block)
        elif request := requests[event]:  # an empty tensor asks for nothing
            try:
                block = malloc(request, side.get(event, 0))
            except OutOfMemory:
                return place
            living[event] = block
            sizes[event] = block.size
    return None
