"""The boundary of what fits among candidates in order of growing memory."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["last_that"]

#: How many estimates may leave more than half of the places: steps of memory are not always even.
_MOST_POOR = 3


def last_that(
    fits: Callable[[int], bool],
    guess: int,
    first: int,
    last: int,
    further: Callable[[int], int] | None = None,
) -> int | None:
    """The place before the first that does not fit, found outwards from ``guess``; None if ``first`` does not.

    ``further`` estimates for a place that was tried how far from it the boundary is: back, if it does not fit. What
    contradicts what is known is not believed, nor anything after several that did not halve what is left.
    """
    low, high = first - 1, last + 1
    place, stride, poor = min(max(guess, first), last), 1, -1  # the guess is no estimate yet
    while high - low > 1:
        does, left = fits(place), high - low
        low, high = (place, high) if does else (low, place)
        poor += 2 * (high - low) > left
        is_open = high - low > 2  # else there is one place to try, or none
        expected = place + further(place) if further is not None and poor < _MOST_POOR and is_open else None
        if expected is not None and (low < first or high > last or low <= expected < high):
            stride = max(2 * abs(expected - place), 1)
            place = expected
        elif low < first or high > last:
            place += stride if does else -stride
            stride *= 2
        else:
            place = (low + high) // 2
        place = min(max(place, low + 1), high - 1)
    return None if low < first else low
