"""A ledger through the caching allocator: the block behind every allocation, and what is reserved."""

from __future__ import annotations

from typing import NamedTuple

from .allocator import AllocatorConfig, Block, CachingAllocator, OutOfMemory
from .ledger import Ledger

__all__ = ["Replay", "replay"]


class Replay(NamedTuple):
    """``blocks[i]`` is the size of the block that allocation ``i`` got: rounded up, and with what was not split off.

    ``reserved_bytes`` is the most that segments ever took. ``failed`` is the event that ran out of memory, None where
    everything fitted; what comes after it did not happen.
    """

    blocks: tuple[int, ...]
    reserved_bytes: int
    num_retries: int
    failed: int | None


def replay(ledger: Ledger, config: AllocatorConfig | None = None) -> Replay:
    """Every allocation and free of ``ledger`` in order, from an empty allocator on."""
    allocator = CachingAllocator(config)
    malloc, free = allocator.malloc, allocator.free
    requests, side = ledger.bytes, ledger.side
    sizes = [0] * len(requests)
    living: dict[int, Block] = {}
    failed = None
    for place, event in enumerate(ledger.events):
        if event < 0:
            if (block := living.pop(~event, None)) is not None:
                free(block)
        elif request := requests[event]:  # an empty tensor asks for nothing
            try:
                block = malloc(request, 1 if event in side else 0)
            except OutOfMemory:
                failed = place
                break
            living[event] = block
            sizes[event] = block.size
    return Replay(
        blocks=tuple(sizes),
        reserved_bytes=allocator.max_reserved,
        num_retries=allocator.num_retries,
        failed=failed,
    )
