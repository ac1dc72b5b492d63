"""What a pasted error or a log says about running out of memory: recognised, judged, and what to change."""

from __future__ import annotations

from .explanation import Advice, Explanation, explain

__all__ = ["Advice", "Explanation", "explain"]
