"""Whether memory at the same point of every step grows. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median

__all__ = ["MIN_BYTES_PER_STEP", "Leak", "find_leak"]

#: The least that PyTorch's CUDA allocator hands out (kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp).
MIN_BYTES_PER_STEP = 512
#: The first steps make the optimizer's state, the scaler and cached workspaces.
_WARM_UP = 3
_FEWEST = 8
_MOST = 64
_SHARE = 0.9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Growth from step to step, between two steps (counted from 0)."""

    bytes_per_step: int
    first_step: int
    last_step: int


def find_leak(points: Sequence[tuple[int, int]]) -> Leak | None:
    """``points`` are (step, bytes in use) at the same point of each step; None where they do not keep growing.

    Mann-Kendall and Theil-Sen: at least nine of ten pairs of points have the later one above, and the median slope of
    all pairs is a block per step or more. A cache that fills once, a smaller last batch or a spike are no leak.
    """
    steady = points[_WARM_UP:]
    if len(steady) < _FEWEST:
        return None
    stride = -(-len(steady) // _MOST)
    chosen = steady[::stride]
    slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in _pairs(chosen)]
    slope = median(slopes)
    if sum(one > 0 for one in slopes) < _SHARE * len(slopes) or slope < MIN_BYTES_PER_STEP:
        return None
    return Leak(bytes_per_step=round(slope), first_step=chosen[0][0], last_step=chosen[-1][0])


def _pairs(points: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [(earlier, later) for place, earlier in enumerate(points) for later in points[place + 1 :]]
