"""A Sweep as a report: one row for every combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..result import Estimate
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["sweep_report"]


class Combination(Protocol):
    """What a report shows of one combination."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def estimate(self) -> Estimate | None: ...
    @property
    def error(self) -> str | None: ...


class Swept(Protocol):
    """What a report shows of a sweep."""

    @property
    def axes(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def rows(self) -> Sequence[Combination]: ...
    def to_dict(self) -> dict[str, Any]: ...


def sweep_report(sweep: Swept) -> Report:
    """The axes first, then the peak's figures; refused combinations are listed with their reasons below."""
    known = [row for row in sweep.rows if row.estimate is not None]
    judged = any(row.estimate is not None and row.estimate.verdict is not None for row in known)
    columns = (
        *(Column(name=name.replace("_", "-")) for name in sweep.axes),
        Column(name="allocated", kind="bytes"),
        Column(name="reserved", kind="bytes"),
        *([Column(name="fits")] if judged else []),
    )
    rows = tuple(_row(row, judged=judged) for row in sweep.rows)
    fitting = sum(_verdict(row) == "yes" for row in known)
    found = f"{len(sweep.rows)} combination{'' if len(sweep.rows) == 1 else 's'}"
    return Report(
        headline=f"{found}, {fitting} of them fit." if judged else f"{found}.",
        subtitle=(),
        tables=(Table(name="sweep", title="Peak of one training step", columns=columns, rows=rows, unknown="-"),),
        notes=(Notes(title="No figure", lines=tuple(_reason(row) for row in sweep.rows if row.error)),),
        document=sweep.to_dict(),
        records=_records(sweep),
    )


def _records(sweep: Swept) -> Table:
    """The same columns whatever is known: a combination without a figure has empty ones."""
    names = (*(name.replace("_", "-") for name in sweep.axes), "allocated", "reserved", "device", "fits")
    rows = tuple(_record(row) for row in sweep.rows)
    return Table(name="sweep", title="", columns=tuple(Column(name=name) for name in names), rows=rows)


def _record(row: Combination) -> tuple[Cell, ...]:
    values = tuple(str(value) for value in row.values.values())
    if row.estimate is None:
        return (*values, None, None, None, None)
    peak = row.estimate.peak
    return (*values, peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, _verdict(row))


def _row(row: Combination, *, judged: bool) -> tuple[Cell, ...]:
    peak = None if row.estimate is None else row.estimate.peak
    figures = (None, None) if peak is None else (peak.allocated_bytes, peak.reserved_bytes)
    return (*(str(value) for value in row.values.values()), *figures, *([_verdict(row)] if judged else []))


def _verdict(row: Combination) -> str | None:
    verdict = None if row.estimate is None else row.estimate.verdict
    return None if verdict is None else str(verdict["fits"])


def _reason(row: Combination) -> str:
    where = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in row.values.items())
    return f"{where}: {row.error}"
