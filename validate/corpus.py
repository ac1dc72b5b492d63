"""Everything in ``data/measurements`` through the estimator: errors, verdicts, misses. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import vitmem
from vitmem.result import SCHEMA_VERSION, Estimate

from .measured_rows import Figure, Reason, Rung, Settings, figures, reasons, rungs
from .own_rows import MEASURED_HERE, figures_of, reasons_of

__all__ = ["TOLERANCES", "Corpus", "Judged", "Replayed", "replay"]

#: What a row may be off without a named cause: public figures are reserved memory, printed with two decimals of a GB.
TOLERANCES = {"null device": 0.02, "public": 0.015, MEASURED_HERE: 0.02}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A measured figure beside the estimated one."""

    figure: Figure
    family: str
    torch: str
    estimated: float

    @property
    def is_ratio(self) -> bool:
        """Whether the source's rounding leaves a range, in which any value is right."""
        return self.figure.low is not None

    @property
    def relative_error(self) -> float | None:
        """(estimate - measurement) / measurement; a ratio between two rounded figures has none."""
        if self.is_ratio:
            return None
        return (self.estimated - self.figure.measured) / self.figure.measured

    @property
    def source(self) -> str:
        """The null device, or public reports."""
        return self.figure.source if self.figure.source in TOLERANCES else "public"

    @property
    def is_within(self) -> bool:
        """Within the tolerance of its source, or, for a ratio, within what the source's rounding allows."""
        error, figure = self.relative_error, self.figure
        if error is None:
            return (figure.low or 0) <= self.estimated <= (figure.high or 0)
        return abs(error) <= TOLERANCES[self.source]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A rung of a ladder and what the estimate says: ``right``, ``borderline`` or ``contradiction``."""

    rung: Rung
    family: str
    torch: str
    num_parameters: int
    image_size: tuple[int, int]
    fits: str
    headroom_bytes: int

    @property
    def outcome(self) -> str:
        """Borderline is within the stated range of the context; a contradiction is beyond it."""
        if self.fits == "borderline":
            return "borderline"
        return "right" if (self.fits == "yes") == self.rung.fitted else "contradiction"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The whole replay. It passes when every miss and every contradiction has a cause."""

    replayed: tuple[Replayed, ...]
    judged: tuple[Judged, ...]
    unsupported: tuple[Reason, ...]

    @property
    def misses(self) -> tuple[Replayed, ...]:
        """Figures beyond their tolerance."""
        return tuple(row for row in self.replayed if not row.is_within)

    @property
    def contradictions(self) -> tuple[Judged, ...]:
        """Verdicts that the GPU has refuted."""
        return tuple(row for row in self.judged if row.outcome == "contradiction")

    @property
    def passed(self) -> bool:
        """Whether nothing is left unexplained."""
        causes = [row.figure.cause for row in self.misses] + [row.rung.cause for row in self.contradictions]
        return all(causes)

    def to_dict(self) -> dict[str, Any]:
        """The document of ``vitmem validate --corpus``: tables, every row, every reason."""
        return {
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "tolerances": TOLERANCES,
            "errors": {by: list(_errors(self.replayed, key)) for by, key in _GROUPS.items()},
            "verdicts": list(_verdicts(self.judged)),
            "misses": [_figure(row) for row in self.misses],
            "public": [_figure(row) for row in self.replayed if row.source == "public"],
            "contradictions": [_judged(row) for row in self.contradictions],
            "unsupported": [{**dataclasses.asdict(row), "ids": list(row.ids)} for row in self.unsupported],
            "rows": [_figure(row) for row in self.replayed],
            "rungs": [_judged(row) for row in self.judged],
        }


def replay(source: Path | None = None) -> Corpus:
    """Every row through ``vitmem.estimate``, about a minute; or the rows of ``source``, a file or a folder of files."""
    if source is not None:
        return Corpus(
            replayed=tuple(_replayed(figure) for figure in figures_of(source)),
            judged=(),
            unsupported=tuple(reasons_of(source)),
        )
    return Corpus(
        replayed=tuple(_replayed(figure) for figure in figures()),
        judged=tuple(_judge(rung) for rung in rungs()),
        unsupported=tuple(reasons()),
    )


