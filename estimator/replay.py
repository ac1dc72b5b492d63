"""A ledger through the caching allocator: the block behind every allocation, and what is reserved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .allocator import AllocatorConfig, Block, CachingAllocator, DefaultAllocator, OutOfMemory
from .errors import InvalidRequest
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
    """Every allocation and free of ``ledger`` in order, from an empty allocator on; ``marks`` are events.

    Raises InvalidRequest for more than the allocator's addresses can name.
    """
    try:
        return _replayed(ledger, config or AllocatorConfig(), marks)
    except OverflowError:
        raise InvalidRequest("this takes more than 128 PiB; make batch, resolution or model smaller") from None


def _replayed(ledger: Ledger, config: AllocatorConfig, marks: tuple[int, ...]) -> Replay:
    player = _player(ledger, config)
    reserved: dict[int, int] = {}
    start, failed = 0, None
    for stop in sorted({*marks, *ledger.releases, len(ledger.events)}):
        at = player.play(ledger.events[start:stop])
        reserved[stop] = player.max_reserved
        if at is not None:
            failed = start + at
            break
        if stop in ledger.releases:
            player.release_cached()
        start = stop
    return Replay(
        blocks=tuple(player.sizes),
        reserved_bytes=player.max_reserved,
        num_retries=player.num_retries,
        failed=failed,
        reserved_at=tuple(reserved.get(mark, player.max_reserved) for mark in marks),
    )


def _player(ledger: Ledger, config: AllocatorConfig) -> DefaultAllocator | _Player:
    if config.expandable_segments or config.max_split_size is not None:
        return _Player(ledger, config)
    return DefaultAllocator(ledger.bytes, ledger.side, config.capacity)


class _Player:
    """An allocator with options, as :class:`DefaultAllocator` is one without."""

    def __init__(self, ledger: Ledger, config: AllocatorConfig) -> None:
        self.requests, self.side = ledger.bytes, ledger.side
        self.sizes = [0] * len(ledger.bytes)
        self._allocator = CachingAllocator(config)
        self._living: dict[int, Block] = {}

    @property
    def max_reserved(self) -> int:
        return self._allocator.max_reserved

    @property
    def num_retries(self) -> int:
        return self._allocator.num_retries

    def release_cached(self) -> None:
        self._allocator.release_cached()

    def play(self, events: Sequence[int]) -> int | None:
        malloc, free, living = self._allocator.malloc, self._allocator.free, self._living
        for place, event in enumerate(events):
            if event < 0:
                if (block := living.pop(~event, None)) is not None:
                    free(block)
            elif request := self.requests[event]:  # an empty tensor asks for nothing
                try:
                    block = malloc(request, self.side.get(event, 0))
                except OutOfMemory:
                    return place
                living[event] = block
                self.sizes[event] = block.size
        return None
