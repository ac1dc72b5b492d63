"""timm ``Xcit`` (timm 1.0.31, models/xcit.py): attention between channels, convolutions between patches.

Shapes: B images, H x W grid, N patches, C width, h heads, d head size.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._plan import Plan
from ._timm_class_attention import ClassAttn, Mlp
from ._timm_config import resolved
from ._timm_xcit_config import Config, configured
from ._timm_xcit_stem import ConvPatchEmbed, PositionalEncodingFourier
from .nn import BatchNorm2d, Conv2d, Dropout, LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(model, settings)
    math_kernel = "attention between channels runs the math kernel: the fused ones want channels dense in memory"
    cudnn = "what cuDNN keeps and borrows for batch normalisation (its reserve is saved for the backward pass)"
    return Plan(
        model=model,
        build=partial(Xcit, config=config),
        image_size=config.img_size,
        patch_size=(config.patch_size[0], 1),
        num_tokens=math.prod(config.grid) + 1,
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head",),
        stem=("model", "patch_embed", "pos_embed", "pos_drop"),
        attn=config.attn,
        resolved=resolved(config),
        assumptions=(math_kernel,) if config.fused_xca else (),
        not_modelled=(cudnn,) if settings.precision in {"fp32", "fp16"} else (),
    )


class XCA(Module):
    """Cross-covariance attention, between the channels of a head: [B, N, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.heads, self.fused = config.num_heads, config.fused_xca
        self.attn_drop, self.proj_drop = config.attn_drop_rate, config.proj_drop_rate
        self.temperature = scope.parameter("temperature", self.heads, 1, 1)
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=config.qkv_bias)
        self.proj = Linear(scope / "proj", dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.reshape(self.qkv(x), b, n, 3, self.heads, c // self.heads), 2, 0, 3, 4, 1)
        q, k, v = ops.unbind(qkv, 0)
        if self.fused:
            q = ops.mul(ops.normalize(q), self.temperature)
            k = ops.normalize(k)
            x = ops.scaled_dot_product_attention(q, k, v)
        else:
            q = ops.normalize(q)
            k = ops.normalize(k)
            attn = ops.mul(ops.matmul(q, ops.transpose(k, 2, 3)), self.temperature)
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.attn_drop)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.permute(x, 0, 3, 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class LPI(Module):
    """Local patch interaction: two depth-wise 3 x 3 convolutions around GELU and batch norm; [B, N, C]."""

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.conv1 = Conv2d(scope / "conv1", dim, dim, (3, 3), stride=1, padding=1, groups=dim)
        self.bn = BatchNorm2d(scope / "bn", dim)
        self.conv2 = Conv2d(scope / "conv2", dim, dim, (3, 3), stride=1, padding=1, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        b, n, c = x.shape
        x = ops.reshape(ops.permute(x, 0, 2, 1), b, c, height, width)
        x = self.conv1(x)
        x = ops.gelu(x)
        x = self.bn(x)
        x = self.conv2(x)
        x = ops.permute(ops.reshape(x, b, c, n), 0, 2, 1)
        return x


class XCABlock(Module):
    """Channel attention, local patch interaction and MLP, each branch scaled per channel."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.drop_path = config.drop_path_rate
        self.gamma1 = scope.parameter("gamma1", dim)
        self.gamma3 = scope.parameter("gamma3", dim)
        self.gamma2 = scope.parameter("gamma2", dim)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = XCA(scope / "attn", config)
        self.norm3 = LayerNorm(scope / "norm3", dim)
        self.local_mp = LPI(scope / "local_mp", dim)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), config.proj_drop_rate)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        rate = self.drop_path
        x = ops.add(x, drop_path(ops.mul(self.gamma1, self.attn(self.norm1(x))), rate))
        x = ops.add(x, drop_path(ops.mul(self.gamma3, self.local_mp(self.norm3(x), height, width)), rate))
        x = ops.add(x, drop_path(ops.mul(self.gamma2, self.mlp(self.norm2(x))), rate))
        return x


class ClassAttentionBlock(Module):
    """The class token attends to the patches, which pass through; [B, 1 + N, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.tokens_norm = config.tokens_norm
        self.gamma1 = scope.parameter("gamma1", dim)
        self.gamma2 = scope.parameter("gamma2", dim)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = ClassAttn(
            scope / "attn",
            dim,
            config.num_heads,
            qkv_bias=config.qkv_bias,
            fused=config.fused_class_attn,
            attn_drop=config.attn_drop_rate,
            proj_drop=config.proj_drop_rate,
        )
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), config.proj_drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        x_norm1 = self.norm1(x)
        x_attn = ops.cat([self.attn(x_norm1), ops.narrow(x_norm1, 1, 1, n)], 1)
        x = ops.add(x, ops.mul(self.gamma1, x_attn))
        if self.tokens_norm:
            x = self.norm2(x)
        else:
            x = ops.cat([self.norm2(ops.narrow(x, 1, 0, 1)), ops.narrow(x, 1, 1, n)], 1)
        x_res = x
        cls_token = ops.narrow(x, 1, 0, 1)
        cls_token = ops.mul(self.gamma2, self.mlp(cls_token))
        x = ops.cat([cls_token, ops.narrow(x, 1, 1, n)], 1)
        x = ops.add(x_res, x)
        return x


class Xcit(Module):
    """[B, 3, rows, columns] -> [B, num_classes]."""

    no_weight_decay = frozenset({"cls_token", "pos_embed.token_projection.weight", "pos_embed.token_projection.bias"})

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width = config.embed_dim
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        self.patch_embed = ConvPatchEmbed(scope.row("patch_embed"), config)
        self.pos_embed = PositionalEncodingFourier(scope.row("pos_embed"), width) if config.use_pos_embed else None
        self.pos_drop = Dropout(scope.row("pos_drop"), config.pos_drop_rate)
        blocks, last = scope / "blocks", scope.row("cls_attn_blocks")
        self.xca_blocks = [XCABlock(blocks.row(str(i)), config) for i in range(config.depth)]
        self.cls_attn_blocks = [ClassAttentionBlock(last / str(i), config) for i in range(config.cls_attn_layers)]
        self.blocks = [*self.xca_blocks, *self.cls_attn_blocks]  # set_grad_checkpointing takes both
        self.norm = LayerNorm(scope.row("norm"), width)
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.head = Linear(scope.row("head"), width, config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.forward_head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, position, blocks, class attention, final norm; the encoding stays a local name to the end."""
        b = x.shape[0]
        x, height, width = self.patch_embed(x)
        if self.pos_embed is not None:
            pos_encoding = ops.permute(ops.reshape(self.pos_embed(b, height, width), b, -1, x.shape[1]), 0, 2, 1)
            x = ops.add(x, pos_encoding)
        x = self.pos_drop(x)
        for block in self.xca_blocks:
            x = block(x, height, width)
        x = self.forward_cls(x)
        x = self.norm(x)
        return x

    def forward_cls(self, x: Tensor) -> Tensor:
        """The class token comes first and runs through the class attention blocks."""
        x = ops.cat([ops.expand(self.cls_token, x.shape[0], -1, -1), x], 1)
        for block in self.cls_attn_blocks:
            x = block(x)
        return x

    def forward_head(self, x: Tensor) -> Tensor:
        """Pool, dropout, classifier."""
        x = ops.select(x, 1, 0) if self.config.global_pool == "token" else ops.mean(ops.narrow(x, 1, 1, x.shape[1]), 1)
        x = self.head_drop(x)
        x = self.head(x)
        return x
