"""The replay of all measurements (the JSON of ``vitmem validate --corpus``) as a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..units import format_bytes
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["accuracy_report", "corpus_report"]

_ERRORS = (
    Column(name="figure"),
    Column(name="rows", kind="count"),
    Column(name="equal", kind="count"),
    Column(name="median", kind="error"),
    Column(name="worst", kind="error"),
    Column(name="below", kind="share"),
)
_TITLES = {"source": "Errors by source", "family": "Errors by family", "torch": "Errors by version of torch"}
_BELOW = (
    "Equal: to the byte. Median: of the errors' sizes. "
    "Below: the share of rows whose estimate is below the measurement."
)
#: The metrics under shorter names.
_FIGURES = {"saved_activations": "saved"}


def corpus_report(document: Mapping[str, Any]) -> Report:
    """``document`` is a Corpus as a dictionary."""
    errors = [_errors(by, rows) for by, rows in document["errors"].items()]
    tables = (*errors, _public(document["public"]), _verdicts(document["verdicts"]), _refuted(document))
    return Report(
        headline=_headline(document),
        subtitle=tuple(line for line in (_below(document["rows"]), _ladder(document["verdicts"])) if line),
        tables=tuple(table for table in tables if table.rows),
        notes=(
            Notes(title="Causes", lines=tuple(_causes(document))),
            Notes(title="Not replayed", lines=tuple(_reasons(document["unsupported"]))),
        ),
        document=document,
    )


def accuracy_report(document: Mapping[str, Any]) -> Report:
    """The README's part of :func:`corpus_report`: the tables that fit there, without the reasons."""
    whole = corpus_report(document)
    tables = tuple(table for table in whole.tables if table.name in {"source", "family", "torch", "public", "verdicts"})
    return whole._replace(tables=tables, notes=whole.notes[:1])


def _headline(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    equal = sum(row["relative_error"] == 0 for row in rows)
    within = sum(row["within"] for row in rows)
    verdict = "Passed" if document["passed"] else "FAILED"
    return f"{verdict}: {equal:,} of {len(rows):,} figures equal to the byte, {within:,} within their tolerance."


def _below(rows: Iterable[Mapping[str, Any]]) -> str:
    errors = [row["relative_error"] for row in rows if row["relative_error"] is not None]
    below = [error for error in errors if error < 0]
    if not below:
        return "No estimate is below its measurement."
    share, worst = 100 * len(below) / len(errors), 100 * min(below)
    said = f"{len(below)} of {len(errors):,} estimates ({share:.2f} %) are below the measurement"
    return f"{said}, by {-worst:.3f} % at most."


def _ladder(verdicts: Iterable[Mapping[str, Any]]) -> str:
    verdicts = list(verdicts)
    if not verdicts:
        return ""
    sums = {name: sum(row[name] for row in verdicts) for name in ("rows", "right", "borderline", "contradiction")}
    return (
        f"{sums['right']} of {sums['rows']} verdicts on timm's batch ladder right, {sums['borderline']} borderline, "
        f"{sums['contradiction']} contradicted by the GPU."
    )


def _errors(by: str, groups: Iterable[Mapping[str, Any]]) -> Table:
    """Families that are equal in all their rows share a line."""
    groups = list(groups)
    equal = [row for row in groups if by == "family" and row["rows"] == row["equal"]]
    rows = [_error_row(row["name"], row) for row in groups if row not in equal]
    for metric in dict.fromkeys(row["metric"] for row in equal):
        merged = [row for row in equal if row["metric"] == metric]
        total = sum(row["rows"] for row in merged)
        of_all = {"metric": metric, "rows": total, "equal": total, "median": 0.0, "worst": 0.0, "under_estimated": 0.0}
        rows.append(_error_row(f"{len(merged)} others", of_all))
    note = _BELOW if by == "source" else None
    return Table(name=by, title=_TITLES[by], columns=(Column(name=by), *_ERRORS), rows=tuple(rows), note=note)


def _error_row(name: str, row: Mapping[str, Any]) -> tuple[Cell, ...]:
    values = (row["rows"], row["equal"], row["median"], row["worst"], row["under_estimated"])
    return name, _name(row["metric"]), *values


def _verdicts(rows: Iterable[Mapping[str, Any]]) -> Table:
    names = ("rows", "right", "borderline", "contradiction")
    counts = tuple(Column(name=name, kind="count") for name in names)
    return Table(
        name="verdicts",
        title="Verdicts near capacity: timm's batch ladder on an RTX 3090",
        columns=(Column(name="torch"), Column(name="seen"), *counts),
        rows=tuple((row["torch"], row["seen"], *(row[name] for name in names)) for row in rows),
        note="Borderline: within what the size of the CUDA context leaves open. A contradiction is beyond it.",
    )


def _public(rows: Iterable[Mapping[str, Any]]) -> Table:
    columns = (
        Column(name="row"),
        Column(name="figure"),
        Column(name="measured"),
        Column(name="estimated"),
        Column(name="error", kind="error"),
    )
    return Table(
        name="public",
        title="Public figures",
        columns=columns,
        rows=tuple((row["id"], _name(row["metric"]), *_pair(row), row["relative_error"]) for row in rows),
        unknown="",
        note="A range is what the source's rounding leaves of a ratio.",
    )


def _name(metric: str) -> str:
    return _FIGURES.get(metric, metric)


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    if "low" in row:
        inside = "inside" if row["within"] else "outside"
        return f"{row['low']:.2f} to {row['high']:.2f}", f"{row['estimated']:.2f}, {inside}"
    return format_bytes(round(row["measured"])), format_bytes(round(row["estimated"]))


def _refuted(document: Mapping[str, Any]) -> Table:
    counts: dict[tuple[str, int], int] = {}
    for row in document["contradictions"]:
        counts[row["id"], row["headroom_bytes"]] = counts.get((row["id"], row["headroom_bytes"]), 0) + 1
    return Table(
        name="contradictions",
        title="Judged to fit, and out of memory",
        columns=(
            Column(name="rung"),
            Column(name="headroom", kind="bytes"),
            Column(name="rungs", kind="count"),
        ),
        rows=tuple((name, headroom, count) for (name, headroom), count in counts.items()),
    )


def _causes(document: Mapping[str, Any]) -> Iterator[str]:
    by_cause: dict[str, list[str]] = {}
    causes = [row for row in document["public"] if row.get("cause")]
    for row in (*causes, *document["misses"], *document["contradictions"]):
        names = by_cause.setdefault(row.get("cause") or "not found", [])
        name = row["id"].partition(" torch ")[0]
        if name not in names:
            names.append(name)
    yield from (f"{', '.join(names)}: {cause}." for cause, names in by_cause.items())


def _reasons(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        names = list(dict.fromkeys(name.partition(" ")[0] for name in row["ids"]))
        yield f"{len(row['ids'])} of {row['source']} ({', '.join(names)}): {row['reason']}."
