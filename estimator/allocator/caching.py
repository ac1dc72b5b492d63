"""PyTorch's caching allocator, replayed: what a list of allocations makes it reserve, and whether it runs out.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.14. Sizes in bytes. Of two cached blocks of one size
the one in the older segment is taken, not the one at the lower address (seen in torch 2.14.1).
"""

from __future__ import annotations

from bisect import bisect_left

from .block import (
    LARGE_SEGMENT,
    MAX_NON_SPLIT,
    MIN_BLOCK,
    SMALL_SEGMENT,
    SMALL_SIZE,
    Block,
    Pool,
    segment_size,
)
from .config import AllocatorConfig
from .driver import Driver

__all__ = ["CachingAllocator", "OutOfMemory"]


class OutOfMemory(Exception):
    """No segment for a request, also after everything that is cached was given back."""

    def __init__(self, requested: int) -> None:
        super().__init__(requested)
        self.requested = requested


class CachingAllocator:
    """``allocated`` and ``reserved`` are torch's ``memory_allocated()`` and ``memory_reserved()``."""

    def __init__(self, config: AllocatorConfig | None = None) -> None:
        self.config = config or AllocatorConfig()
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.driver = Driver(self.config.capacity)
        self.allocated = 0
        self.num_retries = 0
        self._segments = 0  # made so far
        self._takes_first = not self.config.expandable_segments and self.config.max_split_size is None

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return self.driver.reserved

    @property
    def max_reserved(self) -> int:
        """The most that was ever reserved."""
        return self.driver.max_reserved

    def malloc(self, num_bytes: int, stream: int = 0) -> Block:
        """The block for a request of ``num_bytes`` > 0; raises OutOfMemory. Streams share no blocks."""
        size = -(-num_bytes // MIN_BLOCK) * MIN_BLOCK  # rounded(), once per allocation of a run
        pool = self.pools.get((stream, size <= SMALL_SIZE)) or self._new_pool(stream, size <= SMALL_SIZE)
        order = pool.order
        at = bisect_left(order, (size,))
        block = None
        if at < len(order):
            block = order.pop(at)[3] if self._takes_first else self._chosen(pool, at, size)
        if block is None:
            block = self._new_block(pool, size) or self._retry(pool, size)
        if block is None:
            raise OutOfMemory(num_bytes)
        if block.size - size > pool.largest_rest and not self._is_oversized(size):
            pool.add(self._cut(block, size))
        block.allocated = True
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Back into its pool, joined with free neighbours."""
        self.allocated -= block.size
        block.allocated = False
        self._merge_neighbours(block)
        block.pool.add(block)

    def release_cached(self) -> None:
        """``torch.cuda.empty_cache()``: whole cached segments go back to the driver."""
        for pool in sorted(self.pools.values(), key=lambda pool: pool.small):
            for *_, block in list(pool.order):
                if self.config.expandable_segments:
                    self._unmap(block)
                elif not block.is_split:
                    pool.remove(block)
                    self.driver.give_back(block.address, block.size)

    def _new_pool(self, stream: int, small: bool) -> Pool:
        splits_all = small or self.config.expandable_segments
        pool = self.pools[stream, small] = Pool(small=small, largest_rest=MIN_BLOCK - 1 if splits_all else SMALL_SIZE)
        return pool

    def _is_oversized(self, size: int) -> bool:
        limit = self.config.max_split_size
        return limit is not None and size >= limit and not self.config.expandable_segments and size > SMALL_SIZE

    # --- finding a block

    def _chosen(self, pool: Pool, at: int, size: int) -> Block | None:
        """Of the cached blocks from ``at`` on, which are large enough, the one that the options leave."""
        if self.config.expandable_segments:
            at = self._least_room(pool, at)
        found = pool.order[at][0]
        limit = self.config.max_split_size
        if limit is not None and (
            size < limit <= found or (size >= limit and found >= size + MAX_NON_SPLIT)
        ):  # an oversized block is neither split nor wasted
            return None
        return pool.order.pop(at)[3]

    @staticmethod
    def _least_room(pool: Pool, at: int) -> int:
        """A block at the end of what is mapped counts as the size that it can grow to."""

        def room(place: int) -> int:
            block = pool.order[place][3]
            after = block.next
            return block.size + (after.size if after is not None and not after.mapped else 0)

        while at + 1 < len(pool.order) and room(at + 1) < room(at):
            at += 1
        return at

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        if self.config.expandable_segments:
            return self._expand(pool, size)
        segment = segment_size(size)
        if not self.driver.reserve(segment):
            return None
        return Block(pool, self._next_segment(), self.driver.address(segment), segment)

    def _retry(self, pool: Pool, size: int) -> Block | None:
        """Give oversized cached blocks back one by one (max_split_size), else everything that is cached."""
        if self._release_oversized(pool, size) and (block := self._new_block(pool, size)):
            return block
        self.release_cached()
        self.num_retries += 1
        return self._new_block(pool, size)

    def _release_oversized(self, pool: Pool, size: int) -> bool:
        """The smallest oversized block that is large enough, else the largest ones until they are together."""
        limit = self.config.max_split_size
        if limit is None or self.config.expandable_segments:
            return False
        wanted = max(size, limit)
        at = bisect_left(pool.order, (wanted,))
        chosen = pool.order[at : at + 1]
        while not chosen or sum(found for found, *_ in chosen) < wanted:
            at -= 1
            if at < 0 or pool.order[at][0] < limit:
                break
            chosen.append(pool.order[at])
        for found, _, address, block in chosen:
            pool.remove(block)
            self.driver.give_back(address, found)
        return sum(found for found, *_ in chosen) >= wanted

    def _next_segment(self) -> int:
        self._segments += 1
        return self._segments

    # --- splitting and joining

    @staticmethod
    def _cut(block: Block, size: int) -> Block:
        """``block`` keeps its first ``size`` bytes; the rest is a block behind it."""
        rest = Block(block.pool, block.segment, block.address + size, block.size - size, block.mapped)
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        return rest

    @staticmethod
    def _merge_neighbours(block: Block) -> None:
        before, after = block.previous, block.next
        if before is not None and not before.allocated and before.mapped is block.mapped:
            before.pool.remove(before) if before.mapped else _forget(before)
            block.address, block.previous = before.address, before.previous
            block.size += before.size
            if block.previous is not None:
                block.previous.next = block
        if after is not None and not after.allocated and after.mapped is block.mapped:
            after.pool.remove(after) if after.mapped else _forget(after)
            block.next = after.next
            block.size += after.size
            if block.next is not None:
                block.next.previous = block

    # --- expandable segments: one address range per pool, mapped page by page

    def _expand(self, pool: Pool, size: int) -> Block | None:
        candidate = self._expandable(pool, size)
        if not candidate.mapped and not self._map(candidate, min(candidate.size, size)):
            return None
        while candidate.size < size:
            after = candidate.next
            assert after is not None
            if not self._map(after, min(size - candidate.size, after.size)):
                return None
            candidate = after
        pool.remove(candidate)
        return candidate

    def _expandable(self, pool: Pool, size: int) -> Block:
        """The lowest run of cached and unmapped blocks with room for ``size``; a new range where there is none."""
        for _, found in sorted(pool.unmapped.items()):
            block = found.previous if found.previous is not None and not found.previous.allocated else found
            room, at = 0, block
            while at is not None and not at.allocated and room < size:
                room += at.size
                at = at.next  # type: ignore[assignment]
            if room >= size:
                return block
        page, device = _page(pool), self.config.device_bytes
        space = -(-max(device + device // 8, size) // page) * page  # more than a device has: only without a capacity
        start = self.driver.address(-(-space // LARGE_SEGMENT) * LARGE_SEGMENT)  # pages count from there
        block = Block(pool, self._next_segment(), start, space, mapped=False)
        pool.unmapped[block.address] = block
        return block

    def _map(self, block: Block, size: int) -> bool:
        page = _page(block.pool)
        mapped = -(-size // page) * page
        if not self.driver.reserve(mapped):
            return False
        _forget(block)
        block.mapped = True
        if mapped < block.size:
            rest = self._cut(block, mapped)
            rest.mapped = False
            block.pool.unmapped[rest.address] = rest
        self._merge_neighbours(block)
        block.pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Whole pages of a cached block go back; what is left on either side stays cached."""
        page = _page(block.pool)
        start = -(-block.address // page) * page
        stop = (block.address + block.size) // page * page
        if stop <= start:
            return
        pool = block.pool
        pool.remove(block)
        if start > block.address:
            front, block = block, self._cut(block, start - block.address)
            pool.add(front)
        if stop < block.address + block.size:
            pool.add(self._cut(block, stop - block.address))
        self.driver.release(block.size)
        block.mapped = False
        self._merge_neighbours(block)
        pool.unmapped[block.address] = block


def _page(pool: Pool) -> int:
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT


def _forget(block: Block) -> None:
    del block.pool.unmapped[block.address]
