"""A ledger through the caching allocator: the block behind every allocation, and what is reserved."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from .allocator import AllocatorConfig, Player
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
    player = Player(ledger.bytes, ledger.side, **dataclasses.asdict(config))
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