def _estimate(gpu: str, settings: Settings) -> Estimate:
    """Rows that ask for the same are estimated once."""
    return _estimate_of(json.dumps({**settings, "gpu": gpu}, sort_keys=True))


@cache
def _estimate_of(document: str) -> Estimate:
    return vitmem.estimate(**json.loads(document))


def _replayed(figure: Figure) -> Replayed:
    estimate = _estimate(figure.gpu, figure.settings)
    value = _figure_of(estimate, figure.metric) + figure.left_bytes
    if figure.base is not None:
        base = _figure_of(_estimate(figure.gpu, figure.base), figure.metric)
        value = value / base if figure.low is not None else value - base
    return Replayed(figure=figure, family=estimate.model.family, torch=_torch(estimate), estimated=value)


def _figure_of(estimate: Estimate, metric: str) -> float:
    if metric in estimate.phases:
        phase = estimate.phases[metric]
        value = None if phase is None else phase.allocated_bytes
    else:
        value = {
            "allocated": estimate.peak.allocated_bytes,
            "reserved": estimate.peak.reserved_bytes,
            "device": estimate.peak.device_bytes,
            "saved_activations": estimate.states.saved_activation_bytes,
        }[metric]
    assert value is not None
    return value


def _torch(estimate: Estimate) -> str:
    version: str = estimate.request["torch"]
    return version


def _judge(rung: Rung) -> Judged:
    estimate = _estimate(rung.gpu, rung.settings)
    assert estimate.verdict is not None
    return Judged(
        rung=rung,
        family=estimate.model.family,
        torch=_torch(estimate),
        num_parameters=estimate.model.num_parameters,
        image_size=estimate.model.image_size,
        fits=estimate.verdict["fits"],
        headroom_bytes=estimate.verdict["headroom_bytes"],
    )


_GROUPS: Mapping[str, Callable[[Replayed], str]] = {
    "source": lambda row: row.source,
    "family": lambda row: row.family,
    "torch": lambda row: row.torch,
}


def _errors(rows: Iterable[Replayed], key: Callable[[Replayed], str]) -> Iterator[dict[str, Any]]:
    """One row per group and metric; ``under_estimated`` is the share below the measurement."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if (error := row.relative_error) is not None:
            groups.setdefault((key(row), row.figure.metric), []).append(error)
    for (name, metric), errors in sorted(groups.items()):
        yield {
            "name": name,
            "metric": metric,
            "rows": len(errors),
            "equal": sum(error == 0 for error in errors),
            "median": statistics.median(map(abs, errors)),
            "worst": max(errors, key=abs),
            "under_estimated": sum(error < 0 for error in errors) / len(errors),
        }


def _verdicts(rows: Iterable[Judged]) -> Iterator[dict[str, Any]]:
    """One row per version of torch and what the GPU showed."""
    groups: dict[tuple[str, bool], list[Judged]] = {}
    for row in rows:
        groups.setdefault((row.torch, row.rung.fitted), []).append(row)
    for (torch, fitted), judged in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][1])):
        outcomes = [row.outcome for row in judged]
        yield {
            "torch": torch,
            "seen": "fitted" if fitted else "out of memory",
            "rows": len(judged),
            **{outcome: outcomes.count(outcome) for outcome in ("right", "borderline", "contradiction")},
        }


def _figure(row: Replayed) -> dict[str, Any]:
    document = {name: value for name, value in dataclasses.asdict(row.figure).items() if value is not None}
    rest = {"family": row.family, "torch": row.torch, "estimated": row.estimated, "relative_error": row.relative_error}
    return {**document, **rest, "within": row.is_within}


def _judged(row: Judged) -> dict[str, Any]:
    document = dataclasses.asdict(row.rung)
    rest = {"family": row.family, "torch": row.torch, "fits": row.fits, "headroom_bytes": row.headroom_bytes}
    return {**document, **rest, "outcome": row.outcome}
