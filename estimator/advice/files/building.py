"""What the scripts of both loops share: data, the model, what is trained of it, and checkpointing."""

from __future__ import annotations

import pprint
from collections.abc import Iterator, Mapping
from typing import Any

from ...targets import ALL_LINEAR
from .library import LIBRARIES
from .order import Order
from .render import one_line

__all__ = ["constants", "fragments", "literal", "preparations", "values"]

_DTYPES = {"pure-fp16": "torch.float16", "pure-bf16": "torch.bfloat16"}
_BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
_LEARNING_RATE = 5e-5  # TrainingArguments' own
#: Random images of an epoch, where nobody says how many there are.
_TRAIN_IMAGES = 100_000


def values(order: Order) -> dict[str, Any]:
    """What the templates' names stand for, apart from imports and constants."""
    from ... import __version__

    settings, changes = order.settings, preparations(order)
    return {
        "version": __version__,
        "model": one_line(settings.model),
        "gpu": one_line(order.gpu),
        "start": "bash launch.sh" if settings.gpus > 1 or settings.alloc_conf else "python train.py",
        "fused": settings.attn == "sdpa",
        "weights": "pretrained" if order.whole is None else "pruned",
        "backend": _BACKENDS.get(settings.sdpa_kernel, ""),
        "prepare": "".join(f"    model = {change}(model)\n" for change in changes.values()),
    }


def fragments(order: Order) -> list[str]:
    """The templates that build and change the model."""
    kernel = "no_kernel" if order.settings.sdpa_kernel == "auto" else "kernel"
    library = LIBRARIES[order.library].fragments(order)
    pruned = [] if order.whole is None else ["cut"]
    uses_parts = pruned or order.library == "torchvision" or {"probe", "freeze", "lora"} & preparations(order).keys()
    parts = ["parts"] if uses_parts else []
    return [f"pixels_{order.library}", "data", *library, *pruned, *parts, *preparations(order), kernel]


def preparations(order: Order) -> dict[str, str]:
    """Fragments with the function of each that changes the model, in the order in which they run."""
    settings = order.settings
    found = {}
    if settings.train == "linear-probe":
        found["probe"] = "train_head_only"
    if settings.train == "lora":
        found["lora"] = "adapt"
    elif settings.freeze_layers is not None:
        found["freeze"] = "freeze"
    if settings.grad_checkpointing and settings.checkpoint_layers is not None:
        found[f"checkpoint_{order.library}"] = "checkpoint_first_blocks"
    elif settings.grad_checkpointing and settings.loop == "plain":
        found[f"checkpoint_{order.library}_all"] = "checkpoint_blocks"
    return found


def constants(order: Order) -> dict[str, str]:
    """Python expressions by name."""
    settings = order.settings
    return {
        "MODEL": literal(_name(order)),
        "RESOLUTION": f"{order.model.image_size!r}  # height, width",
        "OVERRIDES": literal(LIBRARIES[order.library].overrides(order, settings)),
        "WEIGHTS": _DTYPES.get(settings.precision, "torch.float32"),
        **dict(_of_the_model(order)),
        "NUM_CLASSES": f"{settings.num_classes}  # of random images; a folder of images has its own",
        "TRAIN_IMAGES": literal(settings.train_samples or _TRAIN_IMAGES),
        "EVAL_IMAGES": literal(settings.eval_samples),
        "WORKERS": literal(settings.workers),
        "LEARNING_RATE": f"{_LEARNING_RATE}  # a default: it belongs to the effective batch",
    }


def _name(order: Order) -> str:
    if order.library == "timm":
        return order.timm_model[0]
    return order.location.removeprefix("torchvision/") if order.library == "torchvision" else order.location


def _of_the_model(order: Order) -> Iterator[tuple[str, str]]:
    """What only some models and some kinds of training need."""
    settings, used = order.settings, preparations(order)
    if order.library == "timm":
        yield "PREFIX", f"{order.prefix!r}  # where timm's own model lies"
    if order.library == "transformers":
        yield "ATTENTION", f"{None if settings.attn == 'auto' else settings.attn!r}"
    if order.whole is not None:
        yield "WHOLE", literal(LIBRARIES[order.library].overrides(order, order.whole))
        yield "WHOLE_BLOCKS", literal(order.whole_blocks)
    if order.whole is not None or any(name.startswith("checkpoint") for name in used):
        yield "BLOCKS", literal(order.blocks)
    if order.whole is not None or order.library == "torchvision" or {"probe", "lora"} & used.keys():
        yield "HEAD", literal(order.head)
    if {"freeze", "lora"} & used.keys():
        yield "FROZEN", literal(order.frozen)
    if settings.train == "lora":
        yield "LORA", literal(_lora(order))
    if settings.checkpoint_layers is not None:
        yield "CHECKPOINT_LAYERS", literal(settings.checkpoint_layers)
    if settings.grad_checkpointing and order.library == "transformers":
        yield "REENTRANT", literal(settings.checkpoint_reentrant)


def _lora(order: Order) -> Mapping[str, Any]:
    """Arguments of PEFT's ``LoraConfig``."""
    settings = order.settings
    targets = list(settings.lora_targets or ())
    return {
        "r": settings.lora_rank,
        "lora_dropout": settings.lora_dropout,
        "target_modules": ALL_LINEAR if ALL_LINEAR in targets else targets,
    }


def literal(value: Any) -> str:
    """A value as a Python expression, over several lines where it is long."""
    return pprint.pformat(value, width=100, compact=True, sort_dicts=False)
