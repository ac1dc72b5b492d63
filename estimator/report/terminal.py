"""A report for a person at a terminal: the answer first, readable without colour, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from .tables import Cell, Column, Notes, Report, Table, format_cell

__all__ = ["WIDTH", "draw"]

WIDTH = 80
_BAR = 24
_STYLES = {"Warnings": "yellow"}


def draw(report: Report, console: Console | None = None) -> None:
    """Print to ``console``, stdout by default."""
    console = console or Console(highlight=False)
    width = min(console.width, WIDTH)
    parts = [Text(report.headline, style="bold"), *(Text(line) for line in report.subtitle)]
    parts_below: list[RenderableType] = [_table(table, console) for table in report.tables]
    parts_below += [_notes(notes) for notes in report.notes if notes.lines]
    console.print(Group(*parts, *parts_below), width=width, soft_wrap=False)


def _table(table: Table, console: Console) -> RenderableType:
    grid = Grid(
        box=SIMPLE, show_edge=False, show_footer=table.total is not None, footer_style="bold", header_style="dim"
    )
    wide = console.width >= WIDTH
    bars = _bar_column(table) if wide else None
    for place, column in enumerate(table.columns):
        total = None if table.total is None else table.total[place]
        justify = "left" if column.kind == "text" else "right"
        footer = "" if table.total is None else format_cell(total, column.kind)
        grid.add_column(column.name, footer=footer, justify=justify, overflow="fold", no_wrap=place > 0 and wide)  # type: ignore[arg-type]
    if bars is not None:
        grid.add_column("", max_width=_BAR)
    for row in table.rows:
        cells = [_cell(value, column, table.unknown) for value, column in zip(row, table.columns, strict=True)]
        if bars is not None:
            cells.append(_bar(row[bars], ascii_only=console.options.ascii_only))
        grid.add_row(*cells)
    title = Text(f"\n{table.title}", style="bold cyan")
    note = [Padding(Text(table.note, style="dim"), (0, 0, 0, 3), expand=False)] if table.note else []
    return Group(title, Padding(grid, (0, 0, 0, 2), expand=False), *note)


def _bar_column(table: Table) -> int | None:
    return next((place for place, column in enumerate(table.columns) if column.kind == "share"), None)


def _cell(value: Cell, column: Column, unknown: str) -> Text:
    text = format_cell(value, column.kind, unknown)
    if column.kind in ("signed_bytes", "error") and value:
        return Text(text, style="red")
    return Text(text, style="dim" if value is None else "")


def _bar(share: Cell, *, ascii_only: bool) -> Text:
    length = round(_BAR * share) if isinstance(share, float) else 0
    return Text(("#" if ascii_only else "\N{FULL BLOCK}") * length, style="cyan")


def _notes(notes: Notes) -> RenderableType:
    return Group(Text(f"\n{notes.title}", style=_STYLES.get(notes.title, "bold cyan")), *_bullets(notes))


def _bullets(notes: Notes) -> Iterator[RenderableType]:
    for line in notes.lines:
        grid = Grid.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(overflow="fold")
        grid.add_row("-", Text(line))
        yield Padding(grid, (0, 0, 0, 2), expand=False)
