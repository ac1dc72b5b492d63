"""timm ``VisionTransformerRelPos`` (timm 1.0.31, models/vision_transformer_relpos.py).

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import Plan, apply_overrides, linear_rates
from ._timm_config import OVERRIDES, arguments, resolved, with_sizes
from ._timm_layers import ACTIVATIONS, NORMS, BlockConfig, Mlp, PatchEmbed
from ._timm_rel_pos import Pair, RelPosBias, RelPosMlp, check_sizes
from .nn import Dropout, LayerScale, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width) in pixels."""

    img_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "avg"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    qk_norm: bool = False
    init_values: float | None = 1e-6
    class_token: bool = False
    fc_norm: bool = False
    rel_pos_type: str = "mlp"
    rel_pos_dim: int | None = None
    shared_rel_pos: bool = False
    drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_layer: str | None = None
    act_layer: str | None = None
    block_fn: str = "RelPosBlock"
    fused_attn: bool = True

    @property
    def grid(self) -> Pair:
        """Patches along height and width."""
        return self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]

    def block(self, rate: float) -> BlockConfig:
        """What the block with this stochastic depth is built from."""
        return BlockConfig(
            dim=self.embed_dim,
            num_heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            scale_attn_norm=False,
            scale_mlp_norm=False,
            proj_bias=True,
            proj_drop=self.proj_drop_rate,
            attn_drop=self.attn_drop_rate,
            init_values=self.init_values,
            drop_path=rate,
            norm_layer=self.norm_layer,
            act_layer=self.act_layer,
            mlp_layer="Mlp",
            fused_attn=self.fused_attn,
        )


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = apply_overrides(Config(**arguments(Config, model)), settings, OVERRIDES)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn in {"auto", "sdpa"})
    _check(model.name, config, settings)
    return Plan(
        model=model,
        build=partial(VisionTransformerRelPos, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=int(config.class_token) + math.prod(config.grid),
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head",),
        stem=("model", "patch_embed", "shared_rel_pos"),
        attn="sdpa" if config.fused_attn else "eager",
        resolved=resolved(config),
    )


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    check_sizes(
        name,
        settings,
        dim=config.embed_dim,
        heads=config.num_heads,
        img_size=config.img_size,
        patch_size=config.patch_size,
    )
    if config.global_pool == "token" and not config.class_token:
        raise InvalidRequest(f"{name}: pooling by the class token needs class_token, which is off")
    if (config.rel_pos_dim or 0) < 0:
        raise InvalidRequest(f"{name}: rel_pos_dim {config.rel_pos_dim} is no size; leave it out for 128")
    if config.global_pool not in {"avg", "token"}:
        raise NoFamily(f"{name}: pooling {config.global_pool!r} is not modelled")
    for field, known in (("norm_layer", NORMS), ("act_layer", ACTIVATIONS), ("block_fn", _BLOCKS)):
        if getattr(config, field) not in known:
            raise NoFamily(f"{name}: {field} {getattr(config, field)} is not modelled")


def _rel_pos(scope: Scope, config: Config) -> RelPosBias | RelPosMlp:
    prefix_tokens = int(config.class_token)
    if not config.rel_pos_type.startswith("mlp"):
        return RelPosBias(scope, config.grid, config.num_heads, prefix_tokens)
    mode = "swin" if "swin" in config.rel_pos_type else "cr"
    hidden = config.rel_pos_dim or 128
    return RelPosMlp(scope, config.grid, config.num_heads, prefix_tokens, hidden=hidden, mode=mode)


class RelPosAttention(Module):
    """Packed qkv; the bias is the block's own or the model's."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim, norm = config.embed_dim, NORMS[config.norm_layer]
        self.config, self.num_heads, self.head_dim = config, config.num_heads, dim // config.num_heads
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=config.qkv_bias)
        self.q_norm = norm(scope / "q_norm", self.head_dim) if config.qk_norm else None
        self.k_norm = norm(scope / "k_norm", self.head_dim) if config.qk_norm else None
        self.rel_pos = None if config.shared_rel_pos else _rel_pos(scope / "rel_pos", config)
        self.proj = Linear(scope / "proj", dim, dim)

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.reshape(self.qkv(x), b, n, 3, self.num_heads, self.head_dim), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if self.config.fused_attn:
            attn_bias = shared if self.rel_pos is None else self.rel_pos.get_bias()
            x = ops.scaled_dot_product_attention(q, k, v, self.config.attn_drop_rate, attn_bias)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            if self.rel_pos is not None:
                attn = self.rel_pos(attn)
            elif shared is not None:
                attn = ops.add(attn, shared)
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.config.attn_drop_rate)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.config.proj_drop_rate)
        return x


class RelPosBlock(Module):
    """Pre-norm block."""

    keywords = ("shared_rel_pos",)

    def __init__(self, scope: Scope, config: Config, rate: float) -> None:
        super().__init__(scope)
        dim, norm, block = config.embed_dim, NORMS[config.norm_layer], config.block(rate)
        self.rate = rate
        self.norm1 = norm(scope / "norm1", dim)
        self.attn = RelPosAttention(scope / "attn", config)
        self.ls1 = LayerScale(scope / "ls1", dim) if config.init_values else _identity
        self.norm2 = norm(scope / "norm2", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), block)
        self.ls2 = LayerScale(scope / "ls2", dim) if config.init_values else _identity

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor:
        x = ops.add(x, drop_path(self.ls1(self.attn(self.norm1(x), shared)), self.rate))
        x = ops.add(x, drop_path(self.ls2(self.mlp(self.norm2(x))), self.rate))
        return x


def _identity(x: Tensor) -> Tensor:
    return x


class ResPostRelPosBlock(Module):
    """Norm at the end of each residual branch, no layer scale."""

    keywords = ("shared_rel_pos",)

    def __init__(self, scope: Scope, config: Config, rate: float) -> None:
        super().__init__(scope)
        dim, norm = config.embed_dim, NORMS[config.norm_layer]
        self.rate = rate
        self.attn = RelPosAttention(scope / "attn", config)
        self.norm1 = norm(scope / "norm1", dim)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), config.block(rate))
        self.norm2 = norm(scope / "norm2", dim)

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor:
        x = ops.add(x, drop_path(self.norm1(self.attn(x, shared)), self.rate))
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.rate))
        return x


_BLOCKS: dict[str, Callable[[Scope, Config, float], Module]] = {
    "RelPosBlock": RelPosBlock,
    "ResPostRelPosBlock": ResPostRelPosBlock,
}


class VisionTransformerRelPos(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    no_weight_decay = frozenset({"cls_token"})

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width, norm = config.embed_dim, NORMS[config.norm_layer]
        self.cls_token = scope.parameter("cls_token", 1, 1, width) if config.class_token else None
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"), config.in_chans, width, config.patch_size, bias=True, norm=None, flatten=True
        )
        self.shared_rel_pos = _rel_pos(scope.row("shared_rel_pos"), config) if config.shared_rel_pos else None
        rates = linear_rates(config.drop_path_rate, config.depth)
        blocks, make = scope / "blocks", _BLOCKS[config.block_fn]
        self.blocks = [make(blocks.row(str(i)), config, rate) for i, rate in enumerate(rates)]
        self.norm = None if config.fc_norm else norm(scope.row("norm"), width)
        self.fc_norm = norm(scope.row("fc_norm"), width) if config.fc_norm else None
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.head = Linear(scope.row("head"), width, config.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.forward_head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, class token, blocks, final norm."""
        x = self.patch_embed(x)
        if self.cls_token is not None:
            x = ops.cat([ops.expand(self.cls_token, x.shape[0], -1, -1), x], 1)
        shared_rel_pos = self.shared_rel_pos.get_bias() if self.shared_rel_pos is not None else None
        for block in self.blocks:
            x = block(x, shared_rel_pos)
        if self.norm is not None:
            x = self.norm(x)
        return x

    def forward_head(self, x: Tensor) -> Tensor:
        """Pool, norm, dropout, classifier; without a class token the slice is the whole."""
        prefix_tokens = int(self.config.class_token)
        if self.config.global_pool == "token":
            x = ops.select(x, 1, 0)
        else:
            x = ops.mean(ops.narrow(x, 1, prefix_tokens, x.shape[1]) if prefix_tokens else x, 1)
        if self.fc_norm is not None:
            x = self.fc_norm(x)
        x = self.head_drop(x)
        x = self.head(x)
        return x
