"""Which modules get a ``fully_shard`` of their own: by accelerate 1.15 (``fsdp2_prepare_model``), or in a plain loop.

accelerate wraps what the model's ``_no_split_modules`` name, then its input embeddings, its last normalisation and
what is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..engine import Module
from ..errors import NotModelled

if TYPE_CHECKING:
    from ..families import Plan
    from ..settings import TrainSettings

__all__ = ["TIMM_LAYERS", "WRAPPINGS", "Wrapped", "layer_class", "modules_of", "wrapped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """How accelerate wraps a family of transformers; paths are relative to the base model.

    ``layer`` is the class of its blocks, ``embeddings`` what ``get_input_embeddings`` returns, ``norm`` what
    ``_find_final_norm`` finds. ``nested``: ``_no_split_modules`` names a module around the input embeddings as well,
    which are then wrapped twice: accelerate ends with a TypeError.
    """

    layer: str
    embeddings: str = "embeddings.patch_embeddings"
    norm: str | None = "layernorm"
    nested: bool = False
    stages: bool = False


#: By family: models/<name>/modeling_<name>.py of transformers 5.24.
WRAPPINGS: Mapping[str, Wrapping] = {
    "hf_vit": Wrapping(layer="ViTLayer", nested=True),
    "hf_deit": Wrapping(layer="DeiTLayer", nested=True),
    "hf_vit_msn": Wrapping(layer="ViTMSNLayer", nested=True),
    "hf_dinov2": Wrapping(layer="Dinov2Layer", nested=True),
    "hf_dinov2_with_registers": Wrapping(layer="Dinov2WithRegistersLayer", nested=True),
    "hf_beit": Wrapping(layer="BeitLayer", norm=None),
    "hf_data2vec_vision": Wrapping(layer="Data2VecVisionLayer"),
    "hf_swin": Wrapping(layer="SwinStage", stages=True),
    "hf_swinv2": Wrapping(layer="Swinv2Stage", stages=True),
}


#: The classes of timm 1.0.31's blocks, for the families whose last normalisation is ``norm``.
TIMM_LAYERS: Mapping[str, str] = {"timm_vit": "Block", "timm_swin": "SwinTransformerBlock"}


def layer_class(plan: Plan) -> str:
    """The class to name in ``transformer_layer_cls_to_wrap``."""
    wrapping = WRAPPINGS.get(plan.model.family)
    return TIMM_LAYERS[plan.model.family] if wrapping is None else wrapping.layer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """Paths of the modules with a unit of their own, in the order of ``fully_shard``; ``whole`` are never let go of
    between the passes."""

    paths: tuple[str, ...]
    whole: frozenset[str] = frozenset()


def wrapped(settings: TrainSettings, plan: Plan) -> Wrapped:
    """What the loop of the settings wraps, without the root."""
    if plan.model.library == "torchvision":
        raise NotModelled(f"FSDP with {plan.model.name} was not looked at; use the model of timm or transformers")
    if settings.loop != "trainer":
        return Wrapped(paths=plan.blocks)
    _check_layers(settings, plan)
    if plan.model.family in TIMM_LAYERS:
        return Wrapped(paths=(*plan.blocks, "norm"), whole=frozenset({"norm"}))
    wrapping = WRAPPINGS[plan.model.family]
    base = plan.blocks[0].partition(".")[0]
    blocks = plan.blocks
    if wrapping.stages:
        blocks = tuple(dict.fromkeys(path.rpartition(".blocks.")[0] for path in plan.blocks))
    norm = (f"{base}.{wrapping.norm}",) if wrapping.norm else ()
    return Wrapped(paths=(*blocks, f"{base}.{wrapping.embeddings}", *norm), whole=frozenset(norm))


def _check_layers(settings: TrainSettings, plan: Plan) -> None:
    if plan.model.family not in {*WRAPPINGS, *TIMM_LAYERS}:
        raise NotModelled(f"how accelerate shards {plan.model.name} was not looked at; use --loop plain")
    if settings.wrap_layers not in {None, layer_class(plan)}:
        raise NotModelled(
            f"wrap_layers {settings.wrap_layers!r} is not modelled for {plan.model.name}; use {layer_class(plan)}"
        )


def modules_of(module: Module) -> Iterator[Module]:
    """A module and all below it."""
    yield module
    for value in vars(module).values():
        yield from _below(value)


def _below(value: Any) -> Iterator[Module]:
    if isinstance(value, Module):
        yield from modules_of(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _below(item)
