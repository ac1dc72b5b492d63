"""Many allocations and frees through one caching allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .block import Block
from .caching import CachingAllocator, OutOfMemory
from .config import AllocatorConfig

__all__ = ["Player"]


class Player:
    """Replays the allocations of these ``requests``, in bytes.

    ``side`` are the streams of those of others than the main one, ``config`` the fields of an AllocatorConfig.

    ``_player.c`` is the same, with the allocator in it, and takes this one's place where it could be built; it raises
    OverflowError beyond 128 PiB.
    """

    def __init__(self, requests: Sequence[int], side: Mapping[int, int], **config: Any) -> None:
        self._requests, self._side = requests, side
        self._sizes = [0] * len(requests)
        self._allocator = CachingAllocator(AllocatorConfig(**config))
        self._living: dict[int, Block] = {}

    @property
    def sizes(self) -> list[int]:
        """The bytes of the block that each allocation got; 0 for one that asked for nothing."""
        return self._sizes

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return self._allocator.reserved

    @property
    def max_reserved(self) -> int:
        """The most that was ever reserved."""
        return self._allocator.max_reserved

    @property
    def num_retries(self) -> int:
        """How often what was cached was given back for want of memory."""
        return self._allocator.num_retries

    def release_cached(self) -> None:
        """``torch.cuda.empty_cache()``."""
        self._allocator.release_cached()

    def play(self, events: Sequence[int]) -> int | None:
        """Allocations (their number) and frees (its complement) in order; the place of the one that ran out of memory.

        A free of what was never allocated is passed over.
        """
        malloc, free, living = self._allocator.malloc, self._allocator.free, self._living
        for place, event in enumerate(events):
            if event < 0:
                if (block := living.pop(~event, None)) is not None:
                    free(block)
            elif request := self._requests[event]:  # an empty tensor asks for nothing
                try:
                    block = malloc(request, self._side.get(event, 0))
                except OutOfMemory:
                    return place
                living[event] = block
                self._sizes[event] = block.size
        return None
