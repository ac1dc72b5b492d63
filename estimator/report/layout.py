"""Reports as lines of plain text with named styles; by hand, because a library takes longer than the estimate does."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .tables import Cell, ColumnKind, Notes, Report, Table, format_cell

__all__ = ["WIDTH", "Span", "lines_of"]

WIDTH = 80
_BAR = 24
_GAP = "   "
_INDENT = "  "
_NARROWEST_NAME = 12


class Span(NamedTuple):
    """A piece of a line; ``style`` is ``""``, ``headline``, ``title``, ``dim``, ``bad`` or ``bar``."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


def lines_of(report: Report, *, width: int = WIDTH, ascii_only: bool = False) -> Iterator[Line]:
    """The lines of a report, none longer than ``width`` (at most :data:`WIDTH`) characters."""
    width = max(min(width, WIDTH), 20)
    yield from _wrapped(report.headline, width, "headline")
    for sentence in report.subtitle:
        yield from _wrapped(sentence, width)
    for table in report.tables:
        yield ()
        yield from _table(table, width, ascii_only=ascii_only)
    for notes in report.notes:
        if notes.lines:
            yield ()
            yield from _notes(notes, width)


def _wrapped(text: str, width: int, style: str = "", *, first: str = "", rest: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False):
        yield (Span(line, style),)


def _notes(notes: Notes, width: int) -> Iterator[Line]:
    yield (Span(notes.title, "title"),)
    for line in notes.lines:
        yield from _wrapped(line, width, first=f"{_INDENT}- ", rest=f"{_INDENT}  ")


def _table(table: Table, width: int, *, ascii_only: bool) -> Iterator[Line]:
    yield from _wrapped(table.title, width, "title")
    grid = _Grid(table, ascii_only=ascii_only)
    spare = width - len(_INDENT) - grid.across
    if spare < 0 and grid.widths[0] + spare < _NARROWEST_NAME:
        yield from grid.records(width)
    else:
        grid.widths[0] += min(spare, 0)
        yield from grid.lines(bars=spare >= len(_GAP) + _BAR)
    if table.note:
        yield from _wrapped(table.note, width, "dim", first=_INDENT, rest=_INDENT)


class _Grid:
    """A table's cells as text, and the two ways to lay them out."""

    def __init__(self, table: Table, *, ascii_only: bool) -> None:
        self.ascii_only = ascii_only
        self.kinds = [column.kind for column in table.columns]
        self.header = [Span(column.name, "dim") for column in table.columns]
        self.body = [self._cells(row, table.unknown) for row in table.rows]
        self.total = [] if table.total is None else self._cells(table.total, table.unknown)
        self.bars = _bars(table, "#" if ascii_only else "\N{FULL BLOCK}")
        rows = [row for row in (self.header, *self.body, self.total) if row]
        self.widths = [max(len(row[place].text) for row in rows) for place in range(len(self.kinds))]

    @property
    def across(self) -> int:
        return sum(self.widths) + len(_GAP) * (len(self.widths) - 1)

    def _cells(self, row: Iterable[Cell], unknown: str) -> list[Span]:
        return [_span(value, kind, unknown) for value, kind in zip(row, self.kinds, strict=True)]

    def lines(self, *, bars: bool) -> Iterator[Line]:
        """Columns under a header; names that are too long go on below, from word to word."""
        dash = "-" if self.ascii_only else "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
        rule = (Span(_INDENT), Span(dash * self.across, "dim"))
        yield from self._row(self.header)
        yield rule
        for row, bar in zip(self.body, self.bars, strict=True):
            yield from self._row(row, bar if bars else "")
        if self.total:
            yield rule
            yield from self._row(self.total)

    def _row(self, cells: list[Span], bar: str = "") -> Iterator[Line]:
        name, room = cells[0], self.widths[0]
        pieces = _name_lines(name.text, room) or [""]
        line = [Span(_INDENT), Span(pieces[0].ljust(room), name.style)]
        for cell, width, kind in list(zip(cells, self.widths, self.kinds, strict=True))[1:]:
            line += [Span(_GAP), Span(cell.text.ljust(width) if kind == "text" else cell.text.rjust(width), cell.style)]
        yield (*line, Span(_GAP), Span(bar, "bar")) if bar else tuple(line)
        for piece in pieces[1:]:
            yield (Span(_INDENT), Span(piece, name.style))

    def records(self, width: int) -> Iterator[Line]:
        """Where columns do not fit: each row as a name and one line per figure."""
        for row in [*self.body, self.total] if self.total else self.body:
            yield from _wrapped(row[0].text, width, first=_INDENT, rest=_INDENT)
            for name, cell in list(zip(self.header, row, strict=True))[1:]:
                if cell.text:
                    yield (Span(_INDENT * 2), Span(f"{name.text} ", "dim"), cell)


def _name_lines(text: str, room: int) -> list[str]:
    """From word to word; where one is too long by itself (a repository's name), after its slashes and hyphens too."""
    wrapper = textwrap.TextWrapper(room, subsequent_indent=_INDENT, break_on_hyphens=False)
    if max(map(len, text.split()), default=0) > room - len(_INDENT):
        wrapper.wordsep_simple_re = re.compile(r"(\s+|(?<=[/-])(?=\S))")
    return wrapper.wrap(text)


def _span(value: Cell, kind: ColumnKind, unknown: str) -> Span:
    text = format_cell(value, kind, unknown)
    if kind in ("signed_bytes", "error") and value:
        return Span(text, "bad")
    return Span(text, "dim" if value is None else "")


def _bars(table: Table, mark: str) -> list[str]:
    """A bar per row for the first column of shares."""
    place = next((place for place, column in enumerate(table.columns) if column.kind == "share"), None)
    shares = [0.0 if place is None else row[place] for row in table.rows]
    return [mark * round(_BAR * share) if isinstance(share, float) else "" for share in shares]
