"""The caching allocator without options in one loop: nearly every training uses it, and an estimate asks it often.

The rules are those of ``caching.py``, which is the place to read them, and ``_default.c`` is the same in C, which takes
this one's place where it could be built. Here blocks are numbers. Sizes and addresses count 512 bytes, a cached block
is ``size << _BITS | address``, and no address is used by two segments, which have a gap between them: blocks that touch
are of one segment, and the lower address is that of the older segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from .block import MIN_BLOCK, SMALL_SIZE, segment_size

__all__ = ["DefaultAllocator"]

_BITS = 48  # of an address
_ADDRESS = (1 << _BITS) - 1
_SMALL = SMALL_SIZE // MIN_BLOCK


class DefaultAllocator:
    """Replays the allocations of these ``requests``; ``side`` are the streams of those of another than the main one.

    Raises OverflowError beyond 128 PiB.
    """

    def __init__(self, requests: Sequence[int], side: Mapping[int, int], capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = self.max_reserved = self.num_retries = 0
        self._requests = [-(-request // MIN_BLOCK) for request in requests]
        self._sizes = [0] * len(requests)
        self._addresses = [0] * len(requests)
        pools: dict[int, tuple[list[int], list[int]]] = {stream: ([], []) for stream in {0, *side.values()}}
        small, large = pools[0]
        self._pools = [large if size > _SMALL else small for size in self._requests]
        for i, stream in side.items():
            self._pools[i] = pools[stream][self._requests[i] > _SMALL]
        self._cached = [cached for pool in pools.values() for cached in pool]
        self._stops: dict[int, int] = {}  # of cached blocks, by where they start
        self._starts: dict[int, int] = {}  # and the other way round
        self._segments: dict[int, int] = {}  # where they stop, by where they start
        self._top = 1

    @property
    def sizes(self) -> list[int]:
        """The bytes of the block that each allocation got; 0 for one that asked for nothing."""
        return [size * MIN_BLOCK for size in self._sizes]

    def play(self, events: Sequence[int]) -> int | None:
        """Allocations and frees in order; the place of the one that ran out of memory."""
        requests, sizes, addresses, pools = self._requests, self._sizes, self._addresses, self._pools
        starts, stops = self._starts, self._stops
        starts_pop, stops_pop = starts.pop, stops.pop
        for event in events:
            if event >= 0:
                if not (size := requests[event]):
                    continue
                cached = pools[event]
                at = bisect_left(cached, size << _BITS)
                found = cached.pop(at) if at < len(cached) else self._from_new_segment(size)
                if not found:
                    return events.index(event)
                addresses[event] = start = found & _ADDRESS
                rest = (found >> _BITS) - size
                stop = stops_pop(start)
                if rest > _SMALL or (rest and size <= _SMALL):
                    sizes[event] = size
                    start += size
                    insort(cached, rest << _BITS | start)
                    stops[start] = stop
                    starts[stop] = start
                else:
                    sizes[event] = size + rest
                    del starts[stop]
            elif size := sizes[~event]:
                cached = pools[~event]
                start = addresses[~event]
                stop = start + size
                if before := starts_pop(start, 0):
                    del cached[bisect_left(cached, start - before << _BITS | before)]
                    start = before
                if after := stops_pop(stop, 0):
                    del cached[bisect_left(cached, after - stop << _BITS | stop)]
                    stop = after
                insort(cached, stop - start << _BITS | start)
                stops[start] = stop
                starts[stop] = start
        return None

    def release_cached(self) -> None:
        """``torch.cuda.empty_cache()``: whole cached segments go back to the driver."""
        for cached in self._cached:
            kept = []
            for block in cached:
                start, size = block & _ADDRESS, block >> _BITS
                if self._segments.get(start) != start + size:
                    kept.append(block)
                    continue
                del self._segments[start], self._stops[start], self._starts[start + size]
                self.reserved -= size * MIN_BLOCK
            cached[:] = kept

    def _from_new_segment(self, size: int) -> int:
        """The block that is a new segment, after a retry without what is cached; 0 where there is no room."""
        num_bytes = segment_size(size * MIN_BLOCK)
        if self._is_full(num_bytes):
            self.release_cached()
            self.num_retries += 1
            if self._is_full(num_bytes):
                return 0
        self.reserved += num_bytes
        self.max_reserved = max(self.max_reserved, self.reserved)
        start, length = self._top, num_bytes // MIN_BLOCK
        self._top += length + 1
        if self._top > _ADDRESS:
            raise OverflowError("more than 128 PiB")
        self._segments[start] = self._stops[start] = start + length
        self._starts[start + length] = start
        return length << _BITS | start

    def _is_full(self, num_bytes: int) -> bool:
        return self.capacity is not None and self.reserved + num_bytes > self.capacity
