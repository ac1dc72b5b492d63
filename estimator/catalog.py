"""A model's name -> its configuration, from ``data/models`` or from a folder with a config.json.

Names are timm's (a pretrained tag and the prefixes ``timm/`` and ``hf_hub:timm/`` are accepted), Hugging Face ids,
``torchvision/NAME``, or a path. Nothing a user hands in is executed or unpickled: a config.json is read as JSON, up
to 10 MB.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from .config_file import checked, read_json, refuse_other_training
from .data import models
from .errors import InvalidRequest, NoFamily, NotModelled, UnknownName, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ModelConfig", "bytes_per_image", "names", "resolve", "timm_name"]

_LIBRARIES = ("timm", "transformers", "torchvision")
_MAX_NAME = 100
_TIMM_PREFIXES = ("hf_hub:timm/", "hf-hub:timm/", "timm/")

#: Arguments of a timm constructor that change no shape; classes are a setting of their own.
_TIMM_IGNORED = frozenset({"num_classes", "weight_init", "fix_init"})

#: timm/layers/create_norm.py accepts these strings; rows hold the class's name.
_TIMM_SPELLINGS = {"layernorm": "LayerNorm", "rmsnorm": "RmsNorm"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a family builds from: the library's own configuration fields.

    ``num_parameters`` is the library's count at 1000 classes, None for a folder's model. ``native_size`` is
    (height, width) in pixels, None where only the family knows it.
    """

    name: str
    library: str
    family: str
    class_name: str
    config: Mapping[str, Any]
    num_parameters: int | None
    native_size: tuple[int, int] | None = None


@cache
def _catalogue(library: str) -> Mapping[str, Any]:
    # the package's own folder: importlib.resources and pathlib would cost more than the rest of an estimate's imports
    with open(os.path.join(models.__path__[0], f"{library}.json"), encoding="utf-8") as file:
        loaded: Mapping[str, Any] = json.load(file)
    return loaded


def names(pattern: str | None = None) -> list[str]:
    """The names that can be estimated, timm's first; ``pattern`` is a shell pattern or a part of a name.

    :func:`resolve` also knows rows whose family is not modelled yet.
    """
    rows = {name: row for library in _LIBRARIES for name, row in _catalogue(library)["models"].items()}
    modelled = _modelled_families()
    known = [name for name, row in rows.items() if row["family"] in modelled]
    if pattern is None:
        return known
    wanted = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    return [name for name in known if fnmatch.fnmatch(name.casefold(), wanted.casefold())]


def bytes_per_image() -> Mapping[str, int]:
    """What one more image costs in training, by name, at the default settings: figures made beforehand."""
    figures: Mapping[str, int] = _catalogue("per_image")["bytes_per_image"]
    return figures


@cache
def _modelled_families() -> frozenset[str]:
    """A family is modelled where ``families/<family>.py`` exists; nothing is imported to find out."""
    folder = os.path.join(os.path.dirname(__file__), "families")
    return frozenset(name.removesuffix(".py") for name in os.listdir(folder) if name.endswith(".py"))


def resolve(model: str) -> ModelConfig:
    """The configuration behind ``model``; raises UnknownName, InvalidRequest or NotModelled with what to do."""
    if not model.strip():
        raise InvalidRequest("the model name is empty; name a model such as google/vit-base-patch16-224")
    for library in ("transformers", "torchvision"):
        if "/" in model and model in _catalogue(library)["models"]:
            return _from_row(library, model)
    if model in _catalogue("torchvision")["others"]:
        raise NoFamily(f"{model} is no Vision or Swin Transformer")
    if (known := _fromtimm_name(model)) is not None:
        return known
    if model.startswith((".", "/", "~")) or os.path.exists(model):
        from pathlib import Path  # only for a path

        return _from_folder(model, Path(model))
    raise _unknown(model)


