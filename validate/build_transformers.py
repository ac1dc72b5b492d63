"""transformers models: ``<Arch>ForImageClassification(config)`` from a packaged or local configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings

from .hub import find_config

__all__ = ["build", "classifiers", "enable_checkpointing", "first_parts"]

_OVERRIDES = {
    "patch": "patch_size",
    "window": "window_size",
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_ratio": "mlp_ratio",
    "dropout": "hidden_dropout_prob",
    "attn_dropout": "attention_probs_dropout_prob",
    "drop_path": "drop_path_rate",
}
_HIERARCHICAL = {**_OVERRIDES, "dim": "embed_dim"}
#: These interpolate their position embeddings in forward and keep the configuration's image size.
_INTERPOLATE = ("dinov2", "dinov2_with_registers")
_IGNORED = (
    "architectures",
    "model_type",
    "id2label",
    "label2id",
    "num_labels",
    "torch_dtype",
    "dtype",
    "_name_or_path",
)


def build(settings: TrainSettings, device: str) -> tuple[nn.Module, tuple[int, int]]:
    """The model and its training image size (height, width)."""
    import transformers

    class_name, document = find_config(settings.model)
    config = _config(settings, document)
    model_class = getattr(transformers, class_name, None)
    if model_class is None:
        raise NotModelled(f"this transformers has no class {class_name}")
    options = {} if settings.attn == "auto" else {"attn_implementation": settings.attn}
    with torch.device(device):
        model: nn.Module = model_class._from_config(config, **options)
    return model, settings.res or _size(config)


def _config(settings: TrainSettings, document: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    model_type = document["model_type"]
    fields = {name: value for name, value in document.items() if name not in _IGNORED}
    config = AutoConfig.for_model(model_type, num_labels=settings.num_classes, **fields)
    vision = getattr(config, "vision_config", config)
    for name, value in _overrides(settings, vision, model_type).items():
        setattr(vision, name, value)
    return config


def _overrides(settings: TrainSettings, vision: Any, model_type: str) -> dict[str, Any]:
    names = _HIERARCHICAL if hasattr(vision, "embed_dim") else _OVERRIDES
    changed = {ours: getattr(settings, name) for name, ours in names.items() if getattr(settings, name) is not None}
    if settings.patch_drop is not None:
        raise InvalidRequest("patch_drop is timm's; transformers models have no such setting")
    if "mlp_ratio" in changed and not hasattr(vision, "mlp_ratio"):
        width = changed.get("hidden_size", vision.hidden_size)
        changed["intermediate_size"] = int(width * changed.pop("mlp_ratio"))
    if settings.res is not None and model_type not in _INTERPOLATE:
        height, width = settings.res
        changed["image_size"] = height if height == width else [height, width]
    for name in changed:
        if not hasattr(vision, name):
            raise InvalidRequest(f"{settings.model} has no setting {name} in its configuration")
    return changed


def _size(config: Any) -> tuple[int, int]:
    size = getattr(config, "vision_config", config).image_size
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


def enable_checkpointing(model: Any, first: int | None) -> None:
    """``gradient_checkpointing_enable()``; with ``first``, switched off again behind the first layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    try:
        model.gradient_checkpointing_enable()
    except ValueError as error:
        raise InvalidRequest(f"{type(model).__name__} has no gradient checkpointing: {error}") from error
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers[len(layers) if first is None else first :]:
        layer.gradient_checkpointing = False


def classifiers(model: nn.Module) -> list[nn.Module]:
    """The classification head, or heads."""
    return [module for name, module in model.named_children() if "classifier" in name]


def first_parts(model: nn.Module, first: int) -> Iterator[nn.Module]:
    """Embeddings (tokens included) and the first layers of the encoder."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last == "embeddings":
            yield module
        if last in ("layer", "layers") and isinstance(module, nn.ModuleList):
            yield from list(module)[:first]
            return
