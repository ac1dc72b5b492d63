"""FSDP2 as accelerate 1.15 sets it up under Trainer, and what it has to be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

__all__ = ["as_if_on_gpus", "layer_classes", "options"]


def options(model: nn.Module, asked: Mapping[str, Any]) -> dict[str, Any]:
    """``fsdp_config``: the classes of the blocks are named where the model's own list cannot be used.

    accelerate wraps the input embeddings by themselves: a class around them in ``_no_split_modules`` (ViTEmbeddings)
    makes it wrap them twice, which ends with a TypeError; timm models name a class that is not in them.
    """
    return {"transformer_layer_cls_to_wrap": list(layer_classes(model)), **asked}


def layer_classes(model: nn.Module) -> Iterator[str]:
    """Classes of the model's blocks."""
    found = {type(module).__name__ for module in model.modules()}
    named = [name for name in getattr(model, "_no_split_modules", None) or () if not name.endswith("Embeddings")]
    if named and found.issuperset(named):
        yield from named
        return
    for path, module in model.named_modules():
        if path.endswith("blocks"):
            yield from dict.fromkeys(type(block).__name__ for block in module.children())
            return


def as_if_on_gpus() -> None:
    """accelerate starts FSDP for accelerators only (state.py), and DDP for the CPU without a word."""
    from accelerate.state import DistributedType, PartialState

    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
