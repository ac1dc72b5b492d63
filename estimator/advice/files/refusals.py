"""What no written file can say, and why: none of a plan's settings is left out without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import NotModelled
from ...generations import Torch
from .library import LIBRARIES
from .order import Order

__all__ = ["refuse"]

#: transformers 5.24 asks for it.
_OLDEST_TORCH = (2, 6)
_NO_FSDP: Mapping[str, tuple[tuple[Any, ...], str]] = dict.fromkeys(
    ("reshard_after_forward", "wrap_layers"), ((None,), "it is FSDP's under the Trainer")
)
_NO_DDP: Mapping[str, tuple[tuple[Any, ...], str]] = dict.fromkeys(
    ("ddp_bucket_cap_mb", "ddp_find_unused_parameters"), ((None,), "it is written for the Trainer")
)
#: A setting, the values that a loop's files can say, and the reason why no other.
_ONLY: Mapping[str, Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "trainer": {
        "zero_grad": ((None, "after-step"), "the Trainer frees gradients after its step"),
        "mixup": ((False,), "the Trainer has no loss for mixed targets"),
        "parallel": ((None, "none", "ddp", "zero1", "zero2", "zero3", "fsdp"), "no configuration of it is written"),
    },
    "plain": {
        "parallel": ((None, "none", "ddp"), "the plain loop runs on DistributedDataParallel or alone"),
        "eval_accum": ((None,), "it is the Trainer's"),
        **_NO_FSDP,
        **_NO_DDP,
    },
    "timm": {
        "train": (("full",), "timm's train.py trains the whole model"),
        "freeze_layers": ((None,), "timm's train.py trains the whole model"),
        "checkpoint_layers": ((None,), "timm's train.py checkpoints every block"),
        "zero_grad": ((None, "after-step"), "timm's train.py frees gradients after its step"),
        "sdpa_kernel": (("auto",), "timm's train.py leaves the kernel to PyTorch"),
        "parallel": ((None, "none", "ddp"), "timm's train.py runs on DistributedDataParallel or alone"),
        **_NO_FSDP,
        **_NO_DDP,
        "prefetch": ((None, 2), "timm's loader makes two batches ahead"),
        "train_samples": ((None,), "timm's train.py takes what the folder holds"),
    },
}


def refuse(order: Order) -> None:
    """Raise NotModelled for the first setting that would be dropped."""
    settings = order.settings
    for name, (known, why) in _ONLY[settings.loop].items():
        value = getattr(settings, name)
        if value not in known:
            raise NotModelled(_sentence(name, value, why))
    if settings.compile:
        raise NotModelled(_sentence("compile", True, "a compiled step is not estimated"))
    if settings.gpus > 1 and settings.parallel == "none":
        raise NotModelled(f"--write starts one training on {settings.gpus} GPUs; use --parallel ddp, or --gpus 1")
    if Torch.parse(settings.torch).version < _OLDEST_TORCH:
        raise NotModelled(_sentence("torch", settings.torch, "today's transformers asks for 2.6 or newer"))
    if not order.model.head:
        raise NotModelled(f"--write knows image classifiers; {order.model.model.name} has no classes")
    if settings.loop == "timm" and order.library != "timm":
        raise NotModelled(f"timm's train.py trains models of timm, not {settings.model}; use --loop trainer or plain")
    LIBRARIES[order.library].refuse(order)


def _sentence(name: str, value: Any, why: str) -> str:
    return f"--write knows no files for {name.replace('_', '-')} {value}: {why}; leave out --write or that"
