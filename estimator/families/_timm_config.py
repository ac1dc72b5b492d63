"""What every timm family does with a row of the catalogue and the user's sizes before its own rules begin."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NoFamily
from ..settings import TrainSettings

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["arguments", "with_sizes"]

ConfigT = TypeVar("ConfigT")

_SIZES = ("img_size", "patch_size")


def arguments(config_class: type[Any], model: ModelConfig) -> dict[str, Any]:
    """The constructor's arguments of the row, sizes as (height, width); raises NoFamily for one without a field."""
    row = {name: _pair(value) if name in _SIZES else value for name, value in model.config.items()}
    known = {field.name for field in dataclasses.fields(config_class)}
    if unknown := sorted(set(row) - known):
        raise NoFamily(f"{model.name}: {', '.join(unknown)} is not modelled")
    return row


def with_sizes(config: ConfigT, settings: TrainSettings) -> ConfigT:
    """``config`` at the resolution and patch size in pixels that the user gave."""
    sizes: dict[str, tuple[int, int]] = {}
    if settings.res is not None:
        sizes["img_size"] = settings.res
    if settings.patch is not None:
        sizes["patch_size"] = (settings.patch, settings.patch)
    return dataclasses.replace(config, **sizes)  # type: ignore[type-var]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
