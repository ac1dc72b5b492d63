"""One file per model family and library, each written like that library's ``forward``.

A family is found by its name: ``plan`` of the module ``families/<name>.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import NoFamily
from ._plan import Plan

if TYPE_CHECKING:
    from ..catalog import ModelConfig
    from ..settings import TrainSettings

__all__ = ["Plan", "known_families", "plan"]


def known_families() -> list[str]:
    """The families that can be estimated."""
    from pkgutil import iter_modules  # only for the message of an error

    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith(("_", "nn")))


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The plan of ``model`` under ``settings``; raises NotModelled where no family file exists."""
    try:
        family = import_module(f"{__name__}.{model.family}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{model.family}":
            raise
        raise NoFamily(
            f"{model.name}: the family {model.family} is not modelled yet; modelled are {', '.join(known_families())}"
        ) from error
    planned: Plan = family.plan(model, settings)
    return planned
