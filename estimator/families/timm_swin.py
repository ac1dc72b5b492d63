"""timm ``SwinTransformer`` (timm 1.0.31, models/swin_transformer.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ..units import DType
from ._plan import Plan
from ._timm_layers import Sequential
from ._timm_swin_config import Pair, SwinV1Config, configured
from ._timm_windows import Head, Mlp, PatchMerging, WindowBlock, patch_embed, plan_in_stages, stages_of
from .nn import LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(SwinV1Config, model, settings)
    config = dataclasses.replace(config, fused_attn=settings.attn == "sdpa")
    attn = "sdpa" if config.fused_attn else "eager"
    return plan_in_stages(model, config, partial(SwinTransformer, config=config), stages="layers", attn=attn)


class WindowAttention(Module):
    """Packed qkv and a learnt bias per relative position; [B * windows, N, C]."""

    def __init__(self, scope: Scope, config: SwinV1Config, dim: int, heads: int, window: Pair) -> None:
        super().__init__(scope)
        self.heads, self.area = heads, window[0] * window[1]
        self.fused_attn = config.fused_attn
        self.attn_drop, self.proj_drop = config.attn_drop_rate, config.proj_drop_rate
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        self.relative_position_bias_table = scope.parameter("relative_position_bias_table", offsets, heads)
        self.index = scope.buffer("relative_position_index", self.area, self.area, dtype=DType.int64)
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=config.qkv_bias)
        self.proj = Linear(scope / "proj", dim, dim)

    def _bias(self) -> Tensor:
        rows = ops.rows_of(self.relative_position_bias_table, ops.view(self.index, -1))
        bias = ops.view(rows, self.area, self.area, -1)
        bias = ops.contiguous(ops.permute(bias, 2, 0, 1))
        return ops.view(bias, 1, *bias.shape)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.reshape(self.qkv(x), b, n, 3, self.heads, -1), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        if self.fused_attn:
            attn_mask = self._bias()
            if mask is not None:
                windows = mask.shape[0]
                mask = ops.expand(ops.view(mask, 1, windows, 1, n, n), b // windows, -1, self.heads, -1, -1)
                attn_mask = ops.add(attn_mask, ops.reshape(mask, -1, self.heads, n, n))
            x = ops.scaled_dot_product_attention(q, k, v, self.attn_drop, attn_mask)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.add(attn, self._bias())
            if mask is not None:
                windows = mask.shape[0]
                attn = ops.add(ops.view(attn, -1, windows, self.heads, n, n), ops.view(mask, 1, windows, 1, n, n))
                attn = ops.view(attn, -1, self.heads, n, n)
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.attn_drop)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class Block(WindowBlock):
    """``SwinTransformerBlock``: pre-norm."""

    def __init__(self, scope: Scope, config: SwinV1Config, stage: int, shifted: bool, rate: float) -> None:
        super().__init__(scope, config, stage, shifted, rate)
        dim = config.stage_dim(stage)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = WindowAttention(scope / "attn", config, dim, config.num_heads[stage], self.window)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", config, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        x = ops.add(x, drop_path(self._attn(self.norm1(x)), self.drop_path))
        x = ops.reshape(x, b, -1, c)
        x = ops.add(x, drop_path(self.mlp(self.norm2(x)), self.drop_path))
        x = ops.reshape(x, b, height, width, c)
        return x


class Stage(Module):
    """``SwinTransformerStage``."""

    def __init__(self, scope: Scope, config: SwinV1Config, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        self.downsample = PatchMerging(scope / "downsample", config.stage_dim(stage - 1)) if stage else None
        blocks = scope / "blocks"
        self.blocks = [Block(blocks.row(str(i)), config, stage, i % 2 == 1, rate) for i, rate in enumerate(rates)]
        self.sequence = Sequential(blocks, list(self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            x = self.downsample(x)
        x = self.sequence(x)
        return x


class SwinTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: SwinV1Config) -> None:
        super().__init__(scope)
        self.patch_embed = patch_embed(scope.row("patch_embed"), config)
        layers = scope / "layers"
        stages = stages_of(layers, config, Stage)
        self.blocks = [block for stage in stages for block in stage.blocks]
        self.layers = Sequential(layers, list(stages))
        self.norm = LayerNorm(scope.row("norm"), config.stage_dim(len(config.depths) - 1))
        self.head = Head(scope.row("head"), config)
        self.no_weight_decay = frozenset(
            path for path in scope.parameters if path.endswith("relative_position_bias_table")
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, stages, final norm."""
        x = self.patch_embed(x)
        x = self.layers(x)
        x = self.norm(x)
        return x
