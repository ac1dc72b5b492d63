"""What the terminal shows, without colour, 80 columns wide."""

from __future__ import annotations

import io

from rich.console import Console

from ..tables import Report
from ..terminal import draw

__all__ = ["render"]


def render(report: Report) -> str:
    """The lines of :func:`vitmem.report.terminal.draw`, trailing blanks removed."""
    text = io.StringIO()
    draw(report, Console(file=text, width=80, no_color=True, force_terminal=False, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
