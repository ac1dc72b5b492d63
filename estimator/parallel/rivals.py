"""The same step played with another option of ZeRO or by another engine: by its peaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..ledger import with_last_step_again
from ..replay import replay
from ..timeline import allocated_peaks, phase_summaries

if TYPE_CHECKING:
    from ..allocator import AllocatorConfig
    from ..settings import TrainSettings
    from ..step import Step

__all__ = ["following", "most_loaded", "peak_of"]

#: Ranks whose peaks are so near are equal but for padding: their phases tell them apart.
_SAME = 0.999


def peak_of(step: Step, settings: TrainSettings, allocator: AllocatorConfig) -> int:
    """What an estimate of these settings calls its allocated peak, in bytes: with what the allocator does not split
    off."""
    from ..play import STEPS, block_peak

    played = _played(step, settings)
    ledger = played.run.ledger()
    played.dispose()
    if len(ledger.steps) <= STEPS:
        ledger = with_last_step_again(ledger)
    summaries = phase_summaries(ledger, replay(ledger, allocator).blocks)
    return block_peak([summaries[phase] for phase in ledger.step_phases(STEPS)]).total_bytes


def most_loaded(step: Step, ranks: Iterable[int]) -> int:
    """The rank with the highest peak; of those with the same, the one whose phases need most.

    Its play is that of ``step``, whose strategy has it as its ``twin``.
    """
    played = {rank: _played(step, following(step.settings, rank)) for rank in ranks}
    found = {rank: allocated_peaks(one.run.ledger(), -1) for rank, one in played.items()}
    highest = max(max(peaks.values()) for peaks in found.values())
    same = [rank for rank, peaks in found.items() if max(peaks.values()) >= _SAME * highest]
    most = max(same, key=lambda rank: sum(found[rank].values()))
    for rank, one in played.items():
        if rank != most:
            one.dispose()
    step.strategy.twin = played[most]
    return most


def _played(step: Step, settings: TrainSettings) -> Step:
    from ..play import play

    return play(step.plan, settings, step.run.kernels.gpu)


def following(settings: TrainSettings, rank: int) -> TrainSettings:
    """The settings with one rank to follow, whatever the others need."""
    options = {**dict(settings.zero_options), "rank": rank}
    return dataclasses.replace(settings, zero_options=tuple(options.items()))
