"""Candidates in order of growing memory, and the last of them that fits: most are only asked whether they do."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache

from .candidate import Candidate
from .errors import NoFamily, NotModelled
from .pipeline import estimate_settings
from .result import Estimate
from .searching import last_that
from .settings import TrainSettings
from .straight import line_through

__all__ = ["Row", "candidate_of"]


def candidate_of(settings: TrainSettings) -> Candidate:
    """Raises NotModelled where no family covers the model: a rehearsal does not tell whether it fits."""
    try:
        return Candidate(settings)
    except NoFamily:
        name = estimate_settings(settings).model.name
        raise NotModelled(f"{name}: only its tensors are known, not whether it fits") from None


class Row:
    """``amounts[place]`` is what a candidate has of what grows, images or pixels, and ``at(place)`` its settings.

    Each is played once. ``stands(place)`` is the place whose candidate is there: itself, or one below where the
    library refuses what would be.
    """

    def __init__(
        self, at: Callable[[int], TrainSettings], amounts: Sequence[int], stands: Callable[[int], int] = int
    ) -> None:
        self._at, self._amounts, self._stands = at, amounts, stands
        self._tried: dict[int, Candidate] = {}

    def candidate(self, place: int) -> Candidate:
        """What stands at a place."""
        place = self._stands(place)
        if place not in self._tried:
            self._tried[place] = candidate_of(self._at(place))
        return self._tried[place]

    def estimate(self, place: int) -> Estimate:
        """All that there is to say of a place."""
        seen, larger = self.candidate(place), self._tried.get(place + 1)
        one_more = None
        if larger is not None and dataclasses.replace(seen.settings, bs=seen.settings.bs + 1) == larger.settings:
            one_more = larger.requested_bytes - seen.requested_bytes
        return seen.estimate(one_more)

    def last_that_fits(self, asked: int) -> int | None:
        """The place before the first that does not fit, None if the first does not; ``asked`` is one to begin with."""
        begin = self.candidate(asked)
        grows = max(begin.growing_bytes // self._amounts[asked], 1)
        guess = asked + self._reach(asked, begin.expected_spare_bytes, grows)
        return last_that(lambda place: self.candidate(place).fits, guess, 0, len(self._amounts) - 1, self._further)

    def _place_of(self, amount: int) -> int:
        return max(bisect_right(self._amounts, amount) - 1, 0)

    def _reach(self, place: int, spare_bytes: int, slope: int) -> int:
        """By how many places a candidate may grow that spares so much; below 0 where it has to shrink."""
        return self._place_of(self._amounts[place] + spare_bytes // slope) - place

    def _nearest(self, place: int) -> int:
        """The nearest other place that was tried; itself where there is none."""
        return min(
            (other for other in self._tried if other != place), key=lambda other: abs(other - place), default=place
        )

    def _slope(self, place: int) -> int:
        """Bytes per image or pixel, at least 1, between a place and the nearest other one."""
        other = self._nearest(place)
        more = self._tried[other].requested_bytes - self._tried[place].requested_bytes
        return max(more // (self._amounts[other] - self._amounts[place] or 1), 1)

    def _further(self, place: int) -> int:
        """How far the boundary should be from a place that was tried: by the straight line through it and the nearest
        other one, else by the slope of what is requested."""
        seen, place = self.candidate(place), self._stands(place)
        other, slope = self._nearest(place), self._slope(place)
        guess = self._reach(place, seen.spare_bytes, slope)
        line = line_through(seen, self._tried[other], self._amounts[place], self._amounts[other])
        if line is None:
            return guess

        @cache
        def spare(at: int) -> int:
            return line.spare_bytes(self._amounts[at])

        boundary = last_that(
            lambda at: spare(at) >= 0,
            place + guess,
            0,
            len(self._amounts) - 1,
            lambda at: self._reach(at, spare(at), slope),
        )
        return (-1 if boundary is None else boundary) - place
