"""timm ``Cait`` (timm 1.0.31, models/cait.py): talking heads over the patches, class attention at the end.

Shapes: B images, N patches, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import Plan, apply_overrides, require_divisible
from ._timm_class_attention import ClassAttn, Mlp
from ._timm_config import OVERRIDES, arguments, resolved, with_sizes
from ._timm_layers import PatchEmbed, Sequential
from .nn import Dropout, LayerNorm, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width) in pixels."""

    img_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "token"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    init_values: float = 1e-4
    depth_token_only: int = 2
    mlp_ratio_token_only: float = 4.0
    fused_attn: bool = True

    @property
    def num_patches(self) -> int:
        """A remainder of pixels is dropped, as the convolution drops it."""
        return math.prod(size // patch for size, patch in zip(self.img_size, self.patch_size))


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = _configured(model, settings)
    return Plan(
        model=model,
        build=partial(Cait, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + 1,
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head",),
        stem=("model", "patch_embed", "pos_drop"),
        attn="sdpa" if config.fused_attn else "eager",
        resolved=resolved(config),
        assumptions=("the talking heads over the patches are eager; attn tells of the class attention",),
    )


def _configured(model: ModelConfig, settings: TrainSettings) -> Config:
    for name in ("window", "patch_drop"):
        if getattr(settings, name):
            raise InvalidRequest(f"{model.name} has no --{name.replace('_', '-')}; leave it out")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest("timm models run F.scaled_dot_product_attention; use --attn sdpa (or --sdpa-kernel flash)")
    config = apply_overrides(Config(**arguments(Config, model)), settings, OVERRIDES)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn != "eager")
    require_divisible("dim", config.embed_dim, "heads", config.num_heads)
    for size, patch in zip(config.img_size, config.patch_size):
        if size < patch:
            raise InvalidRequest(
                f"res {size} is smaller than one patch of {patch} pixels; raise --res or lower --patch"
            )
    if config.global_pool not in {"token", "avg"}:
        raise NoFamily(f"{model.name}: pooling {config.global_pool!r} is not modelled")
    return config


class TalkingHeadAttn(Module):
    """Heads mixed before and after the softmax by linear layers over [B, N, N, H]; [B, N, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim, heads = config.embed_dim, config.num_heads
        self.heads, self.attn_drop, self.proj_drop = heads, config.attn_drop_rate, config.proj_drop_rate
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=config.qkv_bias)
        self.proj = Linear(scope / "proj", dim, dim)
        self.proj_l = Linear(scope / "proj_l", heads, heads)
        self.proj_w = Linear(scope / "proj_w", heads, heads)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.reshape(self.qkv(x), b, n, 3, self.heads, c // self.heads), 2, 0, 3, 1, 4)
        q, k, v = ops.mul(ops.select(qkv, 0, 0), 1.0), ops.select(qkv, 0, 1), ops.select(qkv, 0, 2)
        attn = ops.matmul(q, ops.transpose(k, 2, 3))
        attn = ops.permute(self.proj_l(ops.permute(attn, 0, 2, 3, 1)), 0, 3, 1, 2)
        attn = ops.softmax(attn)
        attn = ops.permute(self.proj_w(ops.permute(attn, 0, 2, 3, 1)), 0, 3, 1, 2)
        attn = ops.dropout(attn, self.attn_drop)
        x = ops.reshape(ops.transpose(ops.matmul(attn, v), 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class LayerScaleBlock(Module):
    """Talking heads and MLP, each branch scaled per channel."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.drop_path = config.drop_path_rate
        self.gamma_1 = scope.parameter("gamma_1", dim)
        self.gamma_2 = scope.parameter("gamma_2", dim)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = TalkingHeadAttn(scope / "attn", config)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), config.proj_drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, drop_path(ops.mul(self.gamma_1, self.attn(self.norm1(x))), self.drop_path))
        x = ops.add(x, drop_path(ops.mul(self.gamma_2, self.mlp(self.norm2(x))), self.drop_path))
        return x


class LayerScaleBlockClassAttn(Module):
    """The class token alone is updated: patches [B, N, C] and class token [B, 1, C] -> [B, 1, C]; no dropout."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.gamma_1 = scope.parameter("gamma_1", dim)
        self.gamma_2 = scope.parameter("gamma_2", dim)
        self.norm1 = LayerNorm(scope / "norm1", dim)
        self.attn = ClassAttn(scope / "attn", dim, config.num_heads, qkv_bias=config.qkv_bias, fused=config.fused_attn)
        self.norm2 = LayerNorm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio_token_only))

    def forward(self, x: Tensor, x_cls: Tensor) -> Tensor:
        u = ops.cat([x_cls, x], 1)
        x_cls = ops.add(x_cls, ops.mul(self.gamma_1, self.attn(self.norm1(u))))
        x_cls = ops.add(x_cls, ops.mul(self.gamma_2, self.mlp(self.norm2(x_cls))))
        return x_cls


class Cait(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    no_weight_decay = frozenset({"pos_embed", "cls_token"})

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width = config.embed_dim
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        self.pos_embed = scope.parameter("pos_embed", 1, config.num_patches, width)
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"), config.in_chans, width, config.patch_size, bias=True, norm=None, flatten=True
        )
        self.pos_drop = Dropout(scope.row("pos_drop"), config.pos_drop_rate)
        blocks, last = scope / "blocks", scope.row("blocks_token_only")
        modules: list[Module] = [LayerScaleBlock(blocks.row(str(i)), config) for i in range(config.depth)]
        self.blocks = modules
        self.sequence = Sequential(blocks, modules)
        self.blocks_token_only = [
            LayerScaleBlockClassAttn(last / str(i), config) for i in range(config.depth_token_only)
        ]
        self.norm = LayerNorm(scope.row("norm"), width)
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.head = Linear(scope.row("head"), width, config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.forward_head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, position, blocks, class attention, final norm."""
        x = self.patch_embed(x)
        x = ops.add(x, self.pos_embed)
        x = self.pos_drop(x)
        x = self.sequence(x)
        x = self.forward_cls(x)
        x = self.norm(x)
        return x

    def forward_cls(self, x: Tensor) -> Tensor:
        """The class token enters here, and comes first in the result."""
        cls_tokens = ops.expand(self.cls_token, x.shape[0], -1, -1)
        for block in self.blocks_token_only:
            cls_tokens = block(x, cls_tokens)
        return ops.cat([cls_tokens, x], 1)

    def forward_head(self, x: Tensor) -> Tensor:
        """Pool, dropout, classifier."""
        x = ops.select(x, 1, 0) if self.config.global_pool == "token" else ops.mean(ops.narrow(x, 1, 1, x.shape[1]), 1)
        x = self.head_drop(x)
        x = self.head(x)
        return x
