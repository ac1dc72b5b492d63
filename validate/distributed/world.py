"""The ranks that somebody else started: torchrun, accelerate launch, deepspeed, srun. Needs no torch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings

__all__ = ["RankFailed", "World", "launched"]

#: What ``accelerate launch`` says of its configuration, and the settings that mean the same.
_OF_ACCELERATE = {
    "ACCELERATE_USE_DEEPSPEED": ("zero", "--zero 1, 2 or 3"),
    "ACCELERATE_USE_FSDP": ("fsdp", "--parallel fsdp"),
}


class RankFailed(NotModelled):
    """A rank died, failed or ran out of time: there is no measurement."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among ``size``; only ``rank`` 0 speaks."""

    rank: int
    size: int

    def settled(self, settings: TrainSettings, *, gpus: int | None) -> TrainSettings:
        """The settings for as many GPUs as there are ranks; ``gpus`` is what was asked, if anything.

        Raises InvalidRequest where the launcher was told something else.
        """
        if gpus is not None and gpus != self.size:
            raise InvalidRequest(f"--gpus {gpus}, but the launcher started {self.size} processes; leave out --gpus")
        settled = dataclasses.replace(settings, gpus=self.size)
        for variable, (engine, flag) in _OF_ACCELERATE.items():
            asked = settled.parallel or "ddp"
            if os.environ.get(variable) == "true" and not asked.startswith(engine):
                raise InvalidRequest(f"accelerate is configured for {engine}, the estimate is for {asked}; add {flag}")
        return settled


def launched(variables: Mapping[str, str] | None = None) -> World | None:
    """By the variables of torch.distributed's ``env://``; None for a process that is alone."""
    given = os.environ if variables is None else variables
    rank, size = (given.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not (rank.isdigit() and size.isdigit()) or int(size) < 2:
        return None
    return World(rank=int(rank), size=int(size))
