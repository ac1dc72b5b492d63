"""The boundary of what fits among candidates in order of growing memory."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["last_that"]

#: How often the distance that is left is believed: steps of memory are not always even.
_MOST_ESTIMATES = 4


def last_that(
    fits: Callable[[int], bool],
    guess: int,
    first: int,
    last: int,
    further: Callable[[int], int] | None = None,
) -> int | None:
    """The place before the first that does not fit, found outwards from ``guess``; None if ``first`` does not.

    ``further`` estimates for a place that was tried how far from it the boundary is: back, if it does not fit.
    """
    low, high = first - 1, last + 1
    place, stride, tries = min(max(guess, first), last), 1, 0
    while high - low > 1:
        does = fits(place)
        low, high = (place, high) if does else (low, place)
        tries += 1
        if further is not None and tries <= _MOST_ESTIMATES:
            place += further(place)
        elif low < first or high > last:
            place += stride if does else -stride
            stride *= 2
        else:
            place = (low + high) // 2
        place = min(max(place, low + 1), high - 1)
    return None if low < first else low
