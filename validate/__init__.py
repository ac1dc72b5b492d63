"""Runs or rehearses the real training step and compares it with the estimate; a name that is used needs torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inside.callback import MemoryCallback, MemoryWarning
    from .inside.preflight import estimate_of, preflight
    from .inside.watching import Watching, watching

__all__ = ["MemoryCallback", "MemoryWarning", "Watching", "estimate_of", "preflight", "watching"]

_MODULES = {
    "MemoryCallback": "callback",
    "MemoryWarning": "callback",
    "Watching": "watching",
    "estimate_of": "preflight",
    "preflight": "preflight",
    "watching": "watching",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".inside.{_MODULES[name]}", __name__), name)
