"""Candidates through the estimate's own play, each once; what a library refuses is no candidate."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..candidate import Candidate
from ..cost import seconds
from ..errors import InvalidRequest, NotModelled, VitmemError
from ..gpus import GpuRow, find
from ..result import Peak
from ..settings import TrainSettings

__all__ = ["Trial", "Trials"]

#: Whose rates count where only an amount of memory was named: kernels follow this generation too.
_DEFAULT_GPU = "a100-40g"


class Trial:
    """One candidate that was played, under the settings that were asked for."""

    def __init__(self, settings: TrainSettings, candidate: Candidate, gpu: GpuRow) -> None:
        self.settings, self._candidate = settings, candidate
        self.seconds = seconds(candidate.cost, gpu)
        self.step_flops = candidate.cost.flops
        self.requested_bytes = candidate.requested_bytes
        self.usable_bytes = candidate.usable_bytes
        self.largest_parameter = candidate.largest_parameter
        self.has_batch_statistics = candidate.has_batch_statistics
        self.slack_bytes, self.expected_spare_bytes = candidate.slack_bytes, candidate.expected_spare_bytes
        self._fits: bool | None = None
        if not self.may_fit:
            candidate.release()

    @property
    def may_fit(self) -> bool:
        """Whether what is requested fits, however it is laid out."""
        return self.slack_bytes >= 0

    @property
    def fits(self) -> bool:
        """Whether the verdict is a plain yes."""
        if self._fits is None:
            self._fits = self._candidate.fits
            if self._fits:
                _ = self._candidate.peak
            self._candidate.release()
        return self._fits

    @property
    def peak(self) -> Peak:
        """Its peak, even where it is too large."""
        found = self._candidate.peak
        self._candidate.release()
        return found

    @property
    def spare_bytes(self) -> int:
        """The candidate's."""
        _ = self.fits
        return self._candidate.spare_bytes

    @property
    def headroom_bytes(self) -> int:
        """What the CUDA context's expected size leaves, less what is reserved, or requested where it does not fit."""
        return self._candidate.headroom_bytes if self.fits else self.usable_bytes - self.requested_bytes

    @property
    def missing_bytes(self) -> int:
        """How much more memory would hold it beside the largest CUDA context."""
        peak = self.peak
        assert peak.device_bytes is not None
        assert peak.device_high_bytes is not None
        return peak.device_high_bytes - peak.device_bytes - self._candidate.headroom_bytes

    @property
    def saved_activation_bytes(self) -> int:
        """What the forward pass leaves for the backward pass."""
        return self._candidate.saved_activation_bytes


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
            return Trial(settings, Candidate(settings), self.gpu)
        except (InvalidRequest, NotModelled) as reason:
            return reason.with_traceback(None)

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
