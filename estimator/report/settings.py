"""Settings as a person would type them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["named_settings"]


def named_settings(given: Mapping[str, Any]) -> str:
    """``bs 8, accum 4``: by the flags' names; what is None goes without saying, and buckets go with the engine."""
    named = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    named.pop("zero-options", None)
    return ", ".join(f"{name} {_value(value)}" for name, value in named.items())


def _value(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
