"""What a command needed on a null device (the JSON of ``vitmem null``) as a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import format_bytes
from .estimate import words
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["null_report"]


def null_report(document: Mapping[str, Any]) -> Report:
    """``document`` is a NullRun as plain values."""
    failed = document["out_of_memory"]
    lines = [*([] if failed is None else [failed["message"]]), *document["notes"]]
    return Report(
        headline=_headline(document),
        subtitle=(" ".join(document["command"]), _device(document)),
        tables=(_peaks(document), *_phases(document)),
        notes=(Notes(title="Notes", lines=tuple(lines)),),
        document=document,
    )


def _headline(document: Mapping[str, Any]) -> str:
    peak, failed = document["peak"], document["out_of_memory"]
    figures = f"{format_bytes(peak['allocated_bytes'])} allocated, {format_bytes(peak['reserved_bytes'])} reserved"
    if failed is not None:
        return f"Out of memory in {words(failed['phase'])} of step {failed['step'] + 1}, after {figures}."
    return f"{figures} at the peak; {document['num_steps']} optimizer steps."


def _device(document: Mapping[str, Any]) -> str:
    device = document["device"]
    left = format_bytes(device["memory_bytes"] - device["context_bytes"])
    return (
        f"{device['name']} (null, compute capability {device['capability']}): {format_bytes(device['memory_bytes'])}, "
        f"{left} after the CUDA context. torch {document['versions']['torch']}."
    )


def _peaks(document: Mapping[str, Any]) -> Table:
    peak = document["peak"]
    rows: tuple[tuple[Cell, ...], ...] = (
        ("allocated", peak["allocated_bytes"]),
        ("reserved", peak["reserved_bytes"]),
    )
    counts = f"{document['num_alloc_retries']} retries, {document['num_ooms']} out of memory"
    title = f"The peak ({counts})"
    return Table(name="peak", title=title, columns=(Column(name="peak"), Column(name="size", kind="bytes")), rows=rows)


def _phases(document: Mapping[str, Any]) -> tuple[Table, ...]:
    """One row per phase: the first two steps, and what later ones reach at most."""
    steps = [*document["steps"], *([document["phases"]] if document["phases"] else [])]
    if not steps:
        return ()
    names = dict.fromkeys(name for step in steps for name in step)
    titles = [f"step {place + 1}" for place in range(len(document["steps"]))]
    columns = [*titles, *(["later steps"] if document["phases"] else [])]
    rows = tuple(
        (words(name), *(step[name]["allocated_bytes"] if name in step else None for step in steps)) for name in names
    )
    return (
        Table(
            name="phases",
            title="Largest moment of each phase (allocated)",
            columns=(Column(name="phase"), *(Column(name=title, kind="bytes") for title in columns)),
            rows=rows,
            unknown="-",
        ),
    )
