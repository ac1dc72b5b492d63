"""A Solution as a report: the answer, and the first candidate that does not fit beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..result import Estimate
from .estimate import request_line
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["solution_report"]

_WORDS: Mapping[str, str] = {
    "bs": "bs {} is the largest batch that fits {}.",
    "res": "res {} is the largest resolution that fits {}.",
    "gpu": "{} is the smallest known GPU that holds it.",
}


#: The search ends somewhere.
_UNBOUNDED = "{} fits {}; nothing larger was tried."


class Solved(Protocol):
    """What a report shows of a solution."""

    @property
    def what(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def estimate(self) -> Estimate: ...
    @property
    def next(self) -> Estimate | None: ...
    def to_dict(self) -> dict[str, Any]: ...


def solution_report(solution: Solved) -> Report:
    """Two rows: what fits, and what no longer does."""
    found = solution.estimate
    candidates = [found] if solution.next is None else [found, solution.next]
    columns = (
        Column(name=solution.what),
        Column(name="allocated", kind="bytes"),
        Column(name="reserved", kind="bytes"),
        Column(name="nvidia-smi", kind="bytes"),
        Column(name="headroom", kind="signed_bytes"),
        Column(name="fits"),
    )
    assert found.verdict is not None
    shown = str(_asked(found, solution.what))
    words = _WORDS[solution.what] if solution.next is not None or solution.what == "gpu" else _UNBOUNDED
    return Report(
        headline=words.format(shown, found.verdict["gpu"]),
        subtitle=(request_line(found),),
        tables=(
            Table(
                name="candidates",
                title="The last that fits, and the first that does not",
                columns=columns,
                rows=tuple(_row(estimate, solution.what) for estimate in candidates),
                note="Headroom: what the CUDA context's expected size leaves, less what is reserved.",
            ),
        ),
        notes=(
            Notes(title="Warnings", lines=found.warnings),
            Notes(title="Assumptions", lines=found.assumptions),
            Notes(title="Not modelled", lines=found.not_modelled),
        ),
        document=solution.to_dict(),
    )


def _row(estimate: Estimate, what: str) -> tuple[Cell, ...]:
    peak, verdict = estimate.peak, estimate.verdict
    assert verdict is not None
    headroom, fits = verdict["headroom_bytes"], verdict["fits"]
    return _asked(estimate, what), peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, headroom, fits


def _asked(estimate: Estimate, what: str) -> Cell:
    value = estimate.request[what]
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
