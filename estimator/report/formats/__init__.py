"""Output formats by file suffix: each module here draws a report as the text of a file with that suffix."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from ..tables import Report

__all__ = ["renderer", "suffixes"]


def suffixes() -> tuple[str, ...]:
    """Every known suffix, such as ``.json``: one module of this package each."""
    return tuple(f".{module.name}" for module in pkgutil.iter_modules(__path__))


def renderer(suffix: str) -> Callable[[Report], str]:
    """The ``render`` function of the format; ``suffix`` is one of :func:`suffixes`."""
    render: Callable[[Report], str] = importlib.import_module(f".{suffix.lstrip('.')}", __name__).render
    return render
