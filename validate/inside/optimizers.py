"""A live optimizer as the name of ``optim``; raises NotModelled where its memory is not that name's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from vitmem.errors import NotModelled

from ..optim import LOOP_DEFAULTS, make_optimizer

__all__ = ["check_groups", "name_of"]

_PLAIN: Mapping[type, str] = {
    torch.optim.Adagrad: "adagrad",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adam: "adam",
    torch.optim.NAdam: "nadam",
    torch.optim.RAdam: "radam",
    torch.optim.Adamax: "adamax",
}
#: Options that change what an optimizer keeps or borrows, with the value that the estimator plays.
_USUAL: Mapping[str, Any] = {
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "centered": False,
    "dampening": 0,
}


def name_of(optimizer: torch.optim.Optimizer, *, parameters: list[nn.Parameter]) -> str:
    """The name, checked against ``parameters``: those that are trained."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
    held = [id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if sorted(held) != sorted(id(p) for p in parameters):
        raise NotModelled(
            f"the optimizer holds {len(held)} parameters, {len(parameters)} of the model are trained: not modelled"
        )
    names = {_name(optimizer, group) for group in optimizer.param_groups}
    if len(names) != 1:
        raise NotModelled("the optimizer's groups differ in their options: that is not modelled")
    return names.pop()


def _name(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> str:
    kind = type(optimizer)
    for option, usual in _USUAL.items():
        if option in group and group[option] != usual:
            raise NotModelled(f"{kind.__name__} with {option}={group[option]} is not modelled")
    if kind is torch.optim.AdamW:
        return _implementation(kind, group, {"foreach": "adamw_torch", "fused": "adamw_torch_fused"})
    if group.get("weight_decay"):
        raise NotModelled(
            f"{kind.__name__} adds its weight decay to copies of the gradients, which is not modelled; use AdamW"
        )
    if kind is torch.optim.SGD:
        momentum, nesterov = group.get("momentum"), group.get("nesterov")
        name = "sgd" if not momentum else "sgd-nesterov" if nesterov else "sgd-momentum"
        return _implementation(kind, group, {"foreach": name})
    if kind in _PLAIN and not (kind is torch.optim.RMSprop and group.get("momentum")):
        return _implementation(kind, group, {"foreach": _PLAIN[kind]})
    raise NotModelled(f"the optimizer {kind.__module__}.{kind.__name__} as it is set is not modelled")


def _implementation(kind: type, group: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """torch takes foreach on CUDA where nobody chose (``_default_to_fused_or_foreach``)."""
    chosen = "fused" if group.get("fused") else "single tensor" if group.get("foreach") is False else "foreach"
    if chosen not in names:
        raise NotModelled(f"the {chosen} implementation of {kind.__name__} is not modelled")
    return names[chosen]


def check_groups(optimizer: torch.optim.Optimizer, settings: Any, built: nn.Module, live: nn.Module) -> None:
    """Foreach optimizers borrow by group: the groups have to be those of the loop."""
    if (settings.optim or LOOP_DEFAULTS[settings.loop]) == "adamw_torch_fused":
        return
    optimizer = getattr(optimizer, "optimizer", optimizer)
    names = {id(p): name for name, p in live.named_parameters()}
    expected = {id(p): name for name, p in built.named_parameters()}
    there = _partition(optimizer, names)
    here = _partition(make_optimizer(settings, built), expected)
    if there != here:
        raise NotModelled(
            f"the optimizer has {len(there)} groups of {sorted(map(len, there))} parameters, the {settings.loop} loop "
            f"{len(here)} of {sorted(map(len, here))}: foreach borrows memory by group; use these groups, or fused=True"
        )


def _partition(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> set[frozenset[str]]:
    groups = (frozenset(names[id(p)] for p in g["params"] if p.requires_grad) for g in optimizer.param_groups)
    return {group for group in groups if group}
