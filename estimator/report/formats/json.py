"""The document of the contract, in the contract's order."""

from __future__ import annotations

import json

from ..tables import Report

__all__ = ["render"]


def render(report: Report) -> str:
    """Strict JSON (no NaN), indented, with a final newline."""
    return json.dumps(report.document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
