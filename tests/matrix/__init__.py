"""Configurations that are held to the rehearsed real model: one module per subject, each with its ``CASES``.

A case is the settings of one step as keywords of ``vitmem.estimate``. ``tests/validate/test_matrix.py`` takes a third
of them by default and the others with ``-m slow``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

__all__ = ["CASES", "MODELS"]

CASES: list[dict[str, Any]] = [
    case for module in iter_modules(__path__) for case in import_module(f"{__name__}.{module.name}").CASES
]

#: Every model that a case names, once.
MODELS = list(dict.fromkeys(case["model"] for case in CASES))
