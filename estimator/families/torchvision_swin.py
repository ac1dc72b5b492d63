"""torchvision ``SwinTransformer`` with the blocks of version 1 or 2 (torchvision 0.29.1, models/swin_transformer.py).

Shapes: B images, H x W grid, C width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import Plan, apply_overrides, linear_rates, require_divisible
from ._timm_layers import Sequential
from ._torchvision import Mlp, arguments, refuse
from ._torchvision_windows import Pair, ShiftedWindowAttention, ShiftedWindowAttentionV2
from .nn import Conv2d, LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width)."""

    patch_size: Pair
    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: Pair
    mlp_ratio: float = 4.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth_prob: float = 0.1
    num_classes: int = 1000
    block: str = "SwinTransformerBlock"
    downsample_layer: str = "PatchMerging"

    def width(self, stage: int) -> int:
        """Doubled before every stage but the first."""
        return self.embed_dim << stage


_OVERRIDES = {
    "patch": "patch_size",
    "window": "window_size",
    "dim": "embed_dim",
    "mlp_ratio": "mlp_ratio",
    "num_classes": "num_classes",
    "dropout": "dropout",
    "attn_dropout": "attention_dropout",
    "drop_path": "stochastic_depth_prob",
}


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that the library's builder makes with the user's sizes; raises where torchvision would."""
    config = _configured(model, settings)
    image_size = settings.res or model.native_size
    assert image_size is not None, "a row of the catalogue has its size"
    grid = (image_size[0] // config.patch_size[0], image_size[1] // config.patch_size[1])
    if min(grid) < 1:
        raise InvalidRequest(
            f"res {image_size} is smaller than one patch of {config.patch_size[0]} pixels; raise --res or lower --patch"
        )
    return Plan(
        model=model,
        build=partial(SwinTransformer, config=config),
        image_size=image_size,
        patch_size=config.patch_size,
        num_tokens=grid[0] * grid[1],
        blocks=tuple(f"features.{2 * i + 1}.{j}" for i, depth in enumerate(config.depths) for j in range(depth)),
        head=("head",),
        stem=("features.0",),
        attn="eager",
        resolved={
            "patch": config.patch_size[0],
            "window": config.window_size[0],
            "dim": config.embed_dim,
            "mlp_ratio": config.mlp_ratio,
            "dropout": config.dropout,
            "attn_dropout": config.attention_dropout,
            "drop_path": config.stochastic_depth_prob,
            "patch_drop": 0.0,
        },
    )


def _configured(model: ModelConfig, settings: TrainSettings) -> Config:
    refuse(model, settings, attn="eager", fields=_OVERRIDES, in_stages=("depth", "heads"))
    row = Config(**arguments(Config, model))
    config = apply_overrides(row, settings, _OVERRIDES)
    config = dataclasses.replace(config, patch_size=_pair(config.patch_size), window_size=_pair(config.window_size))
    for stage, heads in enumerate(config.num_heads):
        require_divisible("width", config.width(stage), "heads", heads)
    if config.block not in _BLOCKS or config.downsample_layer not in _MERGES:
        raise NoFamily(f"{model.name}: {config.block} with {config.downsample_layer} is not modelled")
    return config


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else size


class Block(Module):
    """``SwinTransformerBlock``: pre-norm."""

    attention: type[ShiftedWindowAttention] = ShiftedWindowAttention

    def __init__(self, scope: Scope, config: Config, stage: int, shift: Pair, rate: float) -> None:
        super().__init__(scope)
        dim = config.width(stage)
        self.rate = rate
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = self.attention(
            scope / "attn",
            dim,
            config.num_heads[stage],
            config.window_size,
            shift,
            config.attention_dropout,
            config.dropout,
        )
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, drop_path(self.attn(self.norm1(x)), self.rate))
        x = ops.add(x, drop_path(self.mlp(self.norm2(x)), self.rate))
        return x


class BlockV2(Block):
    """``SwinTransformerBlockV2``: norm at the end of each residual branch."""

    attention = ShiftedWindowAttentionV2

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, drop_path(self.norm1(self.attn(x)), self.rate))
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.rate))
        return x


def _patch_merging_pad(x: Tensor) -> Tensor:
    """[B, H, W, C] -> [B, H / 2, W / 2, 4 C]: padded to even sides (and so copied), four strided slices, joined."""
    _, height, width, _ = x.shape
    x = ops.pad_grid(x, height + height % 2, width + width % 2)
    _, height, width, _ = x.shape
    x0, x1, x2, x3 = (
        ops.narrow(ops.narrow(x, 1, row, height, 2), 2, column, width, 2)
        for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))
    )
    x = ops.cat([x0, x1, x2, x3], 3)
    return x


class PatchMerging(Module):
    """Neighbours joined, normalised, reduced."""

    norm_width = 4

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.reduction = Linear(scope / "reduction", 4 * dim, 2 * dim, bias=False)
        self.norm = LayerNorm(scope / "norm", self.norm_width * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = _patch_merging_pad(x)
        x = self.norm(x)
        x = self.reduction(x)
        return x


class PatchMergingV2(PatchMerging):
    """Neighbours joined, reduced, normalised."""

    norm_width = 2

    def forward(self, x: Tensor) -> Tensor:
        x = _patch_merging_pad(x)
        x = self.reduction(x)
        x = self.norm(x)
        return x


_BLOCKS: dict[str, type[Block]] = {"SwinTransformerBlock": Block, "SwinTransformerBlockV2": BlockV2}
_MERGES: dict[str, Callable[[Scope, int], Module]] = {"PatchMerging": PatchMerging, "PatchMergingV2": PatchMergingV2}


class Stem(Module):
    """Patches as channels last, normalised: [B, 3, H, W] -> [B, H / patch, W / patch, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.conv = Conv2d(scope / "0", 3, config.embed_dim, config.patch_size)
        self.norm = LayerNorm(scope / "2", config.embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = ops.permute(x, 0, 2, 3, 1)
        x = self.norm(x)
        return x


class AdaptiveAvgPool2d(Module):
    """``nn.AdaptiveAvgPool2d(1)``."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.adaptive_avg_pool2d(x)


class SwinTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        features = scope / "features"
        rates = iter(linear_rates(config.stochastic_depth_prob, sum(config.depths)))
        layers: list[Module] = [Stem(features.row("0"), config)]
        self.blocks: list[Module] = []
        for stage, depth in enumerate(config.depths):
            path = features / str(len(layers))
            blocks = [
                _BLOCKS[config.block](path.row(str(i)), config, stage, _shift(config, i), next(rates))
                for i in range(depth)
            ]
            self.blocks += blocks
            layers.append(Sequential(path, list(blocks)))
            if stage < len(config.depths) - 1:
                merge = _MERGES[config.downsample_layer]
                layers.append(merge(features.row(str(len(layers))), config.width(stage)))
        self.features = Sequential(features, layers)
        width = config.width(len(config.depths) - 1)
        self.norm = LayerNorm(scope.row("norm"), width)
        self.avgpool = AdaptiveAvgPool2d(scope.row("avgpool"))
        self.head = Linear(scope.row("head"), width, config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.norm(x)
        x = ops.permute(x, 0, 3, 1, 2)
        x = self.avgpool(x)
        x = ops.flatten(x, 1)
        x = self.head(x)
        return x


def _shift(config: Config, block: int) -> Pair:
    """Half a window in every other block."""
    height, width = config.window_size
    return (height // 2, width // 2) if block % 2 else (0, 0)
