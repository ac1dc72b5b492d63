"""A comparison (the JSON of ``vitmem validate``) as a report: both sides by figure, kind, phase and layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..units import format_bytes
from .estimate import words
from .folding import fold
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["comparison_report"]

_LAYER_FIGURES = (
    ("saved", "saved_activation_bytes"),
    ("parameters", "parameter_bytes"),
    ("peak", "peak_bytes"),  # the largest total while it ran: only an allocator knows
)
#: Neither zero nor a failure: this backend does not see the figure.
_NOT_MEASURED = "-"
_PAIR = (
    Column(name="estimate", kind="bytes"),
    Column(name="measured", kind="bytes"),
    Column(name="difference", kind="signed_bytes"),
)


def comparison_report(document: Mapping[str, Any]) -> Report:
    """``document`` is a Comparison as the contract writes it."""
    estimate, measurement = document["estimate"], document["measurement"]
    errors = {name: value for name, value in document["relative_error"].items() if value is not None}
    tables = [
        _figures(estimate["peak"], measurement["peak"], document["relative_error"]),
        _pairs("at_peak", "kind", "What the peak is made of", *_kinds(document)),
        _phases(estimate, measurement),
        *_layers(estimate["layers"], measurement.get("layers") or ()),
    ]
    return Report(
        headline=_headline(document, errors),
        subtitle=_subtitle(document),
        tables=tuple(table for table in tables if table.rows),
        notes=(
            Notes(title="Why they differ", lines=tuple(document.get("reasons", ()))),
            Notes(title="Measurement", lines=_remarks(measurement)),
            Notes(title="Warnings", lines=tuple(estimate["warnings"])),
            Notes(title="Not modelled", lines=tuple(estimate["not_modelled"])),
        ),
        document=document,
    )


def _headline(document: Mapping[str, Any], errors: Mapping[str, float]) -> str:
    verdict = "Passed" if document["passed"] else "FAILED"
    failed = document["measurement"].get("out_of_memory")
    if failed is not None:
        fits = (document["estimate"]["verdict"] or {}).get("fits")
        side = "as estimated" if document["passed"] else f"though the estimate fits ({fits})"
        said = format_bytes(document["estimate"]["peak"]["allocated_bytes"])
        needed = f"needed at least {format_bytes(failed['needed_bytes'])}, the estimate said {said}"
        return f"{verdict}: out of memory on the {document['backend']} backend in {_moment(failed)}, {side}: {needed}."
    if not errors:
        return f"{verdict}: the {document['backend']} backend measured none of the estimated figures."
    name, worst = max(errors.items(), key=lambda item: abs(item[1]))
    if worst == 0:
        return f"{verdict}: the estimate equals the {document['backend']} backend to the byte."
    side = "above" if worst > 0 else "below"
    return (
        f"{verdict}: the estimate is {100 * abs(worst):.3f} % {side} the {document['backend']} backend ({words(name)})."
    )


def _subtitle(document: Mapping[str, Any]) -> tuple[str, ...]:
    request, model = document["estimate"]["request"], document["estimate"]["model"]
    height, width = model["image_size"]
    what = (
        f"{model['name']} ({model['library']}), {height}x{width} px, bs {request.get('bs')}, {request.get('precision')}"
    )
    versions = document["measurement"].get("versions") or {}
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [what, f"Tolerance {100 * document['tolerance']:g} %."]
    return (*lines, f"Measured with {seen}.") if seen else tuple(lines)


def _figures(estimate: Mapping[str, Any], measured: Mapping[str, Any], errors: Mapping[str, Any]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in errors:
        rows.append((words(name.removesuffix("_bytes")), *_pair(estimate.get(name), measured.get(name)), errors[name]))
    columns = (Column(name="peak"), *_PAIR, Column(name="error", kind="error"))
    return Table(name="peak", title="The peak", columns=columns, rows=tuple(rows), unknown=_NOT_MEASURED)


def _pairs(name: str, column: str, title: str, estimate: Mapping[str, Any], measured: Mapping[str, Any]) -> Table:
    """One row per name that either side knows and that is not zero on both."""
    keys = [key for key in dict.fromkeys((*estimate, *measured)) if estimate.get(key) or measured.get(key)]
    rows = tuple((words(key), *_pair(estimate.get(key), measured.get(key))) for key in keys)
    return Table(name=name, title=title, columns=(Column(name=column), *_PAIR), rows=rows, unknown=_NOT_MEASURED)


def _pair(estimate: int | None, measured: int | None) -> tuple[Cell, Cell, Cell]:
    return estimate, measured, None if estimate is None or measured is None else estimate - measured


def _kinds(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Both sides at the moment that the backend measured: a backend without allocator sees tensors only."""
    estimate, measurement = document["estimate"], document["measurement"]
    measured = measurement.get("at_peak") or {}
    if not measured:
        return {}, {}
    sees_allocator = measurement["peak"].get("allocated_bytes") is not None
    return estimate["at_peak"] if sees_allocator else estimate["at_tensor_peak"], measured


def _phases(estimate: Mapping[str, Any], measurement: Mapping[str, Any]) -> Table:
    """Tensors on both sides, or what an allocator handed out where the backend has one."""
    measured = measurement.get("phases") or {}
    sees_allocator = any(phase.get("allocated_bytes") is not None for phase in measured.values())
    figure = "allocated_bytes" if sees_allocator else "tensor_bytes"
    sides = ({name: phase[figure] for name, phase in side.items() if phase} for side in (estimate["phases"], measured))
    title = f"Largest moment of each phase ({'allocated' if sees_allocator else 'tensors'})"
    return _pairs("phases", "phase", title, *sides)


def _moment(failed: Mapping[str, Any]) -> str:
    where = words(failed["phase"])
    return where if failed["step"] is None else f"{where} of step {failed['step'] + 1}"


def _remarks(measurement: Mapping[str, Any]) -> tuple[str, ...]:
    failed, retries = measurement.get("out_of_memory"), measurement.get("num_alloc_retries")
    said = () if failed is None else (failed["message"],)
    freed = (f"the allocator freed its cache and tried again {retries} times",) if retries else ()
    return (*said, *freed, *measurement.get("notes", ()))


def _layers(estimate: Iterable[Mapping[str, Any]], measured: Iterable[Mapping[str, Any]]) -> Iterable[Table]:
    ours, theirs = ({row["name"]: row for row in rows} for rows in (estimate, measured))
    for title, figure in _LAYER_FIGURES:
        if all(row.get(figure) is None for row in theirs.values()):
            continue
        pairs = (
            (name, _pair(ours.get(name, {}).get(figure), theirs.get(name, {}).get(figure)))
            for name in dict.fromkeys((*ours, *theirs))
        )
        rows = tuple((row.name, row.count, *row.values) for row in fold(pairs))
        columns = (Column(name="layer"), Column(name="count", kind="count"), *_PAIR)
        name, heading = f"layers_{title}", f"Layers: {title}"
        yield Table(name=name, title=heading, columns=columns, rows=rows, unknown=_NOT_MEASURED)  # type: ignore[arg-type]
