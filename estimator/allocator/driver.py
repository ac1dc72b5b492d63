"""The device below the allocator: how much of it is taken, and which addresses."""

from __future__ import annotations

from bisect import insort

from .block import ROUND_LARGE

__all__ = ["Driver"]

#: More than any machine has, and less than what overflows in C.
_MOST = 128 * 2**50


class Driver:
    """``cudaMalloc`` and ``cudaFree``: ``reserved`` bytes are out, of ``capacity`` (None: no limit)."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.reserved = self.max_reserved = 0
        self._top = 0  # the end of the address space that is in use
        self._holes: list[tuple[int, int]] = []  # (address, size) of what was given back before it

    def reserve(self, num_bytes: int) -> bool:
        """Take memory if there is enough."""
        if self.capacity is not None and self.reserved + num_bytes > self.capacity:
            return False
        self.reserved += num_bytes
        self.max_reserved = max(self.max_reserved, self.reserved)
        return True

    def release(self, num_bytes: int) -> None:
        """Give memory back."""
        self.reserved -= num_bytes

    def address(self, size: int) -> int:
        """The first hole that is large enough, else behind everything; raises OverflowError beyond 128 PiB."""
        size = -(-size // ROUND_LARGE) * ROUND_LARGE
        for i, (address, room) in enumerate(self._holes):
            if room >= size:
                self._holes[i : i + 1] = [(address + size, room - size)] if room > size else []
                return address
        self._top += size
        if self._top > _MOST:
            raise OverflowError("more than 128 PiB")
        return self._top - size

    def give_back(self, address: int, size: int) -> None:
        """``cudaFree``: memory and addresses."""
        self.release(size)
        insort(self._holes, (address, -(-size // ROUND_LARGE) * ROUND_LARGE))
        joined: list[tuple[int, int]] = []
        for start, room in self._holes:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        if sum(joined[-1]) == self._top:
            self._top = joined.pop()[0]
        self._holes = joined
