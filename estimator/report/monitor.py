"""A GPU's memory over time (the JSON of ``vitmem monitor``) as a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import format_bytes
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["live_line", "monitor_report"]

_MOST_PROCESSES = 20


def monitor_report(document: Mapping[str, Any]) -> Report:
    """``document`` is a Followed as plain values."""
    gpu, peak = document["gpu"], document["peak"]
    return Report(
        headline=_headline(document),
        subtitle=(
            f"GPU {gpu['index']}, {gpu['name']}, {format_bytes(gpu['total_bytes'])}; driver {document['driver']}. "
            f"{document['num_samples']:,} samples over {document['duration_s']:.1f} s.",
        ),
        tables=(_moments(document), *_processes(document["processes"], peak)),
        notes=(Notes(title="Notes", lines=tuple(document["notes"])),),
        document=document,
    )


def live_line(used_bytes: int, total_bytes: int, process_bytes: int | None, peak_bytes: int) -> str:
    """One line for a terminal, short enough for 80 columns."""
    own = "" if process_bytes is None else f"process {format_bytes(process_bytes)}   "
    return f"{format_bytes(used_bytes)} of {format_bytes(total_bytes)}   {own}peak {format_bytes(peak_bytes)}"


def _headline(document: Mapping[str, Any]) -> str:
    peak, total = document["peak"], document["gpu"]["total_bytes"]
    left = format_bytes(max(total - peak["device_bytes"], 0))
    if peak["process_bytes"] is not None:
        return (
            f"Process {document['pid']} reached {format_bytes(peak['process_bytes'])}; "
            f"{left} of the GPU were free when it was fullest."
        )
    return f"The GPU reached {format_bytes(peak['device_bytes'])}; {left} of it were free then."


def _moments(document: Mapping[str, Any]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, f"{moment['seconds']:.1f} s", moment["device_bytes"], moment["process_bytes"])
        for name, moment in (("first", document["first"]), ("peak", document["peak"]), ("last", document["last"]))
    )
    columns = (
        Column(name="moment"),
        Column(name="after"),
        Column(name="GPU", kind="bytes"),
        Column(name=f"process {document['pid']}", kind="bytes"),
    )
    shown = len(columns) - (document["pid"] is None)
    rows = tuple(row[:shown] for row in rows)
    return Table(name="memory", title="Memory in use", columns=columns[:shown], rows=rows, unknown="-")


def _processes(processes: list[Mapping[str, int]], peak: Mapping[str, Any]) -> tuple[Table, ...]:
    if not processes:
        return ()
    rows = tuple((f"process {row['pid']}", row["peak_bytes"]) for row in processes[:_MOST_PROCESSES])
    columns = (Column(name="process"), Column(name="peak", kind="bytes"))
    return (Table(name="processes", title="Who held it", columns=columns, rows=rows),)
