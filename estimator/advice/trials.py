"""Candidates through the estimate's own play, each once; what a library refuses is no candidate."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

from ..candidate import Candidate
from ..cost import seconds
from ..errors import InvalidRequest, NotModelled, VitmemError
from ..gpus import GpuRow, find
from ..parallel.zero_config import STAGES
from ..result import Peak
from ..settings import TrainSettings

__all__ = ["Trial", "Trials"]

#: Whose rates count where only an amount of memory was named: kernels follow this generation too.
_DEFAULT_GPU = "a100-40g"
#: How many plays are kept for what may be asked of them later, and how many of them whole.
_MOST_KEPT, _WHOLE = 6, 2


class Trial:
    """One candidate that was played, under the settings that were asked for; ``same``: whose play it shares."""

    def __init__(self, settings: TrainSettings, candidate: Candidate, gpu: GpuRow, same: Trial | None = None) -> None:
        self.settings, self._candidate, self._same = settings, candidate, same
        self.seconds = seconds(candidate.cost, gpu)
        self.step_flops = candidate.cost.flops
        self.requested_bytes = candidate.requested_bytes
        self.usable_bytes = candidate.usable_bytes
        self.largest_parameter = candidate.largest_parameter
        self.has_batch_statistics = candidate.has_batch_statistics
        self.slack_bytes, self.expected_spare_bytes = candidate.slack_bytes, candidate.expected_spare_bytes
        self._let_go: Callable[[Candidate], None] | None = None

    def under(self, settings: TrainSettings) -> Trial:
        """That of ``settings``, which differ in ``alloc_conf`` alone."""
        gpu = find(settings.gpu or _DEFAULT_GPU)
        return Trial(settings, self._candidate.under(settings), gpu, self)

    def keep(self, let_go: Callable[[Candidate], None]) -> None:
        """Only what ``let_go`` leaves of the play, now and after every question."""
        self._let_go = let_go
        let_go(self._candidate)

    @property
    def is_played(self) -> bool:
        """Whether it has a play of its own."""
        return self._same is None

    def _ask(self, name: str) -> Any:
        found = getattr(self._candidate, name)
        for trial in (self, self._same):
            if trial is not None and trial._let_go is not None:
                trial._let_go(trial._candidate)
        return found

    @property
    def may_fit(self) -> bool:
        """Whether what is requested fits, however it is laid out."""
        return self.slack_bytes >= 0

    @property
    def fits(self) -> bool:
        """Whether the verdict is a plain yes."""
        return bool(self._ask("fits"))

    @property
    def peak(self) -> Peak:
        """Its peak, even where it is too large."""
        found: Peak = self._ask("peak")
        return found

    @property
    def reserved_bytes(self) -> int:
        """The peak's, alone."""
        return int(self._ask("reserved_bytes"))

    @property
    def spare_bytes(self) -> int:
        """The candidate's."""
        return int(self._ask("spare_bytes"))

    @property
    def headroom_bytes(self) -> int:
        """What the CUDA context's expected size leaves, less what is reserved, or requested where it does not fit."""
        return int(self._ask("headroom_bytes")) if self.fits else self.usable_bytes - self.requested_bytes

    @property
    def missing_bytes(self) -> int:
        """How much more memory would hold it beside the largest CUDA context."""
        return int(self._ask("missing_bytes"))

    @property
    def saved_activation_bytes(self) -> int:
        """What the forward pass leaves for the backward pass."""
        return int(self._ask("saved_activation_bytes"))

    @property
    def room_bytes(self) -> int:
        """What the largest CUDA context leaves."""
        return self.slack_bytes + self.requested_bytes

    @property
    def activation_bytes(self) -> int:
        """What activations take of that at least."""
        return int(self._ask("activation_bytes"))

    @property
    def saved_by_block(self) -> tuple[int, ...]:
        """Of that, what each block leaves."""
        found: tuple[int, ...] = self._ask("saved_by_block")
        return found


class Trials:
    """Every candidate by its settings."""

    def __init__(self, settings: TrainSettings) -> None:
        self.gpu: GpuRow = find(settings.gpu or _DEFAULT_GPU)
        self._known: dict[TrainSettings, Trial | VitmemError] = {}
        self._kept: deque[Trial] = deque()
        self._too_much: set[TrainSettings | None] = set()

    def __call__(self, settings: TrainSettings) -> Trial:
        """Raises InvalidRequest or NotModelled where there is no figure."""
        if settings not in self._known:
            self._known[settings] = self._try(settings)
        known = self._known[settings]
        if isinstance(known, VitmemError):
            raise known
        return known

    def may_fit(self, settings: TrainSettings) -> bool:
        """Whether what a candidate requests fits, however it is laid out. It is not played where the same activations
        have been too much already."""
        if self.are_too_much(settings):
            return False
        trial = self(settings)
        alike = _with_equal_activations(settings)
        if alike is not None and not trial.may_fit and trial.activation_bytes > trial.room_bytes:
            self._too_much.add(alike)
        return trial.may_fit

    def are_too_much(self, settings: TrainSettings) -> bool:
        """Whether a candidate's activations alone are known not to fit."""
        return _with_equal_activations(settings) in self._too_much

    def _try(self, settings: TrainSettings) -> Trial | VitmemError:
        try:
            if settings.alloc_conf is not None:
                return self(dataclasses.replace(settings, alloc_conf=None)).under(settings)
            trial = Trial(settings, Candidate(settings), self.gpu)
        except (InvalidRequest, NotModelled) as reason:
            return reason.with_traceback(None)
        self._keep(trial)
        return trial

    def _keep(self, trial: Trial) -> None:
        """The latest plays are kept whole, of some before them what the allocator did."""
        self._kept.append(trial)
        if len(self._kept) > _WHOLE:
            self._kept[-1 - _WHOLE].keep(Candidate.rest)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popleft().keep(Candidate.release)

    def maybe(self, settings: TrainSettings, **changes: Any) -> Trial | None:
        """The candidate, or None where there is no figure."""
        try:
            return self(dataclasses.replace(settings, **changes))
        except (InvalidRequest, NotModelled):
            return None

    @property
    def num_played(self) -> int:
        """How many were played."""
        return sum(isinstance(known, Trial) and known.is_played for known in self._known.values())


def _with_equal_activations(settings: TrainSettings) -> TrainSettings | None:
    """What stands for all engines with which a step has these activations: every stage of ZeRO with every offload, or
    FSDP with each; None for others."""
    if settings.parallel in {None, "none", "ddp"}:
        return None
    engine = settings.parallel if settings.parallel not in STAGES else "zero1"
    return dataclasses.replace(settings, parallel=engine, offload="none", zero_options=(), alloc_conf=None)
