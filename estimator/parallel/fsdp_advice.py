"""What surprises people with FSDP2, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from ..units import format_bytes
from .fsdp_unit import Sharded
from .fsdp_wrapping import WRAPPINGS, layer_class

if TYPE_CHECKING:
    from ..step import Step

__all__ = ["fsdp_advice"]

#: Padding is worth a word from this share of the weights on.
_MUCH = 0.1


def fsdp_advice(step: Step) -> Iterator[str]:
    """On the step of resolved settings with FSDP."""
    yield from _on_wrapping(step)
    yield from _on_accumulation(step)
    yield from _on_padding(step)


def _on_wrapping(step: Step) -> Iterator[str]:
    """accelerate's own choice of modules ends with an error for many of these models."""
    if step.settings.loop != "trainer" or step.settings.wrap_layers is not None:
        return
    wrapping, layer = WRAPPINGS.get(step.plan.model.family), layer_class(step.plan)
    entry = f'fsdp_config must say "transformer_layer_cls_to_wrap": ["{layer}"]'
    if wrapping is None:
        yield f"{entry}: accelerate 1.15 ends with a ValueError for timm models, in which it looks for TimmWrapperModel"
    elif wrapping.nested:
        yield (
            f"{entry}: without it accelerate 1.15 wraps the patch embeddings twice, as a part of "
            f"{layer.replace('Layer', 'Embeddings')} and by themselves, and ends with a TypeError"
        )


def _on_accumulation(step: Step) -> Iterator[str]:
    if step.settings.accum > 1 and step.settings.loop == "trainer":
        whole = sum(p.numel for p in step.trained.values()) * step.dtype.size
        yield (
            f"until the last micro-step Trainer lets no gradient be divided (no_sync): {format_bytes(whole)} of whole "
            "gradients on every GPU"
        )


def _on_padding(step: Step) -> Iterator[str]:
    """Dimension 0 is what FSDP divides: a parameter with fewer rows than GPUs is whole on each, and gathered padded."""
    ranks, size = step.settings.gpus, step.dtype.size
    added = {
        name: size * (ranks * prod(Sharded.share_of(p.shape, ranks)) - p.numel)
        for name, p in step.scope.parameters.items()
    }
    total = sum(added.values())
    if total < _MUCH * size * sum(p.numel for p in step.scope.parameters.values()):
        return
    name = max(added, key=lambda name: added[name])
    shape = list(step.scope.parameters[name].shape)
    yield (
        f"{format_bytes(total)} of the gathered weights are padding, most of it {name} {shape}: FSDP divides the first "
        f"dimension, of which {ranks} GPUs each take at least one row, and gathers as many"
    )
