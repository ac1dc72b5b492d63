"""timm ``SwinTransformer`` (timm 1.0.31, models/swin_transformer.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ..units import DType
from ._plan import Plan, linear_rates
from ._timm_layers import PatchEmbed, Sequential
from ._timm_swin_config import Config, Pair, configured
from .nn import Dropout, LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(model, settings)
    return Plan(
        model=model,
        build=partial(SwinTransformer, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=math.prod(config.stage_grid(0)),
        blocks=tuple(f"layers.{i}.blocks.{j}" for i, depth in enumerate(config.depths) for j in range(depth)),
        head=("head",),
        stem=("model", "patch_embed"),
        attn="sdpa" if config.fused_attn else "eager",
        resolved={
            "patch": config.patch_size[0],
            "window": config.stage_window(0)[0],
            "dim": config.embed_dim,
            "mlp_ratio": config.mlp_ratio,
            "dropout": config.drop_rate,
            "attn_dropout": config.attn_drop_rate,
            "drop_path": config.drop_path_rate,
            "patch_drop": 0.0,
        },
    )


def _partition(x: Tensor, window: Pair) -> Tensor:
    """``window_partition``: [B, H, W, C] -> [B * windows, h, w, C], a copy."""
    b, height, width, c = x.shape
    x = ops.view(x, b, height // window[0], window[0], width // window[1], window[1], c)
    return ops.view(ops.contiguous(ops.permute(x, 0, 1, 3, 2, 4, 5)), -1, window[0], window[1], c)


def _reverse(windows: Tensor, window: Pair, height: int, width: int) -> Tensor:
    """``window_reverse``: [B * windows, h, w, C] -> [B, H, W, C], a copy."""
    c = windows.shape[-1]
    x = ops.view(windows, -1, height // window[0], width // window[1], window[0], window[1], c)
    return ops.view(ops.contiguous(ops.permute(x, 0, 1, 3, 2, 4, 5)), -1, height, width, c)


class WindowAttention(Module):
    """Packed qkv and a learnt bias per relative position; [B * windows, N, C]."""

    def __init__(self, scope: Scope, config: Config, dim: int, heads: int, window: Pair) -> None:
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
        x = self._fused(q, k, v, mask) if self.fused_attn else self._eager(q, k, v, mask)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        b, _, n, _ = q.shape
        attn_mask = self._bias()
        if mask is not None:
            windows = mask.shape[0]
            mask = ops.expand(ops.view(mask, 1, windows, 1, n, n), b // windows, -1, self.heads, -1, -1)
            attn_mask = ops.add(attn_mask, ops.reshape(mask, -1, self.heads, n, n))
        return ops.scaled_dot_product_attention(q, k, v, self.attn_drop, attn_mask)

    def _eager(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        n = q.shape[2]
        q = ops.mul(q, 1.0)
        attn = ops.matmul(q, ops.transpose(k, 2, 3))
        attn = ops.add(attn, self._bias())
        if mask is not None:
            windows = mask.shape[0]
            attn = ops.add(ops.view(attn, -1, windows, self.heads, n, n), ops.view(mask, 1, windows, 1, n, n))
            attn = ops.view(attn, -1, self.heads, n, n)
        attn = ops.softmax(attn)
        attn = ops.dropout(attn, self.attn_drop)
        return ops.matmul(attn, v)


class Block(Module):
    """``SwinTransformerBlock``; a window no smaller than the grid shrinks to it and is not shifted."""

    def __init__(self, scope: Scope, config: Config, stage: int, shifted: bool, rate: float) -> None:
        super().__init__(scope)
        dim = config.embed_dim * 2**stage
        grid, target = config.stage_grid(stage), config.stage_window(stage)
        self.drop_path = rate
        self.window: Pair = (min(grid[0], target[0]), min(grid[1], target[1]))
        shift = [0 if not shifted or side <= w else t // 2 for side, w, t in zip(grid, self.window, target)]
        self.shifted = any(shift)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = WindowAttention(scope / "attn", config, dim, config.num_heads[stage], self.window)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", config, dim)
        windows = -(-grid[0] // self.window[0]) * -(-grid[1] // self.window[1])
        area = self.window[0] * self.window[1]
        mask_dtype = scope.run.parameter_dtype
        self.attn_mask = scope.buffer("attn_mask", windows, area, area, dtype=mask_dtype) if self.shifted else None

    def _attn(self, x: Tensor) -> Tensor:
        _, height, width, c = x.shape
        shifted_x = ops.roll(x) if self.shifted else x
        padded = tuple(-(-side // w) * w for side, w in zip((height, width), self.window))
        shifted_x = ops.pad_grid(shifted_x, *padded)
        x_windows = _partition(shifted_x, self.window)
        x_windows = ops.view(x_windows, -1, self.window[0] * self.window[1], c)
        attn_windows = self.attn(x_windows, self.attn_mask)
        attn_windows = ops.view(attn_windows, -1, *self.window, c)
        shifted_x = _reverse(attn_windows, self.window, *padded)
        shifted_x = ops.contiguous(_cropped(shifted_x, height, width))
        x = ops.roll(shifted_x) if self.shifted else shifted_x
        return x

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        x = ops.add(x, drop_path(self._attn(self.norm1(x)), self.drop_path))
        x = ops.reshape(x, b, -1, c)
        x = ops.add(x, drop_path(self.mlp(self.norm2(x)), self.drop_path))
        x = ops.reshape(x, b, height, width, c)
        return x


def _cropped(x: Tensor, height: int, width: int) -> Tensor:
    """``x[:, :H, :W, :]``: nothing where the size is the same already."""
    if x.shape[1] != height:
        x = ops.narrow(x, 1, 0, height)
    if x.shape[2] != width:
        x = ops.narrow(x, 2, 0, width)
    return x


class Mlp(Module):
    """timm/layers/mlp.py ``Mlp`` with GELU."""

    def __init__(self, scope: Scope, config: Config, dim: int) -> None:
        super().__init__(scope)
        self.drop = config.proj_drop_rate
        self.fc1 = Linear(scope / "fc1", dim, int(dim * config.mlp_ratio))
        self.fc2 = Linear(scope / "fc2", int(dim * config.mlp_ratio), dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.gelu(x)
        x = ops.dropout(x, self.drop)
        x = self.fc2(x)
        x = ops.dropout(x, self.drop)
        return x


class PatchMerging(Module):
    """2 x 2 neighbours into one: padded (and so copied), gathered, normalised, reduced."""

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.norm = LayerNorm(scope / "norm", 4 * dim)
        self.reduction = Linear(scope / "reduction", 4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, height, width, c = x.shape
        x = ops.pad_grid(x, height + height % 2, width + width % 2)
        _, height, width, _ = x.shape
        x = ops.flatten(ops.permute(ops.reshape(x, b, height // 2, 2, width // 2, 2, c), 0, 1, 3, 4, 2, 5), 3)
        x = self.norm(x)
        x = self.reduction(x)
        return x


class Stage(Module):
    """``SwinTransformerStage``."""

    def __init__(self, scope: Scope, config: Config, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        self.downsample = PatchMerging(scope / "downsample", config.embed_dim * 2 ** (stage - 1)) if stage else None
        blocks = scope / "blocks"
        self.blocks = [Block(blocks.row(str(i)), config, stage, i % 2 == 1, rate) for i, rate in enumerate(rates)]
        self.sequence = Sequential(blocks, list(self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            x = self.downsample(x)
        x = self.sequence(x)
        return x


class Head(Module):
    """``ClassifierHead``: mean over the grid, dropout, linear."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.drop = Dropout(scope / "drop", config.drop_rate)
        self.fc = Linear(scope / "fc", config.embed_dim * 2 ** (len(config.depths) - 1), config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.mean(x, 1, 2)
        x = self.drop(x)
        x = self.fc(x)
        return x


class SwinTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"),
            config.in_chans,
            config.embed_dim,
            config.patch_size,
            bias=True,
            norm="LayerNorm",
            flatten=False,
        )
        rates = linear_rates(config.drop_path_rate, sum(config.depths))
        layers, first = scope / "layers", 0
        stages: list[Stage] = []
        for stage, depth in enumerate(config.depths):
            stages.append(Stage(layers.row(str(stage)), config, stage, rates[first : first + depth]))
            first += depth
        self.blocks = [block for stage in stages for block in stage.blocks]
        self.layers = Sequential(layers, list(stages))
        self.norm = LayerNorm(scope.row("norm"), config.embed_dim * 2 ** (len(config.depths) - 1))
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
