"""Which row of the per-layer table a module belongs to: one rule, used for parameters and for allocations."""

from __future__ import annotations

import re

__all__ = ["MODEL", "layer_of"]

#: The row for everything outside the named parts of a model: the loss, the loop, loose tensors.
MODEL = "model"

_WRAPPERS = ("base_model.model", "base_model", "timm_model", "torchvision_model")
#: What PEFT puts between a layer and its parameters.
_PEFT = re.compile(r"\.(?:base_layer|original_module|(?:lora_\w+|modules_to_save)(?:\.default)?)(?=\.|$)")
_BLOCK = re.compile(r"^(?:.*\.)?(?:blocks|layers|layer|stages|decoder_layers)\.\d+(?=\.|$)")
_TORCHVISION = re.compile(
    r"^(?:encoder(?:\.layers\.encoder_layer_\d+|\.\w+)|features\.(?:0|\d+(?:\.\d+)?)|layer\d+\.\d+)(?=\.|$)"
)


def layer_of(path: str, *, library: str) -> str:
    """The row of the module at ``path`` (dotted, as ``named_modules`` spells it).

    The longest prefix that ends with a numbered block; else the first component (timm, torchvision) or the first two
    (transformers, where the first is the base model, and torchvision's ``encoder``). torchvision's blocks are
    ``encoder.layers.encoder_layer_N`` and ``features.N.M``, where ``features.0`` is the stem.

    >>> layer_of("vit.encoder.layer.3.attention.query", library="transformers")
    'vit.encoder.layer.3'
    >>> layer_of("patch_embed.proj", library="timm")
    'patch_embed'
    >>> layer_of("features.1.0.attn.qkv", library="torchvision")
    'features.1.0'
    >>> layer_of("base_model.model.classifier.modules_to_save.default", library="transformers")
    'classifier'
    """
    path = _PEFT.sub("", path)
    for wrapper in _WRAPPERS:
        path = path.removeprefix(f"{wrapper}.") if path != wrapper else ""
    block = _BLOCK.match(path) or (_TORCHVISION.match(path) if library == "torchvision" else None)
    if block is not None:
        return block[0]
    parts = path.split(".") if path else []
    if library in {"timm", "torchvision"}:
        return parts[0] if parts else MODEL
    return ".".join(parts[:2]) if parts and not _is_base_model(parts) else MODEL


def _is_base_model(parts: list[str]) -> bool:
    """``vit`` alone is the base model; the heads of transformers are single components too but are no containers."""
    return len(parts) == 1 and not re.search(r"classifier|head|norm|pool", parts[0])
