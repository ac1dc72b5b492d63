"""What a pasted error was (the JSON of ``vitmem explain``) as a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import Cell, Column, Notes, Report, Table

__all__ = ["explain_report"]

_SHOWN = 140
_ROWS = (
    ("asked for", "requested_bytes"),
    ("free on the GPU", "free_bytes"),
    ("allocated by PyTorch", "allocated_bytes"),
    ("reserved by PyTorch, unused", "unallocated_bytes"),
    ("this process, all in all", "process_bytes"),
    ("in use and not named", "unexplained_bytes"),
    ("allowed to this process", "allowed_bytes"),
    ("the GPU", "total_bytes"),
)


def explain_report(document: Mapping[str, Any]) -> Report:
    """``document`` is an Explanation as plain values."""
    evidence, phase = document["evidence"], document["phase_name"]
    where = f"In {phase}. " if phase else ""
    shown = evidence["text"] if len(evidence["text"]) <= _SHOWN else f"{evidence['text'][:_SHOWN]} ..."
    return Report(
        headline=document["summary"],
        subtitle=(f"{where}Line {evidence['line']}: {shown}",),
        tables=_figures(document["figures"]),
        notes=(
            Notes(
                title="What to change, the likeliest first",
                lines=tuple(f"{row['setting']}: {row['text']}" for row in document["advice"]),
            ),
            Notes(title="Next", lines=tuple(document["next"])),
            Notes(title="Notes", lines=(*_also(document["also"]), *document["notes"])),
        ),
        document=document,
    )


def _figures(figures: Mapping[str, Any] | None) -> tuple[Table, ...]:
    if figures is None:
        return ()
    others = tuple((f"process {other['pid']}", other["bytes"]) for other in figures["others"])
    rows: tuple[tuple[Cell, ...], ...] = (
        *((name, figures[key]) for name, key in _ROWS if figures[key] is not None),
        *others,
    )
    gpu = "the GPU" if figures["gpu"] is None else f"GPU {figures['gpu']}"
    columns = (Column(name="memory"), Column(name="size", kind="bytes"))
    return (Table(name="figures", title=f"What the message says of {gpu}", columns=columns, rows=rows),)


def _also(kinds: list[str]) -> tuple[str, ...]:
    return (f"the text also shows: {', '.join(kind.replace('_', ' ') for kind in kinds)}",) if kinds else ()
