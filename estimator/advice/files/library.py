"""How a script builds the model: the fragments for its library, and what the library is told beside the name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...errors import NotModelled
from ...families._timm_config import OVERRIDES_WITH_PATCH_DROP
from ...settings import TrainSettings
from .order import PRUNING, Order

__all__ = ["LIBRARIES", "Library", "model_config", "resamples"]

_TIMM_ARGUMENTS = {
    "patch": "patch_size",
    "window": "window_size",
    **{ours: theirs for ours, theirs in OVERRIDES_WITH_PATCH_DROP.items() if ours != "num_classes"},
}
_HF_FIELDS = {
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
#: Arguments that torchvision's builders hand on.
_TORCHVISION_ARGUMENTS = {"dropout": "dropout", "attn_dropout": "attention_dropout"}
#: These take any image in forward and keep the configuration's image size.
_ANY_SIZE = frozenset({"hf_dinov2", "hf_dinov2_with_registers", "hf_dinov3_vit"})
#: What builds another model; rates do not.
_ARCHITECTURE = ("patch", "window", *PRUNING, "dropout", "attn_dropout", "drop_path", "patch_drop")


class Library(NamedTuple):
    """``refuse`` raises for what the script cannot build; the others answer for an order that it can."""

    refuse: Callable[[Order], None]
    overrides: Callable[[Order, TrainSettings], dict[str, Any]]
    fragments: Callable[[Order], list[str]]


def _refuse_timm(order: Order) -> None:
    """timm's classes take every argument that a family models."""


def _timm_overrides(order: Order, settings: TrainSettings) -> dict[str, Any]:
    given = _given(settings, _TIMM_ARGUMENTS)
    if not given.get("patch_drop_rate", True):
        del given["patch_drop_rate"]  # dropping nothing is what a class without the argument does
    if settings.res is not None:
        given["img_size"] = _side(settings.res)
    return {**order.timm_model[1], **given}


def _timm_fragments(order: Order) -> list[str]:
    attention = [] if order.settings.attn == "auto" else ["timm_attention"]
    reentrant = ["checkpoint_timm_reentrant"] if order.settings.checkpoint_reentrant else []
    weights = "timm_weights" if order.whole is None else "timm_cut_weights"
    return [*attention, *reentrant, "timm_wrapped" if order.settings.loop == "trainer" else "timm_plain", weights]


def _refuse_transformers(order: Order) -> None:
    if not order.model.model.class_name.endswith("ForImageClassification"):
        raise NotModelled(f"transformers has no image classifier for {order.model.model.name}; leave out --write")


def _hf_overrides(order: Order, settings: TrainSettings) -> dict[str, Any]:
    config = order.model.model.config
    vision = config.get("vision_config", config)
    names = dict(_HF_FIELDS)
    if "embed_dim" in vision:
        names["dim"] = "embed_dim"
    if "attention_dropout" in vision:
        names["attn_dropout"] = "attention_dropout"
    given = _given(settings, names)
    if "mlp_ratio" in given and "mlp_ratio" not in vision:
        width = given.get("hidden_size", vision.get("hidden_size"))
        given["intermediate_size"] = int(width * given.pop("mlp_ratio"))
    given = {name: value for name, value in given.items() if name in vision}  # a rate of 0 that the class has not
    if settings.res is not None and order.model.model.family not in _ANY_SIZE:
        given["image_size"] = _side(settings.res)
    return given


def _hf_fragments(order: Order) -> list[str]:
    weights = ["resampled", "transformers_resized_weights"] if resamples(order) else ["transformers_weights"]
    return ["transformers", *weights, *([] if order.whole is None else ["transformers_cut_weights"])]


def resamples(order: Order) -> bool:
    """Whether the published position embeddings are of another grid: those of a model in stages do not depend on it."""
    settings, family = order.settings, order.model.model.family
    resized = settings.res is not None or settings.patch is not None
    return order.library == "transformers" and resized and family not in _ANY_SIZE and "swin" not in family


def _refuse_torchvision(order: Order) -> None:
    for name in _ARCHITECTURE:
        if getattr(order.settings, name) and name not in _TORCHVISION_ARGUMENTS:
            raise NotModelled(
                f"--write: torchvision's builder of {order.model.model.name} takes no {name.replace('_', '-')}; leave "
                "out --write or that, or take timm's model"
            )


def _torchvision_overrides(order: Order, settings: TrainSettings) -> dict[str, Any]:
    given = _given(settings, _TORCHVISION_ARGUMENTS)
    if settings.res is not None and order.model.model.class_name == "VisionTransformer":
        given["image_size"] = settings.res[0]
    return given


def _torchvision_fragments(order: Order) -> list[str]:
    return ["torchvision", "torchvision_wrapped" if order.settings.loop == "trainer" else "torchvision_plain"]


LIBRARIES: Mapping[str, Library] = {
    "timm": Library(_refuse_timm, _timm_overrides, _timm_fragments),
    "transformers": Library(_refuse_transformers, _hf_overrides, _hf_fragments),
    "torchvision": Library(_refuse_torchvision, _torchvision_overrides, _torchvision_fragments),
}


def model_config(order: Order) -> str:
    """transformers' ``config.json`` of the model as it was estimated, before the overrides."""
    model = order.model.model
    document = {**model.config, "architectures": [model.class_name]}
    return json.dumps(document, indent=2) + "\n"


def _given(settings: TrainSettings, names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: getattr(settings, ours) for ours, theirs in names.items() if getattr(settings, ours) is not None}


def _side(size: tuple[int, int]) -> int | list[int]:
    height, width = size
    return height if height == width else [height, width]
