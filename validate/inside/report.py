"""What was seen inside a training, as plain values. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitmem.units import format_bytes

from .leak import Leak

__all__ = ["Comparison", "MemoryReport"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of the estimate beside the same of the training; ``limit_bytes`` is what there is, where known."""

    figure: str
    estimated_bytes: int
    measured_bytes: int
    limit_bytes: int | None

    @property
    def headroom_is_used_up(self) -> bool:
        """Whether the training took more than was estimated and nine tenths of what the estimate left free, or all of
        the estimate where nobody said how much there is."""
        over = self.measured_bytes - self.estimated_bytes
        if self.limit_bytes is None:
            return over > 0
        return over > 0 and 10 * over >= 9 * (self.limit_bytes - self.estimated_bytes)

    @property
    def headroom_bytes(self) -> int | None:
        """What is left of the limit, where that is known."""
        return None if self.limit_bytes is None else self.limit_bytes - self.measured_bytes

    def sentence(self) -> str:
        """What to tell the user."""
        measured, estimated = format_bytes(self.measured_bytes), format_bytes(self.estimated_bytes)
        of = "" if self.limit_bytes is None else f"; there are {format_bytes(self.limit_bytes)}"
        return f"{measured} {self.figure}, {estimated} estimated{of}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Peaks in bytes: by phase, by epoch (each by phase), by step of the recent past; ``layers`` are what the forward
    pass of each left behind, at most; ``end_of_step_bytes`` what is in use when the last step has ended.

    ``figure`` says what was counted: ``allocated`` of CUDA's caching allocator, or ``tensors`` on the CPU.
    """

    device: str
    figure: str
    num_steps: int
    peak_bytes: int
    peak_phase: str | None
    reserved_bytes: int | None
    phases: Mapping[str, int]
    epochs: tuple[Mapping[str, int], ...]
    steps: tuple[int, ...]
    layers: Mapping[str, int]
    end_of_step_bytes: int | None
    leak: Leak | None
    comparison: Comparison | None

    @property
    def bottlenecks(self) -> tuple[str, ...]:
        """The layers that leave most behind, the largest first."""
        return tuple(sorted(self.layers, key=lambda name: -self.layers[name]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        document = dataclasses.asdict(self)
        for name in ("epochs", "steps"):
            document[name] = list(document[name])
        return {**document, "bottlenecks": list(self.bottlenecks)}
