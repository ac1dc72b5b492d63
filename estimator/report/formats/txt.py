"""What the terminal shows, without colour, 80 columns wide."""

from __future__ import annotations

from ..layout import lines_of
from ..tables import Report

__all__ = ["render"]


def render(report: Report) -> str:
    """Lines without trailing blanks."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines_of(report))
