"""What timm's Swin families share (timm 1.0.31, models/swin_transformer.py, swin_transformer_v2.py, _v2_cr.py).

Shapes: B images, H x W grid, C width, h x w window.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .. import ops
from ..engine import Module, Scope, Tensor
from ._plan import Plan, linear_rates
from ._timm_layers import PatchEmbed
from ._timm_swin_config import Config, Pair
from .nn import Dropout, LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Head", "Mlp", "PatchMerging", "WindowBlock", "patch_embed", "plan_in_stages", "stages_of"]

ConfigT = TypeVar("ConfigT", bound=Config)
StageT = TypeVar("StageT", bound=Module)


def plan_in_stages(
    model: ModelConfig, config: Config, build: Callable[[Scope], Module], *, stages: str, attn: str
) -> Plan:
    """The plan of a model whose stages, named ``stages``, hold ``blocks``."""
    window = config.stage_window(0)
    return Plan(
        model=model,
        build=build,
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=math.prod(config.stage_grid(0)),
        blocks=tuple(f"{stages}.{i}.blocks.{j}" for i, depth in enumerate(config.depths) for j in range(depth)),
        head=("head",),
        stem=("model", "patch_embed"),
        attn=attn,
        resolved={
            "patch": config.patch_size[0],
            "window": window[0] if window[0] == window[1] else list(window),
            "dim": config.embed_dim,
            "mlp_ratio": config.mlp_ratio,
            "dropout": config.drop_rate,
            "attn_dropout": config.attn_drop_rate,
            "drop_path": config.drop_path_rate,
            "patch_drop": 0.0,
        },
    )


def patch_embed(scope: Scope, config: Config) -> PatchEmbed:
    """[B, 3, H, W] -> [B, H / p, W / p, C], with a norm."""
    return PatchEmbed(
        scope, config.in_chans, config.embed_dim, config.patch_size, bias=True, norm="LayerNorm", flatten=False
    )


def stages_of(
    names: Scope, config: ConfigT, build: Callable[[Scope, ConfigT, int, tuple[float, ...]], StageT]
) -> list[StageT]:
    """A stage each, with the drop-path rates of its blocks: they rise over the whole model."""
    rates, ends = linear_rates(config.drop_path_rate, sum(config.depths)), list(itertools.accumulate(config.depths))
    return [
        build(names.row(str(stage)), config, stage, rates[end - config.depths[stage] : end])
        for stage, end in enumerate(ends)
    ]


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


def _cropped(x: Tensor, height: int, width: int) -> Tensor:
    """``x[:, :H, :W, :]``: nothing where the size is the same already."""
    if x.shape[1] != height:
        x = ops.narrow(x, 1, 0, height)
    if x.shape[2] != width:
        x = ops.narrow(x, 2, 0, width)
    return x


class WindowBlock(Module):
    """Attention inside windows, shifted in every second block.

    A window no smaller than the grid shrinks to it and is not shifted, unless the model always partitions.
    """

    #: [B * windows, N, C] and a mask [windows, N, N] or None -> [B * windows, N, C].
    attn: Module

    def __init__(self, scope: Scope, config: Config, stage: int, shifted: bool, rate: float) -> None:
        super().__init__(scope)
        grid, window = config.stage_grid(stage), config.stage_window(stage)
        shift: Pair = (window[0] // 2, window[1] // 2) if shifted else (0, 0)
        if not config.always_partition:
            window = (min(grid[0], window[0]), min(grid[1], window[1]))
            shift = (shift[0] if grid[0] > window[0] else 0, shift[1] if grid[1] > window[1] else 0)
        self.drop_path = rate
        self.window, self.shifted = window, any(shift)
        windows = -(-grid[0] // window[0]) * -(-grid[1] // window[1])
        area, dtype = window[0] * window[1], scope.run.buffer_dtype
        self.attn_mask = scope.buffer("attn_mask", windows, area, area, dtype=dtype) if self.shifted else None

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


class Head(Module):
    """``ClassifierHead``: mean over the grid, dropout, linear; the features are [B, H, W, C] unless ``nchw``."""

    def __init__(self, scope: Scope, config: Config, *, nchw: bool = False) -> None:
        super().__init__(scope)
        self.nchw = nchw
        self.drop = Dropout(scope / "drop", config.drop_rate)
        self.fc = Linear(scope / "fc", config.stage_dim(len(config.depths) - 1), config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.flatten(ops.adaptive_avg_pool2d(x), 1) if self.nchw else ops.mean(x, 1, 2)
        x = self.drop(x)
        x = self.fc(x)
        return x
