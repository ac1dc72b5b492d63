"""Which row of the per-layer table a module belongs to: one rule, used for parameters and for allocations."""

from __future__ import annotations

import re

__all__ = ["MODEL", "layer_of"]

#: The row for everything outside the named parts of a model: the loss, the loop, loose tensors.
MODEL = "model"

_BLOCK = re.compile(r"^(?:.*\.)?(?:blocks|layers|layer|stages)\.\d+(?=\.|$)")


def layer_of(path: str, *, library: str) -> str:
    """The row of the module at ``path`` (dotted, as ``named_modules`` spells it).

    The longest prefix that ends with a numbered block; else the first component (timm) or the first two (transformers,
    where the first is the base model).

    >>> layer_of("vit.encoder.layer.3.attention.query", library="transformers")
    'vit.encoder.layer.3'
    >>> layer_of("patch_embed.proj", library="timm")
    'patch_embed'
    """
    path = path.removeprefix("timm_model.") if path != "timm_model" else ""
    block = _BLOCK.match(path)
    if block is not None:
        return block[0]
    parts = path.split(".") if path else []
    if library == "timm":
        return parts[0] if parts else MODEL
    return ".".join(parts[:2]) if parts and not _is_base_model(parts) else MODEL


def _is_base_model(parts: list[str]) -> bool:
    """``vit`` alone is the base model; the heads of transformers are single components too but are no containers."""
    return len(parts) == 1 and not re.search(r"classifier|head|norm|pool", parts[0])
