"""Blocks and the pools that cache them, with the sizes of c10/core/AllocatorConfig.h."""

from __future__ import annotations

from bisect import bisect_left, insort

from ..units import MIB

__all__ = ["Block", "Pool", "rounded", "segment_size"]

MIN_BLOCK = 512  # kMinBlockSize
SMALL_SIZE = MIB  # up to here a request goes to the small pool
SMALL_SEGMENT = 2 * MIB
MIN_LARGE = 10 * MIB  # from here a request gets a segment of its own size
LARGE_SEGMENT = 20 * MIB
ROUND_LARGE = 2 * MIB
MAX_NON_SPLIT = 20 * MIB  # an oversized block may be this much larger than its request


class Block:
    """A part of a segment: handed out, cached, or (expandable segments) address space without memory."""

    __slots__ = ("address", "allocated", "mapped", "next", "pool", "previous", "segment", "size")

    def __init__(self, pool: Pool, segment: int, address: int, size: int, mapped: bool = True) -> None:
        self.pool = pool
        self.segment = segment
        self.address = address
        self.size = size
        self.mapped = mapped
        self.allocated = False
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        return self.previous is not None or self.next is not None


class Pool:
    """Cached blocks in the order of the best fit: by size, then the older segment, then the lower address.

    ``largest_rest``: what is left of a block above its request is split off only if it is larger.
    """

    __slots__ = ("largest_rest", "order", "small", "unmapped")

    def __init__(self, *, small: bool, largest_rest: int) -> None:
        self.small = small
        self.largest_rest = largest_rest
        self.order: list[tuple[int, int, int, Block]] = []  # the address is never the same, so no blocks are compared
        self.unmapped: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self.order, (block.size, block.segment, block.address, block))

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.segment, block.address))]


def rounded(num_bytes: int) -> int:
    """What the allocator hands out for a request of ``num_bytes``: whole blocks of 512 bytes."""
    return -(-num_bytes // MIN_BLOCK) * MIN_BLOCK


def segment_size(size: int) -> int:
    """What is asked of the driver for a rounded request of ``size`` bytes."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
