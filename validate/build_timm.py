"""timm models: ``timm.create_model`` for timm's and plain loops, transformers' TimmWrapper for the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vitmem.errors import InvalidRequest, UnknownName, did_you_mean
from vitmem.settings import TrainSettings

from .hub import find_timm

__all__ = ["blocks", "build", "classifiers", "first_parts", "fused_attention", "unwrapped"]

_OVERRIDES = {
    "res": "img_size",
    "patch": "patch_size",
    "window": "window_size",
    "dim": "embed_dim",
    "depth": "depth",
    "heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "dropout": "drop_rate",
    "attn_dropout": "attn_drop_rate",
    "drop_path": "drop_path_rate",
    "patch_drop": "patch_drop_rate",
}
_TOKENS = ("cls_token", "pos_embed", "reg_token", "dist_token", "absolute_pos_embed")
_STEMS = ("patch_embed", "pos_embed", "norm_pre", "pos_drop", "patch_drop", "rope", "rel_pos_bias", "shared_rel_pos")


def build(settings: TrainSettings, device: str) -> tuple[nn.Module, tuple[int, int]]:
    """The model and its image size (height, width)."""
    import timm

    name, arguments = find_timm(settings.model)
    if not timm.is_model(name):
        raise UnknownName(f"unknown model {settings.model!r}{did_you_mean(name, timm.list_models())}")
    given = {ours: getattr(settings, key) for key, ours in _OVERRIDES.items() if getattr(settings, key) is not None}
    if not given.get("patch_drop_rate", True):
        del given["patch_drop_rate"]  # dropping nothing is what a class without the argument does
    kwargs = {**arguments, **given}
    make = _wrapped if settings.loop == "trainer" else _plain
    with fused_attention(settings.attn), torch.device(device):
        try:
            model = make(name, settings, kwargs)
        except TypeError as error:
            if "'img_size'" not in str(error):
                raise
            kwargs.pop("img_size")  # a convolutional network is built for no size and takes any
            model = make(name, settings, kwargs)
    core = unwrapped(model)
    if settings.attn == "sdpa" and not any(hasattr(module, "fused_attn") for module in core.modules()):
        raise InvalidRequest(f"{type(core).__name__} of timm has no fused attention; leave out --attn")
    return model, settings.res or _native_size(unwrapped(model))


def _plain(name: str, settings: TrainSettings, kwargs: dict[str, Any]) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, num_classes=settings.num_classes, **kwargs)
    return model


def _wrapped(name: str, settings: TrainSettings, kwargs: dict[str, Any]) -> nn.Module:
    from transformers import TimmWrapperConfig, TimmWrapperForImageClassification

    options: dict[str, Any] = {"architecture": name, "num_labels": settings.num_classes}
    config = TimmWrapperConfig(model_args=kwargs, **options)
    model: nn.Module = TimmWrapperForImageClassification(config)
    return model


@contextlib.contextmanager
def fused_attention(attn: str) -> Iterator[None]:
    """timm's switch is global and read while a model is built (timm/layers/config.py); it is put back afterwards."""
    from timm.layers import config

    before = config._USE_FUSED_ATTN
    if attn != "auto":
        config.set_fused_attn(enable=attn == "sdpa", experimental=attn == "sdpa")
    try:
        yield
    finally:
        config._USE_FUSED_ATTN = before


def _native_size(core: Any) -> tuple[int, int]:
    patch_embed = getattr(core, "patch_embed", None)
    size = getattr(patch_embed, "img_size", None) or core.default_cfg["input_size"][1:]
    return (int(size[0]), int(size[1])) if not isinstance(size, int) else (size, size)


def unwrapped(model: nn.Module) -> nn.Module:
    """timm's own module, with or without transformers' wrapper around it."""
    core: nn.Module = getattr(model, "timm_model", model)
    return core


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks in forward order; hierarchical models keep them in stages."""
    core: Any = unwrapped(model)
    if hasattr(core, "blocks"):
        return list(core.blocks)
    stages = getattr(core, "layers", None) or getattr(core, "stages", None)
    if stages is None:
        raise InvalidRequest(f"{type(core).__name__} of timm has no blocks to count")
    return [block for stage in stages for block in stage.blocks]


def classifiers(model: nn.Module) -> list[nn.Module]:
    """The layers that ``get_classifier`` names: one, or two in a distilled model."""
    core: Any = unwrapped(model)
    heads = core.get_classifier()
    return list(heads) if isinstance(heads, (tuple, list)) else [heads]


def first_parts(model: nn.Module, first: int) -> Iterator[nn.Module | nn.Parameter]:
    """Embeddings, tokens and the first blocks."""
    core = unwrapped(model)
    for name, parameter in core.named_parameters(recurse=False):
        if name in _TOKENS:
            yield parameter
    for name in _STEMS:
        if isinstance(getattr(core, name, None), nn.Module):
            yield getattr(core, name)
    yield from blocks(model)[:first]
