"""transformers models: ``<Arch>ForImageClassification(config)`` from a packaged or local configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings

from .heads import LinearClassifier
from .hub import find_config

__all__ = ["build", "classifiers", "computes_its_loss", "enable_checkpointing", "first_parts"]

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
#: These take any image in forward and keep the configuration's image size.
_ANY_SIZE = ("dinov2", "dinov2_with_registers", "dinov3_vit")
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
    if class_name.endswith("ForPreTraining") and settings.num_classes != TrainSettings().num_classes:
        raise InvalidRequest(f"{class_name} has no classifier; leave out num_classes")
    options = {} if settings.attn == "auto" else {"attn_implementation": settings.attn}
    with torch.device(device):
        model: nn.Module = model_class._from_config(config, **options)
        if "For" not in class_name:
            model = LinearClassifier(model)
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
    if hasattr(vision, "attention_dropout"):
        names = {**names, "attn_dropout": "attention_dropout"}
    changed = {ours: getattr(settings, name) for name, ours in names.items() if getattr(settings, name) is not None}
    if settings.patch_drop is not None:
        raise InvalidRequest("patch_drop is timm's; transformers models have no such setting")
    if "mlp_ratio" in changed and not hasattr(vision, "mlp_ratio"):
        width = changed.get("hidden_size", vision.hidden_size)
        changed["intermediate_size"] = int(width * changed.pop("mlp_ratio"))
    if "mlp_ratio" in changed:
        whole = isinstance(vision.mlp_ratio, int) and float(changed["mlp_ratio"]).is_integer()
        changed["mlp_ratio"] = int(changed["mlp_ratio"]) if whole else float(changed["mlp_ratio"])
    if settings.res is not None and model_type not in _ANY_SIZE:
        height, width = settings.res
        changed["image_size"] = height if height == width else [height, width]
    if hasattr(vision, "depths") and (settings.depth or settings.heads):
        raise InvalidRequest(f"{settings.model} has depths and heads per stage; a folder's config.json can set them")
    if "embed_dim" in changed:  # as the configuration's constructor does; Trainer fills DeepSpeed's auto from it
        changed["hidden_size"] = changed["embed_dim"] * 2 ** (len(vision.depths) - 1)
    for name in [name for name in changed if not hasattr(vision, name)]:
        if changed.pop(name):  # a rate of 0 asks for nothing
            raise InvalidRequest(f"{settings.model} has no setting {name} in its configuration")
    return changed


def _size(config: Any) -> tuple[int, int]:
    size = getattr(config, "vision_config", config).image_size
    return (int(size[0]), int(size[1])) if isinstance(size, (tuple, list)) else (int(size), int(size))


def enable_checkpointing(model: Any, first: int | None, *, reentrant: bool = False) -> None:
    """``gradient_checkpointing_enable()``; with ``first``, switched off again behind the first layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    except ValueError as error:
        raise InvalidRequest(
            f"{type(model).__name__} has no gradient checkpointing; leave it out and lower --bs with --accum, or "
            "--precision bf16, or take a model that has it: google/vit-base-patch16-224 or microsoft/swin-tiny-patch4-"
            "window7-224"
        ) from error
    if first is None:
        return
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    stages = [layer for layer in layers if _is_stage(layer)]
    if stages:
        _keep_first_blocks(stages, first)
        return
    for layer in layers[first:]:
        layer.gradient_checkpointing = False


def _is_stage(layer: Any) -> bool:
    """Whether it holds the blocks (Swin) instead of being one."""
    return isinstance(getattr(layer, "blocks", None), nn.ModuleList)


def _blocks_of(layer: Any) -> list[nn.Module]:
    return list(layer.blocks) if _is_stage(layer) else [layer]


def _keep_first_blocks(stages: list[Any], first: int) -> None:
    """A stage that holds a block beyond the first is not checkpointed as a whole; its first blocks are, one by one."""
    begins = 0
    for stage in stages:
        blocks = list(stage.blocks)
        kept = first - begins
        begins += len(blocks)
        if kept >= len(blocks):
            continue
        stage.gradient_checkpointing = False
        for block in blocks[max(kept, 0) :]:
            block.gradient_checkpointing = False
        if kept > 0 and not hasattr(blocks[0], "_gradient_checkpointing_func"):
            raise InvalidRequest(
                f"transformers checkpoints a whole {type(stage).__name__}, never a part of it; "
                f"use --checkpoint-layers {begins - len(blocks)} or {begins}"
            )


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
            blocks = [block for layer in module for block in _blocks_of(layer)]
            blocks += _decoder_layers(model)
            yield from blocks[:first]
            return


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks behind the encoder's, of a model that reconstructs its input."""
    decoder = getattr(model, "decoder", None)
    return list(getattr(decoder, "decoder_layers", ()))


def computes_its_loss(model: nn.Module) -> bool:
    """Whether the model is pre-trained on its own loss, from pixels alone."""
    return type(model).__name__.endswith("ForPreTraining")
