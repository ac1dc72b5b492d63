"""timm ``VisionTransformer`` and ``VisionTransformerDistilled`` (timm 1.0.31, models/vision_transformer.py, deit.py).

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NotModelled
from ..settings import TrainSettings
from ._plan import Plan, apply_overrides, linear_rates, require_divisible
from ._timm import ACTIVATIONS, BLOCKS, NORMS, AttentionPoolLatent, BlockConfig, Sequential
from .nn import Conv2d, Linear

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
    qk_norm: bool = False
    scale_attn_norm: bool = False
    scale_mlp_norm: bool = False
    proj_bias: bool = True
    init_values: float | None = None
    class_token: bool = True
    pos_embed: str = "learn"
    no_embed_class: bool = False
    reg_tokens: int = 0
    pre_norm: bool = False
    final_norm: bool = True
    fc_norm: bool | None = None
    pool_include_prefix: bool = False
    dynamic_img_size: bool = False
    dynamic_img_pad: bool = False
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    patch_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_layer: str | None = None
    embed_norm_layer: str | None = None
    act_layer: str | None = None
    block_fn: str = "Block"
    mlp_layer: str = "Mlp"
    attn_layer: str = ""
    distilled: bool = False
    fused_attn: bool = True

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along height and width: a remainder of pixels is dropped, as the convolution drops it."""
        return self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Class, distillation and register tokens."""
        return int(self.class_token) + int(self.distilled) + self.reg_tokens

    @property
    def num_kept_patches(self) -> int:
        """Patches after patch dropout."""
        patches = math.prod(self.grid)
        return max(1, int(patches * (1.0 - self.patch_drop_rate))) if self.patch_drop_rate > 0 else patches


_OVERRIDES = {
    "dim": "embed_dim",
    "depth": "depth",
    "heads": "num_heads",
    "mlp_ratio": "mlp_ratio",
    "num_classes": "num_classes",
    "dropout": "drop_rate",
    "attn_dropout": "attn_drop_rate",
    "drop_path": "drop_path_rate",
    "patch_drop": "patch_drop_rate",
}


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = _configured(model, settings)
    attn = "sdpa" if config.fused_attn else "eager"
    return Plan(
        model=model,
        build=partial(VisionTransformer, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=config.num_kept_patches + config.num_prefix_tokens,
        num_blocks=config.depth,
        head=("head", "head_dist"),
        stem=("model", "patch_embed", "norm_pre"),
        block="blocks.",
        attn=attn,
        resolved=_resolved(config),
    )


def _configured(model: ModelConfig, settings: TrainSettings) -> Config:
    row = {name: _pair(value) if name in {"img_size", "patch_size"} else value for name, value in model.config.items()}
    known = {field.name for field in dataclasses.fields(Config)}
    if unknown := sorted(set(row) - known):
        raise NotModelled(f"{model.name}: {', '.join(unknown)} is not modelled")
    config = Config(**row, distilled=model.class_name == "VisionTransformerDistilled")
    config = apply_overrides(config, settings, _OVERRIDES)
    sizes: dict[str, Any] = {"fused_attn": settings.attn in {"auto", "sdpa"}}
    if settings.res is not None:
        sizes["img_size"] = settings.res
    if settings.patch is not None:
        sizes["patch_size"] = (settings.patch, settings.patch)
    config = dataclasses.replace(config, **sizes)
    _check(model.name, config, settings)
    return config


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    if settings.window is not None:
        raise InvalidRequest(f"{name} has no windows; --window belongs to Swin models")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest("timm models run F.scaled_dot_product_attention; use --attn sdpa (or --sdpa-kernel flash)")
    require_divisible("dim", config.embed_dim, "heads", config.num_heads)
    for size, patch in zip(config.img_size, config.patch_size):
        if size < patch:
            raise InvalidRequest(f"res {size} is smaller than one patch of {patch} pixels; raise --res or lower --patch")
        if config.dynamic_img_size and not config.dynamic_img_pad and size % patch:
            raise InvalidRequest(
                f"{name} refuses {size} pixels: not a multiple of its patch size {patch}; use --res {size - size % patch}"
            )
    known = {"block_fn": BLOCKS, "norm_layer": NORMS, "act_layer": ACTIVATIONS}
    for field, table in known.items():
        if getattr(config, field) not in table:
            raise NotModelled(f"{name}: {field} {getattr(config, field)} is not modelled")
    if config.mlp_layer not in {"Mlp", "SwiGLUPacked", "GluMlp", "SwiGLU"} or config.attn_layer not in {"", "attn"}:
        raise NotModelled(f"{name}: {config.mlp_layer} with attention {config.attn_layer or 'attn'} is not modelled")
    if config.dynamic_img_pad or config.global_pool not in {"token", "avg", "avgmax", "max", "map"}:
        raise NotModelled(f"{name}: pooling {config.global_pool!r} or padded patch embedding is not modelled")


def _resolved(config: Config) -> Mapping[str, Any]:
    return {
        "res": config.img_size,
        "patch": config.patch_size[0],
        "dim": config.embed_dim,
        "depth": config.depth,
        "heads": config.num_heads,
        "mlp_ratio": config.mlp_ratio,
        "dropout": config.drop_rate,
        "attn_dropout": config.attn_drop_rate,
        "drop_path": config.drop_path_rate,
        "patch_drop": config.patch_drop_rate,
    }


class PatchEmbed(Module):
    """timm/layers/patch_embed.py; with a dynamic image size the result stays [B, h, w, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.proj = Conv2d(
            scope / "proj", config.in_chans, config.embed_dim, config.patch_size, bias=not config.pre_norm
        )
        self.norm = NORMS[config.embed_norm_layer](scope / "norm", config.embed_dim) if config.embed_norm_layer else None
        self.flatten = not config.dynamic_img_size

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        x = ops.transpose(ops.flatten(x, 2), 1, 2) if self.flatten else ops.permute(x, 0, 2, 3, 1)
        return x if self.norm is None else self.norm(x)


class VisionTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width, norm = config.embed_dim, NORMS[config.norm_layer]
        use_fc_norm = config.global_pool in {"avg", "avgmax", "max"} if config.fc_norm is None else config.fc_norm
        self.cls_token = scope.parameter("cls_token", 1, 1, width) if config.class_token else None
        self.reg_token = scope.parameter("reg_token", 1, config.reg_tokens, width) if config.reg_tokens else None
        self.dist_token = scope.parameter("dist_token", 1, 1, width) if config.distilled else None
        tokens = math.prod(config.grid) + (0 if config.no_embed_class else config.num_prefix_tokens)
        has_position = config.pos_embed not in {"", "none"}
        self.pos_embed = scope.parameter("pos_embed", 1, tokens, width) if has_position else None
        self.patch_embed = PatchEmbed(scope.row("patch_embed"), config)
        self.norm_pre = norm(scope.row("norm_pre"), width) if config.pre_norm else None
        rates = linear_rates(config.drop_path_rate, config.depth)
        blocks = scope / "blocks"
        make = BLOCKS[config.block_fn]
        modules = [make(blocks.row(str(i)), _block_config(config, rate)) for i, rate in enumerate(rates)]
        self.blocks = modules
        self.sequence = Sequential(blocks, modules)
        self.norm = norm(scope.row("norm"), width) if config.final_norm and not use_fc_norm else None
        pools = config.global_pool == "map"
        self.attn_pool = AttentionPoolLatent(scope.row("attn_pool"), _block_config(config, 0.0)) if pools else None
        self.fc_norm = norm(scope.row("fc_norm"), width) if config.final_norm and use_fc_norm else None
        self.head = Linear(scope.row("head"), width, config.num_classes)
        self.head_dist = Linear(scope.row("head_dist"), width, config.num_classes) if config.distilled else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self._head_distilled(x) if self.head_dist is not None else self._head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, position, blocks, final norm."""
        x = self.patch_embed(x)
        x = self._pos_embed(x)
        x = self._patch_drop(x)
        if self.norm_pre is not None:
            x = self.norm_pre(x)
        x = self.sequence(x)
        if self.norm is not None:
            x = self.norm(x)
        return x

    def _pos_embed(self, x: Tensor) -> Tensor:
        config = self.config
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        to_cat = [ops.expand(token, x.shape[0], -1, -1) for token in tokens if token is not None]
        if config.dynamic_img_size:
            x = ops.view(x, x.shape[0], -1, x.shape[3])
        if self.pos_embed is None:
            return ops.cat([*to_cat, x], 1)
        if config.no_embed_class:
            x = ops.add(x, self.pos_embed)
            if to_cat:
                x = ops.cat([*to_cat, x], 1)
        else:
            if to_cat:
                x = ops.cat([*to_cat, x], 1)
            x = ops.add(x, self.pos_embed)
        return ops.dropout(x, config.pos_drop_rate)

    def _patch_drop(self, x: Tensor) -> Tensor:
        """timm/layers/patch_dropout.py: prefix tokens stay."""
        config = self.config
        if config.patch_drop_rate == 0:
            return x
        prefix = config.num_prefix_tokens
        if not prefix:
            return ops.keep_random_tokens(x, config.num_kept_patches)
        prefix_tokens, x = ops.narrow(x, 1, 0, prefix), ops.narrow(x, 1, prefix, x.shape[1])
        x = ops.keep_random_tokens(x, config.num_kept_patches)
        return ops.cat([prefix_tokens, x], 1)

    def _pool(self, x: Tensor) -> Tensor:
        config = self.config
        if config.global_pool == "token":
            return ops.select(x, 1, 0)
        if config.num_prefix_tokens and not config.pool_include_prefix:
            x = ops.narrow(x, 1, config.num_prefix_tokens, x.shape[1])
        if self.attn_pool is not None:
            return self.attn_pool(x)
        if config.global_pool == "avg":
            return ops.mean(x, 1)
        if config.global_pool == "avgmax":
            return ops.mul(ops.add(ops.amax(x, 1), ops.mean(x, 1)), 0.5)
        return ops.amax(x, 1)

    def _head(self, x: Tensor) -> Tensor:
        x = self._pool(x)
        if self.fc_norm is not None:
            x = self.fc_norm(x)
        x = ops.dropout(x, self.config.drop_rate)
        return self.head(x)

    def _head_distilled(self, x: Tensor) -> Tensor:
        assert self.head_dist is not None
        x, x_dist = ops.select(x, 1, 0), ops.select(x, 1, 1)
        x = ops.dropout(x, self.config.drop_rate)
        x_dist = ops.dropout(x_dist, self.config.drop_rate)
        x = self.head(x)
        x_dist = self.head_dist(x_dist)
        return ops.mul(ops.add(x, x_dist), 0.5)


def _block_config(config: Config, rate: float) -> BlockConfig:
    return BlockConfig(
        dim=config.embed_dim,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        scale_attn_norm=config.scale_attn_norm,
        scale_mlp_norm=config.scale_mlp_norm,
        proj_bias=config.proj_bias,
        proj_drop=config.proj_drop_rate,
        attn_drop=config.attn_drop_rate,
        init_values=config.init_values,
        drop_path=rate,
        norm_layer=config.norm_layer,
        act_layer=config.act_layer,
        mlp_layer=config.mlp_layer,
        fused_attn=config.fused_attn,
    )
