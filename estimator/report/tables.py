"""What every output format draws: a headline, tables with typed columns, and lists of notes. No layout here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ..units import format_bytes

__all__ = ["UNKNOWN", "Cell", "Column", "Notes", "Report", "Table", "format_cell"]

#: Unknown is not zero: a figure that this version does not know is ``None`` in a table and this text on display.
UNKNOWN = "not known yet"

Cell = str | int | float | None
ColumnKind = Literal["text", "count", "bytes", "signed_bytes", "share", "error"]


class Column(NamedTuple):
    """``kind`` says how a value reads: ``share`` and ``error`` are fractions, ``signed_bytes`` is a difference."""

    name: str
    kind: ColumnKind = "text"


class Table(NamedTuple):
    """Rows of raw values in the order of ``columns``; ``total`` is a last row that sums up, ``note`` a remark below,
    ``unknown`` what a ``None`` reads as."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] | None = None
    note: str | None = None
    unknown: str = UNKNOWN


class Notes(NamedTuple):
    """A titled list of sentences: assumptions, what is not modelled, warnings."""

    title: str
    lines: tuple[str, ...]


class Report(NamedTuple):
    """One result, ready for any format; ``document`` is the JSON of the contract, ``records`` what a format for
    programs writes line by line instead of the tables, where there is something to read back."""

    headline: str
    subtitle: tuple[str, ...]
    tables: tuple[Table, ...]
    notes: tuple[Notes, ...]
    document: Mapping[str, Any]
    records: Table | None = None


def format_cell(value: Cell, kind: ColumnKind, unknown: str = UNKNOWN) -> str:
    """A value as a person reads it; ``None`` is ``unknown``, never zero, and an empty string stays empty."""
    if value is None or isinstance(value, str):
        return unknown if value is None else value
    if kind == "bytes":
        return format_bytes(int(value))
    if kind == "signed_bytes":
        return "equal" if value == 0 else f"{'+' if value > 0 else '-'}{format_bytes(abs(int(value)))}"
    if kind == "share":
        return f"{100 * value:.1f} %"
    if kind == "error":
        return "none" if value == 0 else f"{100 * value:+.3f} %"
    return f"{value:,}"
