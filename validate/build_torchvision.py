"""torchvision models: the library's builder with the user's sizes, wrapped for the Trainer as a user would wrap it."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vitmem.errors import InvalidRequest, NotModelled, UnknownName, did_you_mean
from vitmem.settings import TrainSettings

__all__ = ["ForImageClassification", "blocks", "build", "classifiers", "first_parts", "is_torchvision", "unwrapped"]

PREFIX = "torchvision/"

_RATES = {"dropout": "dropout", "attn_dropout": "attention_dropout"}
#: Settings and the constructor's arguments of the two transformers; the other classes take no sizes.
_OVERRIDES = {
    "VisionTransformer": {
        **_RATES,
        "patch": "patch_size",
        "dim": "hidden_dim",
        "depth": "num_layers",
        "heads": "num_heads",
        "mlp_ratio": "mlp_dim",
    },
    "SwinTransformer": {
        **_RATES,
        "patch": "patch_size",
        "window": "window_size",
        "dim": "embed_dim",
        "mlp_ratio": "mlp_ratio",
        "drop_path": "stochastic_depth_prob",
    },
}
_ARCHITECTURE = ("patch", "window", "dim", "depth", "heads", "mlp_ratio", "drop_path", "patch_drop", *_RATES)
_ATTENTION = {"VisionTransformer": "sdpa", "SwinTransformer": "eager"}
_STEMS = ("class_token", "pos_embedding")


class ForImageClassification(nn.Module):
    """``TimmWrapperForImageClassification.forward`` around a torchvision model: loss and logits, no ``**kwargs``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.torchvision_model = model

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.torchvision_model(pixel_values)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return {"loss": loss, "logits": logits}


def is_torchvision(model: str) -> bool:
    """Whether the name says so."""
    return model.startswith(PREFIX)


def build(settings: TrainSettings, device: str) -> tuple[nn.Module, tuple[int, int]]:
    """The model and its image size (height, width)."""
    from torchvision import models

    name = settings.model.removeprefix(PREFIX)
    known = models.list_models(module=models)
    if name not in known:
        hint = did_you_mean(settings.model, [PREFIX + other for other in known])
        raise UnknownName(f"unknown model {settings.model!r}{hint}")
    builder = models.get_model_builder(name)
    with torch.device(device), _overridden(settings, _returned(builder), builder):
        model: nn.Module = builder(weights=None, num_classes=settings.num_classes)
    size = settings.res or _native_size(model, models.get_model_weights(name))
    return ForImageClassification(model) if settings.loop == "trainer" else model, size


def _returned(builder: Any) -> str:
    """The class that a builder says it returns."""
    returned = inspect.signature(builder).return_annotation
    return returned if isinstance(returned, str) else str(returned.__name__)


def _native_size(model: nn.Module, weights: Any) -> tuple[int, int]:
    """What the model was built for; a class that takes any size has the crop of its first published weights."""
    side = getattr(model, "image_size", None) or next(iter(weights)).transforms.keywords["crop_size"]
    return int(side), int(side)


@contextlib.contextmanager
def _overridden(settings: TrainSettings, class_name: str, builder: Any) -> Iterator[None]:
    """The builders fix the sizes of their class: while it is called, the class takes the user's instead."""
    _check(settings, class_name)
    if class_name not in _OVERRIDES:
        yield
        return
    module = inspect.getmodule(builder)
    real = getattr(module, class_name)

    @functools.wraps(real)
    def constructed(**arguments: Any) -> nn.Module:
        model: nn.Module = real(**_arguments(settings, class_name, arguments))
        return model

    with mock.patch.object(module, class_name, constructed):
        yield


def _arguments(settings: TrainSettings, class_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    changed = dict(arguments)
    for name, ours in _OVERRIDES[class_name].items():
        value = getattr(settings, name)
        if value is not None:
            changed[ours] = [value, value] if isinstance(arguments.get(ours), list) else value
    if class_name == "VisionTransformer":
        ratio = settings.mlp_ratio or arguments["mlp_dim"] / arguments["hidden_dim"]
        changed["mlp_dim"] = int(changed["hidden_dim"] * ratio)
        if settings.res is not None:
            height, width = settings.res
            if height != width:
                raise InvalidRequest(f"{settings.model} takes square images only; use --res {min(height, width)}")
            changed["image_size"] = height
    return changed


def _check(settings: TrainSettings, class_name: str) -> None:
    for name in _ARCHITECTURE:
        if not getattr(settings, name) or name in _OVERRIDES.get(class_name, ()):
            continue
        flag = f"--{name.replace('_', '-')}"
        if class_name == "SwinTransformer" and name in {"depth", "heads"}:
            raise NotModelled(f"{settings.model}: {flag} is not modelled for a model in stages")
        raise InvalidRequest(f"{class_name} of torchvision has no such setting; leave out {flag}")
    attn = _ATTENTION.get(class_name)
    if attn is not None and settings.attn not in {"auto", attn}:
        raise InvalidRequest(f"{class_name} of torchvision always runs {attn} attention; leave out --attn")


def unwrapped(model: nn.Module) -> nn.Module:
    """torchvision's own module, with or without the wrapper around it."""
    core: nn.Module = getattr(model, "torchvision_model", model)
    return core


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks in forward order: ``encoder.layers``, or what ``features`` holds in its stages."""
    core: Any = unwrapped(model)
    if hasattr(core, "encoder"):
        return list(core.encoder.layers)
    if not hasattr(core, "features"):
        raise InvalidRequest(f"{type(core).__name__} of torchvision has no blocks to count")
    return [block for stage in list(core.features)[1:] if isinstance(stage, nn.Sequential) for block in stage]


def classifiers(model: nn.Module) -> list[nn.Module]:
    """The classification head."""
    core = unwrapped(model)
    return [module for name, module in core.named_children() if name in {"head", "heads", "classifier", "fc"}]


def first_parts(model: nn.Module, first: int) -> Iterator[nn.Module | nn.Parameter]:
    """Embeddings, tokens and the first blocks."""
    core: Any = unwrapped(model)
    counted = blocks(model)[:first]
    for name, parameter in core.named_parameters():
        if name.rpartition(".")[2] in _STEMS:
            yield parameter
    yield core.conv_proj if hasattr(core, "conv_proj") else core.features[0]
    yield from counted
