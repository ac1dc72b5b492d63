"""The largest batch, the largest resolution or the smallest GPU that fits, all else fixed.

A candidate fits where the verdict of its estimate would say yes: what depends on the size of the CUDA context does not
count as fitting. Memory grows with batch and resolution but for small jumps (workspaces, blocks that
are not split): the answer fits, and the next larger candidate does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .candidate import Candidate
from .collector import paused
from .errors import DoesNotFit, InvalidRequest, NoFamily, NotModelled, did_you_mean
from .pipeline import estimate_settings, resolved
from .result import SCHEMA_VERSION, Estimate
from .searching import last_that
from .settings import TrainSettings
from .units import format_bytes

__all__ = ["TARGETS", "Solution", "solve_settings"]

#: Nobody trains on more images or pixels at once; a candidate beyond these is not tried.
_MAX_BS = 1 << 20
_MAX_PIXELS = 8192
#: The batch of a first guess' second point, in batches asked for.
_STRETCH = 4
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


class _Tried:
    """Candidates by their place in order of growing memory; each is played once, and most are only asked whether they
    fit."""

    def __init__(self, at: Callable[[int], TrainSettings]) -> None:
        self._at = at
        self._candidates: dict[int, Candidate | Estimate] = {}
        self._estimates: dict[int, Estimate] = {}

    def candidate(self, place: int) -> Candidate | Estimate:
        """What is known of a place: its estimate where no family covers the model and it was rehearsed."""
        if place not in self._candidates:
            try:
                self._candidates[place] = Candidate(self._at(place))
            except NoFamily:
                self._candidates[place] = estimate_settings(self._at(place))
        return self._candidates[place]

    def __getitem__(self, place: int) -> Estimate:
        if place not in self._estimates:
            seen = self.candidate(place)
            self._estimates[place] = seen.estimate(self._slope(place)) if isinstance(seen, Candidate) else seen
        return self._estimates[place]

    def _slope(self, place: int) -> int | None:
        """What one more image takes, where a candidate has it."""
        seen, larger = self._candidates[place], self._candidates.get(place + 1)
        if not (isinstance(seen, Candidate) and isinstance(larger, Candidate)):
            return None
        is_next = dataclasses.replace(seen.settings, bs=seen.settings.bs + 1) == larger.settings
        return larger.requested_bytes - seen.requested_bytes if is_next else None

    def fits(self, place: int) -> bool:
        """Whether the estimate of a place would say yes."""
        seen = self.candidate(place)
        return seen.fits if isinstance(seen, Candidate) else _fits(seen)

    def last_that_fits(
        self, guess: int, further: Callable[[int], int] | None = None, *, first: int, last: int
    ) -> int | None:
        """The place before the first that does not fit, found outwards from ``guess``; None if ``first`` does not."""
        return last_that(self.fits, guess, first, last, further)


def _fits(estimate: Estimate) -> bool:
    if estimate.verdict is None:
        raise NotModelled(f"{estimate.model.name}: only its tensors are known, not whether it fits")
    return bool(estimate.verdict["fits"] == "yes")


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
    tried = _Tried(lambda place: dataclasses.replace(settings, bs=place * unit))
    last = _MAX_BS // unit
    asked = min(max(settings.bs // unit, 1), last)
    place = tried.last_that_fits(*_line(tried, asked, last), first=1, last=last)
    if place is None:
        raise _does_not_fit(tried[1], f"bs {unit}")
    following = None if place == last else tried[place + 1]
    return Solution(what="bs", value=place * unit, estimate=tried[place], next=following)


def _line(tried: _Tried, asked: int, last: int) -> tuple[int, Callable[[int], int]]:
    """A first guess by a straight line through two places, and how far another place is from the boundary by its
    slope."""
    far = min(_STRETCH * asked, last)
    one, other = tried.candidate(asked), tried.candidate(far)
    if not (isinstance(one, Candidate) and isinstance(other, Candidate)):
        raise NotModelled(f"{tried[asked].model.name}: only its tensors are known, not whether it fits")
    slope = max((other.requested_bytes - one.requested_bytes) // max(far - asked, 1), 1)

    def further(place: int) -> int:
        seen = tried.candidate(place)
        assert isinstance(seen, Candidate)
        return seen.spare_bytes // slope

    return far + other.expected_spare_bytes // slope, further


def _solve_res(settings: TrainSettings) -> Solution:
    sizes = list(_resolutions(settings))
    tried = _Tried(lambda place: dataclasses.replace(settings, res=sizes[place]))
    native = resolved(settings)[0].image_size
    guess = min(range(len(sizes)), key=lambda place: abs(sizes[place][0] - native[0]))
    place = tried.last_that_fits(guess, first=0, last=len(sizes) - 1)
    if place is None:
        raise _does_not_fit(tried[0], f"res {'x'.join(map(str, sizes[0]))}")
    following = tried[place + 1] if place + 1 < len(sizes) else None
    return Solution(what="res", value=sizes[place], estimate=tried[place], next=following)


def _resolutions(settings: TrainSettings) -> Iterator[tuple[int, int]]:
    """Sizes that the library takes without a remainder, in the proportion of the one that was asked for."""
    plan = resolved(settings)[0]
    (height, width), patch = plan.image_size, plan.patch_size
    step_h, step_w = (side if side >= 8 else _HIERARCHICAL_STEP for side in patch)
    for count in range(1, _MAX_PIXELS // max(step_h, step_w) + 1):
        size = count * step_h, max(round(count * step_h * width / height / step_w), 1) * step_w
        try:
            resolved(dataclasses.replace(settings, res=size))
        except InvalidRequest:
            continue
        yield size


def _solve_gpu(settings: TrainSettings) -> Solution:
    from .gpus import load

    if settings.gpu is not None or settings.memory is not None:
        raise InvalidRequest("solve gpu looks for the GPU itself; leave out --gpu and --memory")
    rows = sorted(load().values(), key=lambda row: (row.memory_bytes, row.tensor_tflops))
    names = [row.name for row in rows if row.capability >= (7, 5)]  # older ones run no CUDA 13 build of torch 2.14
    missed: Estimate | None = None
    for name in names[_first_that_holds(settings, [load()[name].memory_bytes for name in names]) :]:
        estimate = estimate_settings(dataclasses.replace(settings, gpu=name))
        if _fits(estimate):
            return Solution(what="gpu", value=name, estimate=estimate, next=missed)
        missed = estimate
    missed = missed or estimate_settings(dataclasses.replace(settings, gpu=names[-1]))
    raise _does_not_fit(missed, f"bs {settings.bs}")


def _first_that_holds(settings: TrainSettings, memories: Sequence[int]) -> int:
    """The first GPU that is worth a try: the tensors of a step differ between GPUs only in what attention saves and
    borrows, and a card with half the memory of an A100's peak holds none of them. The one before is tried too."""
    least = estimate_settings(settings).peak.tensor_bytes // 2
    holding = (place for place, memory in enumerate(memories) if memory >= least)
    return max(next(holding, len(memories)) - 1, 0)


#: What can be solved for.
TARGETS: Mapping[str, Callable[[TrainSettings], Solution]] = {"bs": _solve_bs, "res": _solve_res, "gpu": _solve_gpu}
