"""What a rank notes at the moments of its steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .storages import Storages

__all__ = ["FIRST_STEADY", "STEPS", "Watch", "states"]

#: From the third on every step repeats the one before. What a rank sends may live a moment longer than in the program,
#: in gloo's own threads: of each phase the lowest peak of these steps is the program's.
STEPS = 5
FIRST_STEADY = 2
#: So that a phase begins without what those threads still hold of the one before.
SETTLE_S = 0.02


class Watch:
    """What a rank notes at the moments of its steps; figures of the last step survive."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self.trainer: Any = None
        self.moments: dict[str, Any] = {}
        self.steps: list[dict[str, int]] = []

    def step_begins(self) -> None:
        """The peaks so far were those of the step before."""
        time.sleep(SETTLE_S)
        self.note("rest")
        self.steps.append(dict(self.storages.peaks))
        self.storages.peaks.clear()
        self.storages.start("forward")

    def backward_over(self) -> None:
        """All backward passes of a step are: the optimizer phase begins."""
        time.sleep(SETTLE_S)
        self.note("backward_end")
        self.storages.start("optimizer_step")

    @property
    def peaks(self) -> dict[str, int]:
        """By phase of a steady step, and of an evaluation behind one."""
        steady = [*self.steps[1:], self.storages.peaks][FIRST_STEADY:]
        names = dict.fromkeys(name for peaks in steady for name in peaks if name != "after")
        return {name: min(peaks[name] for peaks in steady if name in peaks) for name in names}

    def note(self, moment: str) -> None:
        """Bytes by kind now, and what is none of the kinds, one by one, with the operators that made it."""
        follow, engine = self.storages, self.trainer.model_wrapped
        parameters = list(self.trainer.model.parameters())
        kinds = {
            "parameters": follow.alive([_local(p) for p in parameters]),
            "gradients": follow.alive([_local(p.grad) for p in parameters if p.grad is not None]),
            "optimizer_state": follow.alive(states(self.trainer, engine)),
            "buffers": follow.alive(self.trainer.model.buffers()),
        }
        known: set[int] = set()
        totals = {}
        for kind, found in kinds.items():
            totals[kind] = sum(size for key, size in found.items() if key not in known)
            known |= found.keys()
        others = sorted((size, op) for key, (size, op) in list(follow.live.items()) if key not in known)
        self.moments[moment] = {"total": follow.total, "kinds": totals, "others": others[::-1]}


def _local(tensor: Tensor) -> Tensor:
    local = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(local, Tensor)
    return local


def states(trainer: Any, engine: Any) -> Iterator[Tensor]:
    """The optimizer's own tensors, and with DeepSpeed the fp32 weights that it updates."""
    optimizer = getattr(engine, "optimizer", None) or trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            yield from getattr(optimizer, name, [])
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        yield from (_local(value) for value in state.values() if isinstance(value, Tensor))
