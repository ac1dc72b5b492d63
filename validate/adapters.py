"""LoRA by the real PEFT, as people adapt an image classifier: adapters on named layers, the classifier as a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vitmem import targets
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

__all__ = ["add_lora"]

#: What PEFT adapts, in an order in which a subclass comes first (tuners/lora/model.py, ``_create_new_module``).
_KINDS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)


def add_lora(
    model: nn.Module,
    settings: TrainSettings,
    *,
    classifiers: Iterable[nn.Module],
    frozen: Iterable[nn.Module | nn.Parameter],
    device: str,
) -> tuple[nn.Module, dict[str, Any]]:
    """``get_peft_model(model, LoraConfig(...))``, and the settings of LoRA with what the user left open.

    Parts that are ``frozen`` get no adapter (``exclude_modules``).
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise NotModelled("the package peft is not installed: --train lora cannot be rehearsed") from None
    names = {module: name for name, module in model.named_modules()}
    saved = [names[module] for module in classifiers]
    excluded = [names[inner] for part in frozen if isinstance(part, nn.Module) for inner in part.modules()]
    wanted = targets.lora_targets(settings, _layers(model, saved), excluded)
    rank, dropout = settings.lora_rank or targets.RANK, settings.lora_dropout or targets.DROPOUT
    config = LoraConfig(
        r=rank,
        lora_dropout=dropout,
        target_modules=targets.ALL_LINEAR if targets.ALL_LINEAR in wanted else list(wanted),
        exclude_modules=excluded or None,
        modules_to_save=saved or None,
        bias="none",
    )
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        adapted: nn.Module = get_peft_model(model, config)
    return adapted, {"lora_rank": rank, "lora_dropout": dropout, "lora_targets": list(wanted)}


def _layers(model: nn.Module, saved: list[str]) -> dict[str, str]:
    """Paths and classes of what can be adapted, in the model's order; the classifier cannot."""
    found = {}
    for name, module in model.named_modules():
        kind = next((kind.__name__ for kind in _KINDS if isinstance(module, kind)), None)
        if kind and not any(name == own or name.startswith(f"{own}.") for own in saved):
            found[name] = kind
    return found
