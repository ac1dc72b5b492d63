"""What every timm family does with a row of the catalogue and the user's sizes before its own rules begin."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import NoFamily
from ..settings import TrainSettings

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["OVERRIDES", "OVERRIDES_WITH_PATCH_DROP", "arguments", "resolved", "with_sizes"]

ConfigT = TypeVar("ConfigT")

_SIZES = ("img_size", "patch_size")

#: A setting and the constructor's argument for it, in the families without stages.
OVERRIDES: Mapping[str, str] = {
    "dim": "embed_dim",
    "depth": "depth",
    "heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "num_classes": "num_classes",
    "dropout": "drop_rate",
    "attn_dropout": "attn_drop_rate",
    "drop_path": "drop_path_rate",
}
OVERRIDES_WITH_PATCH_DROP: Mapping[str, str] = {**OVERRIDES, "patch_drop": "patch_drop_rate"}


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


def resolved(config: Any) -> Mapping[str, Any]:
    """The settings that the configuration of a family without stages decides, for the request that is reported."""
    decided = {setting: getattr(config, field) for setting, field in OVERRIDES.items() if setting != "num_classes"}
    return {"patch": config.patch_size[0], **decided, "patch_drop": getattr(config, "patch_drop_rate", 0.0)}


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
