"""torchvision's rows: its Vision and Swin Transformers, with the arguments that reach the class's constructor."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
import torchvision
from catalogue_timm import NUM_CLASSES, plain, recorded
from torchvision.models import VisionTransformer
from torchvision.models.swin_transformer import SwinTransformer

__all__ = ["catalogue"]

#: torchvision's modules -> the family and its class.
FAMILIES: dict[str, tuple[str, type]] = {
    "vision_transformer": ("torchvision_vit", VisionTransformer),
    "swin_transformer": ("torchvision_swin", SwinTransformer),
}
IGNORED = {"self", "num_classes", "kwargs"}


def _row(name: str, family: str, cls: type) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(recorded(cls))
        stack.enter_context(torch.device("meta"))
        model = torchvision.models.get_model(name, num_classes=NUM_CLASSES)
    return {
        "family": family,
        "class": cls.__name__,
        "config": {key: plain(value) for key, value in seen.items() if key not in IGNORED},
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "input_size": [_native_size(name, seen)] * 2,
    }


def _native_size(name: str, arguments: dict[str, Any]) -> int:
    """What the constructor is given; a Swin takes any size, so the crop that its weights were evaluated at."""
    weights: Any = next(iter(torchvision.models.get_model_weights(name)))
    return int(arguments.get("image_size") or weights.transforms().crop_size[0])


def _defaults(cls: type) -> dict[str, Any]:
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {
        p.name: plain(p.default)
        for p in parameters
        if p.name not in IGNORED and p.default is not inspect.Parameter.empty
    }


def catalogue() -> dict[str, Any]:
    """data/models/torchvision.json."""
    models, others = {}, []
    for name in torchvision.models.list_models(module=torchvision.models):
        module = torchvision.models.get_model_builder(name).__module__.rpartition(".")[2]
        if module in FAMILIES:
            models[f"torchvision/{name}"] = _row(name, *FAMILIES[module])
        else:
            others.append(f"torchvision/{name}")
    versions = {"torchvision": torchvision.__version__.split("+")[0], "torch": torch.__version__.split("+")[0]}
    defaults = {family: _defaults(cls) for family, cls in FAMILIES.values()}
    return {"versions": versions, "defaults": defaults, "models": models, "others": others}
