"""timm ``SwinTransformerV2Cr`` (timm 1.0.31, models/swin_transformer_v2_cr.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window, h heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._plan import Plan
from ._timm_layers import Sequential
from ._timm_swin_config import Pair, SwinV2CrConfig, configured
from ._timm_windows import Head, Mlp, PatchMerging, WindowBlock, patch_embed, plan_in_stages, stages_of
from .nn import LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

#: The meta network of the position bias: its inner width, and its dropout, which no setting reaches.
_META_WIDTH, _META_DROP = 384, 0.125


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(SwinV2CrConfig, model, settings)
    return plan_in_stages(model, config, partial(SwinTransformerV2Cr, config=config), stages="stages", attn="eager")


class MetaMlp(Module):
    """timm/layers/mlp.py ``Mlp`` with ReLU, on every pair of a window's positions: [N * N, 2] -> [N * N, h]."""

    def __init__(self, scope: Scope, heads: int) -> None:
        super().__init__(scope)
        self.fc1 = Linear(scope / "fc1", 2, _META_WIDTH)
        self.fc2 = Linear(scope / "fc2", _META_WIDTH, heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.relu(x)
        x = ops.dropout(x, _META_DROP)
        x = self.fc2(x)
        return x


class WindowMultiHeadAttention(Module):
    """Cosine attention and a bias that the meta network makes of log-spaced offsets; [B * windows, N, C]."""

    def __init__(self, scope: Scope, config: SwinV2CrConfig, dim: int, heads: int, window: Pair) -> None:
        super().__init__(scope)
        self.heads, self.area = heads, window[0] * window[1]
        self.attn_drop, self.proj_drop = config.attn_drop_rate, config.proj_drop_rate
        self.logit_scale = scope.parameter("logit_scale", heads)
        self.qkv = Linear(scope / "qkv", dim, dim * 3)
        self.proj = Linear(scope / "proj", dim, dim)
        self.meta_mlp = MetaMlp(scope / "meta_mlp", heads)
        dtype = scope.run.buffer_dtype
        self.coordinates = scope.buffer("relative_coordinates_log", self.area**2, 2, dtype=dtype)

    def _position_bias(self) -> Tensor:
        bias = self.meta_mlp(self.coordinates)
        bias = ops.reshape(ops.transpose(bias, 1, 0), self.heads, self.area, self.area)
        bias = ops.view(bias, 1, *bias.shape)
        return bias

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.view(self.qkv(x), b, n, 3, self.heads, c // self.heads), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        attn = ops.matmul(ops.normalize(q), ops.transpose(ops.normalize(k), 2, 3))
        logit_scale = ops.exp(ops.clamp(ops.view(self.logit_scale, 1, self.heads, 1, 1)))
        attn = ops.mul(attn, logit_scale)
        attn = ops.add(attn, self._position_bias())
        if mask is not None:
            windows = mask.shape[0]
            attn = ops.view(attn, b // windows, windows, self.heads, n, n)
            attn = ops.add(attn, ops.view(mask, 1, windows, 1, n, n))
            attn = ops.view(attn, -1, self.heads, n, n)
        attn = ops.softmax(attn)
        attn = ops.dropout(attn, self.attn_drop)
        x = ops.reshape(ops.transpose(ops.matmul(attn, v), 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class Block(WindowBlock):
    """``SwinTransformerV2CrBlock``: norm at the end of each residual branch, and of some blocks."""

    def __init__(self, scope: Scope, config: SwinV2CrConfig, stage: int, index: int, rate: float) -> None:
        super().__init__(scope, config, stage, index % 2 == 1, rate)
        dim = config.stage_dim(stage)
        self.attn = WindowMultiHeadAttention(scope / "attn", config, dim, config.num_heads[stage], self.window)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.mlp = Mlp(scope / "mlp", config, dim)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.norm3 = LayerNorm(scope / "norm3", dim) if config.ends_with_norm(stage, index) else None

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, drop_path(self.norm1(self._attn(x)), self.drop_path))
        b, height, width, c = x.shape
        x = ops.reshape(x, b, -1, c)
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.drop_path))
        if self.norm3 is not None:
            x = self.norm3(x)
        x = ops.reshape(x, b, height, width, c)
        return x


class Stage(Module):
    """``SwinTransformerV2CrStage``: [B, C, H, W] in and out, channels last in memory."""

    def __init__(self, scope: Scope, config: SwinV2CrConfig, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        self.downsample = PatchMerging(scope / "downsample", config.stage_dim(stage - 1)) if stage else None
        blocks = scope / "blocks"
        self.blocks = [Block(blocks.row(str(i)), config, stage, i, rate) for i, rate in enumerate(rates)]

    def forward(self, x: Tensor) -> Tensor:
        x = ops.permute(x, 0, 2, 3, 1)
        if self.downsample is not None:
            x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        x = ops.permute(x, 0, 3, 1, 2)
        return x


class SwinTransformerV2Cr(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: SwinV2CrConfig) -> None:
        super().__init__(scope)
        self.patch_embed = patch_embed(scope.row("patch_embed"), config)
        names = scope / "stages"
        stages = stages_of(names, config, Stage)
        self.blocks = [block for stage in stages for block in stage.blocks]
        self.stages = Sequential(names, list(stages))
        self.head = Head(scope.row("head"), config, nchw=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches as [B, C, H, W], stages."""
        x = ops.permute(self.patch_embed(x), 0, 3, 1, 2)
        x = self.stages(x)
        return x
