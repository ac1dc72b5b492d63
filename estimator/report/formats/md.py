"""Markdown for an issue, a pull request or a lab book."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..tables import Cell, ColumnKind, Notes, Report, Table, format_cell

__all__ = ["render"]


def render(report: Report) -> str:
    """GitHub-flavoured: a bold headline, one section per table."""
    parts = [f"**{report.headline}**", *report.subtitle]
    parts += ["\n".join(_table(table)) for table in report.tables]
    parts += ["\n".join(_notes(notes)) for notes in report.notes if notes.lines]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> Iterator[str]:
    kinds = [column.kind for column in table.columns]
    yield f"### {table.title}\n"
    yield _line(column.name for column in table.columns)
    yield _line("---" if kind == "text" else "---:" for kind in kinds)
    for row in table.rows:
        yield _line(_cell(value, kind, table.unknown) for value, kind in zip(row, kinds, strict=True))
    if table.total is not None:
        cells = [_cell(value, kind, table.unknown) for value, kind in zip(table.total, kinds, strict=True)]
        yield _line(f"**{cell}**" if cell else "" for cell in cells)
    if table.note:
        yield f"\n{table.note}"


def _cell(value: Cell, kind: ColumnKind, unknown: str) -> str:
    return format_cell(value, kind, unknown).replace("|", r"\|")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _notes(notes: Notes) -> Iterator[str]:
    yield f"### {notes.title}\n"
    yield from (f"- {line}" for line in notes.lines)