def _unknown(model: str) -> UnknownName:
    known = [name for library in _LIBRARIES for name in _catalogue(library)["models"]]
    known += [*_catalogue("timm")["skipped"], *_catalogue("timm")["others"], *_catalogue("torchvision")["others"]]
    shown = model if len(model) <= _MAX_NAME else f"{model[:_MAX_NAME]}..."
    hint = did_you_mean(timm_name(shown), known)
    return UnknownName(f"unknown model {shown!r}{hint}; `vitmem models` lists what is known")


def _fromtimm_name(model: str) -> ModelConfig | None:
    name = timm_name(model)
    if reason := _catalogue("timm")["skipped"].get(name):
        raise NoFamily(f"{name} is not modelled: {reason}")
    if name in _catalogue("timm")["others"]:
        raise NoFamily(f"{name} of timm is outside the modelled families")
    return _from_row("timm", name) if name in _catalogue("timm")["models"] else None


def timm_name(model: str) -> str:
    """timm's own spelling: no prefix, no pretrained tag (a tag changes weights, never shapes), today's name."""
    for prefix in _TIMM_PREFIXES:
        model = model.removeprefix(prefix)
    name = model.split(".", 1)[0] if "/" not in model else model
    today: str = _catalogue("timm")["aliases"].get(name, name)
    return today


def _from_row(library: str, name: str) -> ModelConfig:
    row = _catalogue(library)["models"][name]
    return ModelConfig(
        name=name,
        library=library,
        family=row["family"],
        class_name=row["class"],
        config=row["config"],
        num_parameters=row["num_parameters"],
        native_size=_native_size(row),
    )


def _native_size(row: Mapping[str, Any]) -> tuple[int, int]:
    """timm and torchvision name it; transformers has it in the config, of the vision tower where there are two."""
    config = row["config"]
    size = row.get("input_size") or config.get("vision_config", config)["image_size"]
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _from_folder(model: str, path: Path) -> ModelConfig:
    """A folder written by ``save_pretrained``, of transformers or of timm."""
    try:
        path = path.expanduser()
    except RuntimeError as error:  # the home folder of a user that is not there
        raise InvalidRequest(f"{model}: {error}") from error
    if not os.path.exists(path):
        raise InvalidRequest(f"{model} does not exist; give a folder that holds a config.json, or a model's name")
    config = read_json(path / "config.json" if path.is_dir() else path)
    if isinstance(architecture := config.get("architecture"), str):
        return _from_timm_folder(model, architecture, config)
    model_type = config.get("model_type")
    families = _catalogue("transformers")["families"]
    if not isinstance(model_type, str):
        raise InvalidRequest(f"{model}: config.json has no model_type; is it a transformers model?")
    if model_type in _catalogue("transformers")["others"]:
        raise NoFamily(f"{model}: model_type {model_type!r} is outside the modelled families")
    if model_type not in families:
        raise NotModelled(
            f"{model}: model_type {model_type!r} is not modelled; modelled are {', '.join(sorted(families))}"
        )
    refuse_other_training(model, config)
    defaults = _catalogue("transformers")["defaults"][model_type]
    fields = {name: checked(model, name, config.get(name, default), default) for name, default in defaults.items()}
    return ModelConfig(
        name=model,
        library="transformers",
        family=families[model_type]["family"],
        class_name=families[model_type]["class"],
        config={"model_type": model_type, **fields},
        num_parameters=None,
    )


def _from_timm_folder(model: str, architecture: str, config: Mapping[str, Any]) -> ModelConfig:
    known = _fromtimm_name(architecture)
    if known is None:
        raise _unknown(architecture)
    arguments = config.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{model}: model_args in config.json must be an object")
    defaults = _catalogue("timm")["defaults"][known.family]
    changed = {}
    for name, value in arguments.items():
        if name in _TIMM_IGNORED:
            continue
        if name not in defaults:
            raise InvalidRequest(f"{model}: unknown argument {name!r} in model_args{did_you_mean(name, defaults)}")
        changed[name] = checked(model, name, _TIMM_SPELLINGS.get(str(value), value), defaults[name])
    return dataclasses.replace(known, name=model, config={**known.config, **changed}, num_parameters=None)
