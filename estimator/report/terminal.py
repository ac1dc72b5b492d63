"""A report for a person at a terminal: the answer first, readable without colour, at most 80 columns wide."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from .layout import Span, lines_of
from .tables import Report

__all__ = ["draw"]

_STYLES: Mapping[str, Mapping[str, str | bool]] = {
    "headline": {"bold": True},
    "title": {"bold": True, "fg": "cyan"},
    "dim": {"dim": True},
    "bad": {"fg": "red"},
    "bar": {"fg": "cyan"},
}


def draw(report: Report) -> None:
    """Print to stdout: colour on a terminal unless NO_COLOR is set, ASCII where the encoding has no more."""
    width = _columns()
    lines = lines_of(report, width=width, ascii_only=not _has_boxes(sys.stdout.encoding))
    text = "\n".join("".join(_styled(span) for span in line).rstrip() for line in lines)
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)


def _columns() -> int:
    """``shutil.get_terminal_size``, whose import would cost as much as drawing the report."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def _styled(span: Span) -> str:
    return click.style(span.text, **_STYLES[span.style]) if span.style else span.text  # type: ignore[arg-type]


def _has_boxes(encoding: str | None) -> bool:
    try:
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}\N{FULL BLOCK}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
