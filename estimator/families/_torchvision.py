"""What torchvision's transformers share (torchvision 0.29.1): refusals, the MLP, stochastic depth by rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily, NotModelled
from ..settings import TrainSettings
from .nn import Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Mlp", "arguments", "refuse"]

#: timm's model of the same architecture, for what torchvision cannot do.
_SAME_IN_TIMM = {
    "torchvision/swin_b": "swin_base_patch4_window7_224",
    "torchvision/swin_s": "swin_small_patch4_window7_224",
    "torchvision/swin_t": "swin_tiny_patch4_window7_224",
    "torchvision/swin_v2_b": "swinv2_base_window8_256",
    "torchvision/swin_v2_s": "swinv2_small_window8_256",
    "torchvision/swin_v2_t": "swinv2_tiny_window8_256",
    "torchvision/vit_b_16": "vit_base_patch16_224",
    "torchvision/vit_b_32": "vit_base_patch32_224",
    "torchvision/vit_h_14": "vit_huge_patch14_224",
    "torchvision/vit_l_16": "vit_large_patch16_224",
    "torchvision/vit_l_32": "vit_large_patch32_224",
}

_SETTINGS = (
    "patch",
    "window",
    "dim",
    "depth",
    "heads",
    "mlp_ratio",
    "dropout",
    "attn_dropout",
    "drop_path",
    "patch_drop",
)


def arguments(config_class: type[Any], model: ModelConfig) -> dict[str, Any]:
    """The constructor's arguments of the row, lists as tuples; raises NotModelled for one without a field."""
    row = {name: tuple(value) if isinstance(value, list) else value for name, value in model.config.items()}
    known = {field.name for field in dataclasses.fields(config_class)}
    if unknown := sorted(set(row) - known):
        raise NoFamily(f"{model.name}: {', '.join(unknown)} is not modelled")
    return row


def refuse(
    model: ModelConfig,
    settings: TrainSettings,
    *,
    attn: str,
    fields: Mapping[str, str],
    in_stages: tuple[str, ...] = (),
) -> None:
    """Raise for a setting without a constructor argument in ``fields``, for another attention, for checkpointing.

    ``in_stages`` are the settings that the class has one value per stage of: valid, and not modelled.
    """
    instead = f"timm's {_SAME_IN_TIMM[model.name]} has it" if model.name in _SAME_IN_TIMM else "take a model of timm"
    for name in _SETTINGS:
        if name in fields or not getattr(settings, name):
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in in_stages:
            raise NotModelled(f"{model.name}: {flag} is not modelled for a model in stages")
        raise InvalidRequest(f"{model.name} has no such setting; leave out {flag}")
    if settings.attn not in {"auto", attn}:
        other = "" if settings.attn == "flash_attention_2" else f", or {instead}"
        raise InvalidRequest(f"{model.name} always runs {attn} attention; leave out --attn{other}")
    if settings.grad_checkpointing:
        raise InvalidRequest(
            f"{model.name} has no gradient checkpointing; leave out --grad-checkpointing, or {instead}"
        )


class Mlp(Module):
    """torchvision/ops/misc.py ``MLP``, a sequence: linear, GELU, dropout, linear, dropout."""

    def __init__(self, scope: Scope, dim: int, hidden: int, dropout: float) -> None:
        super().__init__(scope)
        self.dropout = dropout
        self.linear_1 = Linear(scope / "0", dim, hidden)
        self.linear_2 = Linear(scope / "3", hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear_1(x)
        x = ops.gelu(x)
        x = ops.dropout(x, self.dropout)
        x = self.linear_2(x)
        x = ops.dropout(x, self.dropout)
        return x
