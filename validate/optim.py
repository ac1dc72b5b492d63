"""The real optimizer on meta parameters, told to use the implementation that it would pick on CUDA."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest import mock

import torch
from torch import nn
from vitmem.errors import NotModelled, did_you_mean
from vitmem.settings import TrainSettings

__all__ = ["LOOP_DEFAULTS", "make_optimizer"]

Groups = list[dict[str, Any]]

#: The loop's own optimizer, where ``optim`` is not given.
LOOP_DEFAULTS: Mapping[str, str] = {"trainer": "adamw_torch_fused", "plain": "adamw_torch", "timm": "sgd-nesterov"}

_LR = 1e-3


def _adafactor(groups: Groups) -> torch.optim.Optimizer:
    import transformers

    adafactor: Any = transformers.Adafactor
    optimizer: torch.optim.Optimizer = adafactor(groups, lr=_LR, scale_parameter=False, relative_step=False)
    return optimizer


def _lion(groups: Groups) -> torch.optim.Optimizer:
    """timm cuts its lists by a CUDA device's L2 cache: on meta by that of an A100."""
    from timm.optim import _helpers, lion

    optimizer: Any = lion.Lion(groups, lr=_LR, foreach=True)
    if any(parameter.device.type == "meta" for group in groups for parameter in group["params"]):
        optimizer.step = mock.patch.object(_helpers, "_foreach_chunk_elements", _elements_in_l2)(optimizer.step)
    made: torch.optim.Optimizer = optimizer
    return made


def _elements_in_l2(device: torch.device, element_size: int) -> int | None:
    """timm 1.0.31, optim/_helpers.py."""
    elements = 40 * 2**20 // (4 * element_size)
    return elements if elements >= 2**22 else None


def _schedule_free(class_name: str, *, steps_before: int = 0) -> Callable[[Groups], torch.optim.Optimizer]:
    """In train mode, after so many steps: RAdam's first four are plain gradient descent."""

    def make(groups: Groups) -> torch.optim.Optimizer:
        try:
            schedulefree: Any = importlib.import_module("schedulefree")
        except ModuleNotFoundError:
            raise NotModelled("the package schedulefree is not installed: its optimizer cannot be rehearsed") from None
        optimizer: Any = getattr(schedulefree, class_name)(groups, lr=_LR)
        optimizer.train()
        for group in optimizer.param_groups:
            group["k"] = steps_before
        made: torch.optim.Optimizer = optimizer
        return made

    return make


_MAKERS: Mapping[str, Callable[[Groups], torch.optim.Optimizer]] = {
    "adamw_torch": lambda groups: torch.optim.AdamW(groups, lr=_LR, foreach=True),
    "adamw_torch_fused": lambda groups: torch.optim.AdamW(groups, lr=_LR, fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=_LR, foreach=True),
    "sgd-momentum": lambda groups: torch.optim.SGD(groups, lr=_LR, momentum=0.9, foreach=True),
    "sgd-nesterov": lambda groups: torch.optim.SGD(groups, lr=_LR, momentum=0.9, nesterov=True, foreach=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=_LR, foreach=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=_LR, foreach=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=_LR, foreach=True),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=_LR, foreach=True),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=_LR, foreach=True),
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=_LR, foreach=True),
    "adafactor": _adafactor,
    "lion": _lion,
    "schedule_free_adamw": _schedule_free("AdamWScheduleFree"),
    "schedule_free_radam": _schedule_free("RAdamScheduleFree", steps_before=4),
    "schedule_free_sgd": _schedule_free("SGDScheduleFree"),
}


def make_optimizer(settings: TrainSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the loop's parameter groups; ``plain`` has one group, the others split by weight decay."""
    name = settings.optim or LOOP_DEFAULTS[settings.loop]
    maker = _MAKERS.get(name)
    if maker is None:
        raise NotModelled(f"optimizer {name!r} cannot be rehearsed{did_you_mean(name, _MAKERS)}")
    return maker(_groups(settings.loop, model))


def _groups(loop: str, model: nn.Module) -> Groups:
    if loop == "plain":
        return [{"params": list(model.parameters())}]
    if loop == "timm":
        from timm.optim._param_groups import param_groups_weight_decay

        spared = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()  # type: ignore[operator]
        return list(param_groups_weight_decay(model, weight_decay=2e-5, no_weight_decay_list=tuple(spared)))
    decayed = set(_decayed_names(model))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [_group(p for name, p in named if (name in decayed) is wanted) for wanted in (True, False)]


def _group(parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    return {"params": list(parameters), "weight_decay": 0.0}


def _decayed_names(model: nn.Module) -> list[str]:
    """``Trainer.get_decay_parameter_names`` (transformers 5.24)."""
    from transformers import trainer_pt_utils

    names_of: Any = trainer_pt_utils.get_parameter_names
    forbidden = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    return list(names_of(model, [nn.LayerNorm], forbidden))
