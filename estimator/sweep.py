"""A grid over settings: one estimate for every combination, and a reason where there is none."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InvalidRequest, NotModelled
from .pipeline import estimate_settings
from .result import SCHEMA_VERSION, Estimate
from .settings import TrainSettings

__all__ = ["Sweep", "SweepRow", "sweep_settings"]

_MAX_ROWS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One combination: the values along the axes, and its estimate or why there is none."""

    values: Mapping[str, Any]
    estimate: Estimate | None
    error: str | None

    def to_dict(self) -> dict[str, Any]:
        """``settings`` holds the values along the axes only."""
        document = None if self.estimate is None else self.estimate.to_dict()
        return {
            "settings": dict(self.values),
            "peak": document and document["peak"],
            "phases": document and document["phases"],
            "verdict": document and document["verdict"],
            "error": self.error,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """``axes`` are settings with their values, in the order of the grid: the last one changes fastest."""

    axes: Mapping[str, Sequence[Any]]
    rows: tuple[SweepRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``vitmem sweep``."""
        from . import __version__

        return {
            "schema_version": SCHEMA_VERSION,
            "vitmem_version": __version__,
            "axes": {name: list(values) for name, values in self.axes.items()},
            "rows": [row.to_dict() for row in self.rows],
        }


def sweep_settings(fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> Sweep:
    """Every combination of ``axes`` on top of the ``fixed`` settings (keywords of ``TrainSettings``).

    A value that is wrong by itself raises; a combination that the library refuses or that is not modelled becomes a
    row with a reason.
    """
    size = 1
    for values in axes.values():
        size *= len(values)
    if not axes:
        raise InvalidRequest("a sweep needs a setting with several values, such as --bs 8,16,32 or --res 224,384,512")
    if size > _MAX_ROWS:
        raise InvalidRequest(f"{size} combinations are too many; at most {_MAX_ROWS} are estimated")
    for name, values in axes.items():
        for value in values:
            _check(_without(fixed, axes), name, value)
    combinations = (dict(zip(axes, values)) for values in itertools.product(*axes.values()))
    return Sweep(axes=dict(axes), rows=tuple(_row(fixed, values) for values in combinations))


def _check(fixed: Mapping[str, Any], name: str, value: Any) -> None:
    """A value that is wrong alone and beside what is fixed is wrong in every combination."""
    try:
        TrainSettings.of(**{**fixed, name: value})
    except InvalidRequest:
        TrainSettings.of(**{name: value})


def _without(fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: value for name, value in fixed.items() if name not in axes}


def _row(fixed: Mapping[str, Any], values: Mapping[str, Any]) -> SweepRow:
    try:
        estimate = estimate_settings(TrainSettings.of(**{**fixed, **values}))
    except (InvalidRequest, NotModelled) as reason:
        return SweepRow(values=values, estimate=None, error=str(reason))
    return SweepRow(values=values, estimate=estimate, error=None)
