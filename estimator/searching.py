"""The boundary of what fits among candidates in order of growing memory."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["last_that"]


def last_that(fits: Callable[[int], bool], guess: int, first: int, last: int) -> int | None:
    """The place before the first that does not fit, found outwards from ``guess``; None if ``first`` does not."""
    low, high, stride = first - 1, last + 1, 1
    place = min(max(guess, first), last)
    while low < place < high:
        if fits(place):
            low, place = place, place + stride
        else:
            high, place = place, place - stride
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return None if low < first else low
