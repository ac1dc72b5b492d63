"""The largest batch, the largest resolution or the smallest GPU that fits, all else fixed.

A candidate fits where the verdict of its estimate would say yes: what depends on the size of the CUDA context does not
count as fitting. Memory grows with batch and resolution but for small jumps (workspaces, blocks that
are not split): the answer fits, and the next larger candidate does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

from .boundary import Row, candidate_of
from .collector import paused
from .errors import DoesNotFit, InvalidRequest, did_you_mean
from .pipeline import estimate_settings, resolved
from .result import SCHEMA_VERSION, Estimate
from .settings import TrainSettings
from .units import format_bytes

if TYPE_CHECKING:
    from .gpus import GpuRow

__all__ = ["TARGETS", "Solution", "solve_settings"]

#: Nobody trains on more images or pixels at once; a candidate beyond these is not tried.
_MAX_BS = 1 << 20
_MAX_PIXELS = 8192
#: Models with smaller patches merge 2x2 patches three times on the way: multiples of this many pixels need no padding.
_HIERARCHICAL_STEP = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """``value`` fits, as ``estimate`` says; ``next`` is the first candidate that does not, None where all fit."""

    what: str
    value: int | tuple[int, int] | str
    estimate: Estimate
    next: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``vitmem solve``."""
        from . import __version__

        return {
            "schema_version": SCHEMA_VERSION,
            "vitmem_version": __version__,
            "what": self.what,
            "value": list(self.value) if isinstance(self.value, tuple) else self.value,
            "estimate": self.estimate.to_dict(),
            "next": None if self.next is None else self.next.to_dict(),
        }


def solve_settings(what: str, settings: TrainSettings) -> Solution:
    """Solve for ``bs``, ``res`` or ``gpu``; raises ``DoesNotFit`` where no candidate fits."""
    if what not in TARGETS:
        raise InvalidRequest(f"cannot solve for {what!r}{did_you_mean(what, TARGETS) or f'; there is {_listed()}'}")
    if what != "gpu" and settings.gpu is None and settings.memory is None:
        raise InvalidRequest(f"solve {what} needs what it must fit into; add --gpu rtx4090 or --memory 24GiB")
    with paused():
        return TARGETS[what](settings)


def _listed() -> str:
    return ", ".join(TARGETS)


def _does_not_fit(estimate: Estimate, what: str) -> DoesNotFit:
    verdict, peak = estimate.verdict, estimate.peak
    assert verdict is not None
    assert peak.reserved_bytes is not None
    assert peak.device_low_bytes is not None
    assert peak.device_high_bytes is not None
    low, high = (format_bytes(size - peak.reserved_bytes) for size in (peak.device_low_bytes, peak.device_high_bytes))
    needed = format_bytes(verdict["usable_bytes"] - verdict["headroom_bytes"])  # in the phase that takes the most
    in_evaluation = verdict.get("phase") == "evaluation"
    advice = (
        "its evaluation takes the most: try a smaller --eval-bs, or --eval-accum"
        if in_evaluation
        else "try --grad-checkpointing, a 16-bit --precision or a smaller model"
    )
    return DoesNotFit(
        f"{what} does not fit {verdict['gpu']}: it reserves {needed} beside a CUDA context of {low} to {high}; {advice}"
    )


def _solve_bs(settings: TrainSettings) -> Solution:
    unit = 2 if settings.mixup and settings.loop == "timm" else 1  # timm mixes the halves of a batch
    sizes = range(unit, _MAX_BS + 1, unit)
    row = Row(lambda place: dataclasses.replace(settings, bs=sizes[place]), sizes)
    place = row.last_that_fits(min(max(settings.bs // unit, 1), len(sizes)) - 1)
    if place is None:
        raise _does_not_fit(row.estimate(0), f"bs {unit}")
    following = row.estimate(place + 1) if place + 1 < len(sizes) else None
    return Solution(what="bs", value=sizes[place], estimate=row.estimate(place), next=following)


def _solve_res(settings: TrainSettings) -> Solution:
    sizes = _Resolutions(settings)
    row = Row(sizes.settings, [height * width for height, width in sizes.all], sizes.stands)
    place = row.last_that_fits(sizes.native)
    if place is None:
        raise _does_not_fit(row.estimate(0), f"res {'x'.join(map(str, sizes.all[0]))}")
    following = row.estimate(place + 1) if place + 1 < len(sizes.all) else None
    return Solution(what="res", value=sizes.all[sizes.stands(place)], estimate=row.estimate(place), next=following)


class _Resolutions:
    """Multiples of the patch in the proportion of the size that was asked for, from the first that the library takes
    on; where it refuses one, ``stands`` is the next smaller that it takes."""

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self._taken: dict[tuple[int, int], bool] = {}
        plan = resolved(settings)[0]
        (height, width), patch = plan.image_size, plan.patch_size
        down, right = (side if side >= 8 else _HIERARCHICAL_STEP for side in patch)
        multiples = (
            (count * down, max(round(count * down * width / height / right), 1) * right)
            for count in range(1, _MAX_PIXELS // max(down, right) + 1)
        )
        self.all = [*dropwhile(lambda size: not self._is_taken(size), multiples)] or [plan.image_size]
        self.native = min(range(len(self.all)), key=lambda place: abs(self.all[place][0] - height))

    def settings(self, place: int) -> TrainSettings:
        """The candidate of a size."""
        return dataclasses.replace(self._settings, res=self.all[place])

    def stands(self, place: int) -> int:
        """The place of the size that is tried in its stead: itself, if the library takes it."""
        while not self._is_taken(self.all[place]):
            place -= 1
        return place

    def _is_taken(self, size: tuple[int, int]) -> bool:
        if size not in self._taken:
            try:
                resolved(dataclasses.replace(self._settings, res=size))
            except InvalidRequest:
                self._taken[size] = False
            else:
                self._taken[size] = True
        return self._taken[size]


def _solve_gpu(settings: TrainSettings) -> Solution:
    if settings.gpu is not None or settings.memory is not None:
        raise InvalidRequest("solve gpu looks for the GPU itself; leave out --gpu and --memory")
    least: dict[tuple[int, int], int] = {}
    smaller = None
    for row in _gpus():
        asked = dataclasses.replace(settings, gpu=row.name)
        if row.memory_bytes >= least.get(row.capability, 0):
            tried = candidate_of(asked)
            if tried.fits:
                missed = None if smaller is None else estimate_settings(smaller)
                return Solution(what="gpu", value=row.name, estimate=tried.estimate(), next=missed)
            least[row.capability] = max(tried.least_bytes, least.get(row.capability, 0))
        smaller = asked
    assert smaller is not None
    raise _does_not_fit(estimate_settings(smaller), f"bs {settings.bs}")


def _gpus() -> list[GpuRow]:
    """The smallest memory first; without those that no CUDA 13 build of torch 2.14 runs on."""
    from .gpus import load

    rows = [row for row in load().values() if row.capability >= (7, 5)]
    return sorted(rows, key=lambda row: (row.memory_bytes, row.tensor_tflops))


#: What can be solved for.
TARGETS: Mapping[str, Callable[[TrainSettings], Solution]] = {"bs": _solve_bs, "res": _solve_res, "gpu": _solve_gpu}
