"""torchvision ``VisionTransformer`` (torchvision 0.29.1, models/vision_transformer.py) on ``nn.MultiheadAttention``.

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ._plan import Plan, apply_overrides, require_divisible
from ._timm_layers import Sequential
from ._torchvision import Mlp, arguments, refuse
from .nn import Conv2d, Dropout, LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments; an image is a square of ``image_size`` pixels."""

    image_size: int
    patch_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    mlp_dim: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    num_classes: int = 1000

    @property
    def num_tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1


_OVERRIDES = {
    "patch": "patch_size",
    "dim": "hidden_dim",
    "depth": "num_layers",
    "heads": "num_heads",
    "mlp_ratio": "mlp_dim",
    "num_classes": "num_classes",
    "dropout": "dropout",
    "attn_dropout": "attention_dropout",
}


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that the library's builder makes with the user's sizes; raises where torchvision would."""
    config = _configured(model, settings)
    return Plan(
        model=model,
        build=partial(VisionTransformer, config=config),
        image_size=(config.image_size, config.image_size),
        patch_size=(config.patch_size, config.patch_size),
        num_tokens=config.num_tokens,
        blocks=tuple(f"encoder.layers.encoder_layer_{i}" for i in range(config.num_layers)),
        head=("heads",),
        stem=("model", "conv_proj", "encoder"),
        attn="sdpa",
        fused_evaluation=True,
        resolved={
            "patch": config.patch_size,
            "dim": config.hidden_dim,
            "depth": config.num_layers,
            "heads": config.num_heads,
            "mlp_ratio": config.mlp_dim / config.hidden_dim,
            "dropout": config.dropout,
            "attn_dropout": config.attention_dropout,
            "drop_path": 0.0,
            "patch_drop": 0.0,
        },
    )


def _configured(model: ModelConfig, settings: TrainSettings) -> Config:
    refuse(model, settings, attn="sdpa", fields=_OVERRIDES)
    row = Config(**arguments(Config, model))
    config = apply_overrides(row, settings, _OVERRIDES)
    ratio = settings.mlp_ratio or row.mlp_dim / row.hidden_dim
    config = dataclasses.replace(config, mlp_dim=int(config.hidden_dim * ratio))
    if settings.res is not None:
        height, width = settings.res
        if height != width:
            raise InvalidRequest(f"{model.name} takes square images only; use --res {min(height, width)}")
        config = dataclasses.replace(config, image_size=height)
    require_divisible("hidden_dim", config.hidden_dim, "heads", config.num_heads)
    if config.image_size % config.patch_size:
        nearest = max(config.image_size // config.patch_size, 1) * config.patch_size
        raise InvalidRequest(
            f"res {config.image_size} is no multiple of the patch size {config.patch_size}, which torchvision refuses; "
            f"use --res {nearest}"
        )
    return config


class MultiheadAttention(Module):
    """``nn.MultiheadAttention(batch_first=True)`` on itself, without weights (torch/nn/modules/activation.py)."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_dim
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.in_proj_weight = scope.parameter("in_proj_weight", 3 * width, width)
        self.in_proj_bias = scope.parameter("in_proj_bias", 3 * width)
        self.out_proj = Linear(scope / "out_proj", width, width)

    def forward(self, query: Tensor) -> Tensor:
        query = ops.transpose(query, 1, 0)
        attn_output = self._multi_head_attention_forward(query)
        attn_output = ops.transpose(attn_output, 1, 0)
        return attn_output

    def _multi_head_attention_forward(self, query: Tensor) -> Tensor:
        """torch/nn/functional.py: [N, B, C] -> [N, B, C]."""
        n, b, c = query.shape
        q, k, v = self._in_projection_packed(query)
        flat, heads = (n, b * self.num_heads, c // self.num_heads), (b, self.num_heads, n, c // self.num_heads)
        q = ops.transpose(ops.view(q, *flat), 0, 1)
        k = ops.transpose(ops.view(k, *flat), 0, 1)
        v = ops.transpose(ops.view(v, *flat), 0, 1)
        q, k, v = ops.view(q, *heads), ops.view(k, *heads), ops.view(v, *heads)
        attn_output = ops.scaled_dot_product_attention(q, k, v, self.dropout)
        del q, k, v
        attn_output = ops.reshape(ops.permute(attn_output, 2, 0, 1, 3), b * n, c)
        attn_output = ops.linear(attn_output, self.out_proj.weight, self.out_proj.bias)
        attn_output = ops.view(attn_output, n, b, c)
        return attn_output

    def _in_projection_packed(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One product, copied so that queries, keys and values each lie together: [3, N, B, C]."""
        n, b, c = query.shape
        proj = ops.linear(query, self.in_proj_weight, self.in_proj_bias)
        proj = ops.contiguous(ops.permute(ops.view(proj, n, b, 3, c), 2, 0, 1, 3))
        return ops.select(proj, 0, 0), ops.select(proj, 0, 1), ops.select(proj, 0, 2)


class EncoderBlock(Module):
    """Pre-norm block; [B, N, C], whose memory is [N, B, C] after the first attention."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.dropout = config.dropout
        self.ln_1 = LayerNorm(scope / "ln_1", config.hidden_dim)
        self.self_attention = MultiheadAttention(scope / "self_attention", config)
        self.ln_2 = LayerNorm(scope / "ln_2", config.hidden_dim)
        self.mlp = Mlp(scope / "mlp", config.hidden_dim, config.mlp_dim, config.dropout)

    def forward(self, input: Tensor) -> Tensor:
        x = self.ln_1(input)
        x = self.self_attention(x)
        x = ops.dropout(x, self.dropout)
        x = ops.add(x, input)
        y = self.ln_2(x)
        y = self.mlp(y)
        return ops.add(x, y)


class Encoder(Module):
    """Position embedding, blocks, final norm."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.pos_embedding = scope.parameter("pos_embedding", 1, config.num_tokens, config.hidden_dim)
        self.dropout = Dropout(scope.row("dropout"), config.dropout)
        layers = scope / "layers"
        self.blocks = [EncoderBlock(layers.row(f"encoder_layer_{i}"), config) for i in range(config.num_layers)]
        self.layers = Sequential(layers, list(self.blocks))
        self.ln = LayerNorm(scope.row("ln"), config.hidden_dim)

    def forward(self, input: Tensor) -> Tensor:
        input = ops.add(input, self.pos_embedding)
        output: Tensor = self.ln(self.layers(self.dropout(input)))
        return output


class VisionTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.class_token = scope.parameter("class_token", 1, 1, config.hidden_dim)
        self.conv_proj = Conv2d(scope.row("conv_proj"), 3, config.hidden_dim, (config.patch_size, config.patch_size))
        self.encoder = Encoder(scope.row("encoder"), config)
        self.blocks = self.encoder.blocks
        heads = scope.row("heads")
        self.heads = Sequential(heads, [Linear(heads / "head", config.hidden_dim, config.num_classes)])

    def forward(self, x: Tensor) -> Tensor:
        x = self._process_input(x)
        batch_class_token = ops.expand(self.class_token, x.shape[0], -1, -1)
        x = ops.cat([batch_class_token, x], 1)
        x = self.encoder(x)
        x = ops.select(x, 1, 0)
        x = self.heads(x)
        return x

    def _process_input(self, x: Tensor) -> Tensor:
        x = self.conv_proj(x)
        x = ops.reshape(x, *x.shape[:2], -1)
        x = ops.permute(x, 0, 2, 1)
        return x
