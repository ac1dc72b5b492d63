"""Configurations of transformers models without the hub: a folder's ``config.json`` or the packaged copies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from vitmem.catalog import timm_name
from vitmem.errors import InvalidRequest, NotModelled, UnknownName, did_you_mean

__all__ = ["find_config", "find_timm", "is_known"]

_SUFFIX = "ForImageClassification"
#: Model types that are trained on pixels alone.
_PRETRAINING = {"vit_mae": "ViTMAEForPreTraining"}
#: Model types without a classifier, which get one on top of their base model.
_BASE = {"dinov3_vit": "DINOv3ViTModel"}


def find_config(model: str) -> tuple[str, dict[str, Any]]:
    """The class name and the ``config.json`` of a hub id or of a folder; nothing is downloaded, nothing executed."""
    folder = Path(model)
    if folder.is_dir():
        return _from_folder(folder)
    known = _packaged()
    if model not in known:
        raise UnknownName(f"no configuration of {model!r} is packaged{did_you_mean(model, known)}")
    entry = known[model]
    return entry["class"], dict(entry["config"])


def is_known(model: str) -> bool:
    """Whether ``model`` is a folder with a configuration of transformers or a packaged hub id."""
    is_folder = (Path(model) / "config.json").is_file()
    return model in _packaged() if not is_folder else "architecture" not in _read(Path(model))


def find_timm(model: str) -> tuple[str, dict[str, Any]]:
    """timm's own name, and the ``model_args`` of a folder that timm's ``save_pretrained`` wrote."""
    if not (Path(model) / "config.json").is_file():
        return timm_name(model), {}
    config = _read(Path(model))
    return timm_name(str(config["architecture"])), dict(config.get("model_args") or {})


def _packaged() -> Mapping[str, Any]:
    source = resources.files("vitmem.data.models") / "transformers.json"
    if not source.is_file():
        return {}
    models: Mapping[str, Any] = json.loads(source.read_text(encoding="utf-8"))["models"]
    return models


def _from_folder(folder: Path) -> tuple[str, dict[str, Any]]:
    if "model_type" not in (config := _read(folder)):
        raise InvalidRequest(f"{folder / 'config.json'} names no model_type; it must be a transformers configuration")
    for name in config.get("architectures") or ():
        if str(name).endswith(_SUFFIX):
            return str(name), config
    return _class_of(str(config["model_type"])), config


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidRequest(f"{folder} has no config.json; save the model's configuration there")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidRequest(f"{path} holds no JSON object")
    return config


def _class_of(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES

    name = _PRETRAINING.get(model_type) or _BASE.get(model_type) or NAMES.get(model_type)
    if name is None:
        raise NotModelled(f"transformers has no image classifier for model_type {model_type!r}")
    return name if isinstance(name, str) else str(name[0])
