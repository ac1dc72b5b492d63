"""Candidates through the estimate's own play, each once; what a library refuses is no candidate."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..cost import seconds
from ..errors import InvalidRequest, NotModelled, VitmemError
from ..gpus import GpuRow, find
from ..pipeline import Glance, glance
from ..result import Peak
from ..settings import TrainSettings

__all__ = ["Trial", "Trials"]

#: Whose rates count where only an amount of memory was named: kernels follow this generation too.
_DEFAULT_GPU = "a100-40g"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was played."""

    settings: TrainSettings
    glance: Glance
    seconds: float

    @property
    def requested_bytes(self) -> int:
        """The peak before the allocator rounds it up."""
        return self.glance.requested_bytes

    @property
    def headroom_bytes(self) -> int:
        """What the CUDA context's expected size leaves, less what is reserved, or requested where it is too much."""
        seen = self.glance.verdict
        return self.usable_bytes - self.requested_bytes if seen is None else int(seen["headroom_bytes"])

    @property
    def usable_bytes(self) -> int:
        """What the CUDA context's expected size leaves."""
        assert self.glance.usable_bytes is not None
        return self.glance.usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the verdict is a plain yes."""
        return self.glance.verdict is not None and self.glance.verdict["fits"] == "yes"

    @property
    def missing_bytes(self) -> int:
        """How much more memory would hold it beside the largest CUDA context."""
        peak = self.peak
        assert peak.device_bytes is not None
        assert peak.device_high_bytes is not None
        return peak.device_high_bytes - peak.device_bytes - self.headroom_bytes

    @property
    def peak(self) -> Peak:
        """The peak of what was replayed."""
        assert self.glance.peak is not None
        return self.glance.peak


class Trials:
    """Every candidate by its settings."""

    def __init__(self, settings: TrainSettings) -> None:
        self.gpu: GpuRow = find(settings.gpu or _DEFAULT_GPU)
        self._known: dict[TrainSettings, Trial | VitmemError] = {}

    def __call__(self, settings: TrainSettings) -> Trial:
        """Raises InvalidRequest or NotModelled where there is no figure."""
        if settings not in self._known:
            self._known[settings] = self._try(settings)
        known = self._known[settings]
        if isinstance(known, VitmemError):
            raise known
        return known

    def _try(self, settings: TrainSettings) -> Trial | VitmemError:
        try:
            seen = glance(settings)
        except (InvalidRequest, NotModelled) as reason:
            return reason.with_traceback(None)
        return Trial(settings=settings, glance=seen, seconds=seconds(seen.cost, self.gpu))

    def whole(self, settings: TrainSettings) -> Trial:
        """The candidate with its peak, even where it is too large."""
        known = self(settings)
        return known if known.glance.peak else dataclasses.replace(known, glance=glance(settings, whole=True))

    def maybe(self, settings: TrainSettings, **changes: Any) -> Trial | None:
        """The candidate, or None where there is no figure."""
        try:
            return self(dataclasses.replace(settings, **changes))
        except (InvalidRequest, NotModelled):
            return None

    @property
    def num_played(self) -> int:
        """How many were played."""
        return sum(isinstance(known, Trial) for known in self._known.values())
