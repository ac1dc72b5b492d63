"""What every command that prints a result shares: ``--json``, ``--out`` and ``--force``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InvalidRequest

if TYPE_CHECKING:
    from ..report.files import Target
    from ..report.tables import Report

__all__ = ["emit", "json_option", "out_options", "target_of", "wrapped"]

_COLUMNS = 80

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def json_option(command: _Decorated) -> _Decorated:
    """Decorate a command with ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="print JSON and nothing else")(command)


def out_options(command: _Decorated) -> _Decorated:
    """Decorate a command with ``--out`` and ``--force``."""
    command = click.option("--force", is_flag=True, help="let --out replace a file")(command)
    return click.option("--out", metavar="FILE", help="also write to FILE: .json, .md, .csv or .txt, by its suffix")(
        command
    )


def target_of(out: str | None, force: bool, more: Sequence[str] = ()) -> Target | None:
    """The file to write, refused before anything is computed where it cannot be written; ``more`` are suffixes that the
    command draws by itself."""
    if out is None:
        return None
    from pathlib import Path

    from ..report.files import Target

    if not out.strip():
        raise InvalidRequest("out is empty; name a file, such as report.md")
    return Target(path=Path(out), force=force, more=more)


def emit(report: Report, *, as_json: bool, target: Target | None) -> None:
    """Write the file, then print to stdout."""
    if target is not None:
        target.write(report)
        print(f"wrote {target.path}", file=sys.stderr)
    if as_json:
        from ..report.formats import renderer

        click.echo(renderer(".json")(report), nl=False)
    else:
        from ..report.terminal import draw

        draw(report)


def wrapped(text: str) -> str:
    """Lines of at most 80 columns for a terminal; paths and options stay whole."""
    import textwrap

    lines = (
        textwrap.fill(line, _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
    return "\n".join(lines)
