"""timm ``SwinTransformerV2`` (timm 1.0.31, models/swin_transformer_v2.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window, h heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ..units import DType
from ._plan import Plan
from ._timm_layers import Sequential
from ._timm_swin_config import Pair, SwinV2Config, configured
from ._timm_windows import Head, Mlp, WindowBlock, patch_embed, plan_in_stages, stages_of
from .nn import LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

#: The width inside the MLP of the position bias.
_CPB_WIDTH = 512


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(SwinV2Config, model, settings)
    return plan_in_stages(model, config, partial(SwinTransformerV2, config=config), stages="layers", attn="eager")


class ReluInPlace(Module):
    """``nn.ReLU(inplace=True)``."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu_(x)


class WindowAttention(Module):
    """Cosine attention and a bias that an MLP makes of log-spaced offsets; [B * windows, N, C]."""

    def __init__(self, scope: Scope, config: SwinV2Config, dim: int, heads: int, window: Pair) -> None:
        super().__init__(scope)
        self.heads, self.area, self.qkv_bias = heads, window[0] * window[1], config.qkv_bias
        self.attn_drop, self.proj_drop = config.attn_drop_rate, config.proj_drop_rate
        dtype = scope.run.buffer_dtype
        self.logit_scale = scope.parameter("logit_scale", heads, 1, 1)
        if config.qkv_bias:
            self.q_bias = scope.parameter("q_bias", dim)
            self.k_bias = scope.buffer("k_bias", dim, dtype=dtype)
            self.v_bias = scope.parameter("v_bias", dim)
        cpb = scope / "cpb_mlp"
        first, last = Linear(cpb / "0", 2, _CPB_WIDTH), Linear(cpb / "2", _CPB_WIDTH, heads, bias=False)
        self.cpb_mlp = Sequential(cpb, [first, ReluInPlace(cpb), last])
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=False)
        self.proj = Linear(scope / "proj", dim, dim)
        offsets = (2 * window[0] - 1, 2 * window[1] - 1)
        self.coords = scope.buffer("relative_coords_table", 1, *offsets, 2, dtype=dtype)
        self.index = scope.buffer("relative_position_index", self.area, self.area, dtype=DType.int64)

    def _position_bias(self) -> tuple[Tensor, Tensor]:
        """The MLP's table, a name of ``forward`` until it returns, and the bias [h, N, N]."""
        table = ops.view(self.cpb_mlp(self.coords), -1, self.heads)
        bias = ops.view(ops.rows_of(table, ops.view(self.index, -1)), self.area, self.area, -1)
        bias = ops.contiguous(ops.permute(bias, 2, 0, 1))
        bias = ops.mul(ops.sigmoid(bias), 16.0)
        return table, bias

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, n, c = x.shape
        if self.qkv_bias:
            qkv_bias = ops.cat([self.q_bias, self.k_bias, self.v_bias], 0)
            qkv = ops.linear(x, self.qkv.weight, qkv_bias)
        else:
            qkv = self.qkv(x)
        qkv = ops.permute(ops.reshape(qkv, b, n, 3, self.heads, -1), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        attn = ops.matmul(ops.normalize(q), ops.transpose(ops.normalize(k), 2, 3))
        logit_scale = ops.exp(ops.clamp(self.logit_scale))
        attn = ops.mul(attn, logit_scale)
        _table, bias = self._position_bias()
        attn = ops.add(attn, ops.view(bias, 1, *bias.shape))
        if mask is not None:
            windows = mask.shape[0]
            attn = ops.add(ops.view(attn, -1, windows, self.heads, n, n), ops.view(mask, 1, windows, 1, n, n))
            attn = ops.view(attn, -1, self.heads, n, n)
        attn = ops.softmax(attn)
        attn = ops.dropout(attn, self.attn_drop)
        x = ops.reshape(ops.transpose(ops.matmul(attn, v), 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class Block(WindowBlock):
    """``SwinTransformerV2Block``: norm at the end of each residual branch."""

    def __init__(self, scope: Scope, config: SwinV2Config, stage: int, shifted: bool, rate: float) -> None:
        super().__init__(scope, config, stage, shifted, rate)
        dim = config.stage_dim(stage)
        self.attn = WindowAttention(scope / "attn", config, dim, config.num_heads[stage], self.window)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.mlp = Mlp(scope / "mlp", config, dim)
        self.norm2 = LayerNorm(scope / "norm2", dim)

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        x = ops.add(x, drop_path(self.norm1(self._attn(x)), self.drop_path))
        x = ops.reshape(x, b, -1, c)
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.drop_path))
        x = ops.reshape(x, b, height, width, c)
        return x


class PatchMerging(Module):
    """2 x 2 neighbours into one: padded (and so copied), gathered, reduced, normalised."""

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.reduction = Linear(scope / "reduction", 4 * dim, 2 * dim, bias=False)
        self.norm = LayerNorm(scope / "norm", 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        x = ops.pad_grid(x, height + height % 2, width + width % 2)
        _, height, width, _ = x.shape
        x = ops.flatten(ops.permute(ops.reshape(x, b, height // 2, 2, width // 2, 2, c), 0, 1, 3, 4, 2, 5), 3)
        x = self.reduction(x)
        x = self.norm(x)
        return x


class Stage(Module):
    """``SwinTransformerV2Stage``."""

    def __init__(self, scope: Scope, config: SwinV2Config, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        self.downsample = PatchMerging(scope / "downsample", config.stage_dim(stage - 1)) if stage else None
        blocks = scope / "blocks"
        self.blocks = [Block(blocks.row(str(i)), config, stage, i % 2 == 1, rate) for i, rate in enumerate(rates)]

    def forward(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


class SwinTransformerV2(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: SwinV2Config) -> None:
        super().__init__(scope)
        self.patch_embed = patch_embed(scope.row("patch_embed"), config)
        layers = scope / "layers"
        stages = stages_of(layers, config, Stage)
        self.blocks = [block for stage in stages for block in stage.blocks]
        self.layers = Sequential(layers, list(stages))
        self.norm = LayerNorm(scope.row("norm"), config.stage_dim(len(config.depths) - 1))
        self.head = Head(scope.row("head"), config)
        self.no_weight_decay = frozenset(
            path for path in scope.parameters if "cpb_mlp" in path or path.endswith("logit_scale")
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
