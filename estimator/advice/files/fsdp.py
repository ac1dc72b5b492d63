"""FSDP2 under the Trainer: ``fsdp_config`` of TrainingArguments (transformers 5.24), and accelerate's of the same."""

from __future__ import annotations

from typing import Any

from ...parallel.fsdp_wrapping import layer_class
from .order import Order
from .render import render

__all__ = ["accelerate_yaml", "arguments", "is_used"]


def is_used(order: Order) -> bool:
    """Whether the plan shards by FSDP."""
    return order.settings.parallel == "fsdp"


def arguments(order: Order) -> dict[str, Any]:
    """The class of blocks is named: the list that a model has of its own makes accelerate wrap some modules twice."""
    settings = order.settings
    options: dict[str, Any] = {"version": 2, "transformer_layer_cls_to_wrap": [_layers(order)]}
    if settings.reshard_after_forward is not None:
        options["reshard_after_forward"] = settings.reshard_after_forward
    if settings.offload == "all":
        options["cpu_offload"] = True
    return {"fsdp": True, "fsdp_config": options}


def accelerate_yaml(order: Order) -> str:
    """``accelerate launch --config_file``."""
    settings = order.settings
    values = {
        "gpus": settings.gpus,
        "mixed_precision": settings.precision if settings.precision in {"fp16", "bf16"} else "no",
        "layers": _layers(order),
        "reshards": str(settings.reshard_after_forward is not False).lower(),
        "offloads": str(settings.offload == "all").lower(),
    }
    return render("accelerate_fsdp.yaml", values)


def _layers(order: Order) -> str:
    return order.settings.wrap_layers or layer_class(order.model)
