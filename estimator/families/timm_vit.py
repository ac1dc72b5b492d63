"""timm ``VisionTransformer`` and ``VisionTransformerDistilled`` (timm 1.0.31, models/vision_transformer.py, deit.py).

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._plan import Plan, linear_rates
from ._timm_blocks import BLOCKS, AttentionPoolLatent
from ._timm_config import resolved
from ._timm_layers import NORMS, PatchDropout, PatchEmbed, Sequential
from ._timm_vit_config import Config, configured
from .nn import Dropout, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(model, settings)
    attn = "sdpa" if config.fused_attn else "eager"
    return Plan(
        model=model,
        build=partial(VisionTransformer, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=config.num_fixed_tokens + config.num_kept_tokens,
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head", "head_dist"),
        stem=("model", "patch_embed", "pos_drop", "patch_drop", "norm_pre"),
        attn=attn,
        resolved=resolved(config),
    )


class VisionTransformer(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    no_weight_decay = frozenset({"pos_embed", "cls_token", "reg_token", "dist_token"})

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
        self.pos_drop = Dropout(scope.row("pos_drop"), config.pos_drop_rate)
        self.patch_drop = PatchDropout(
            scope.row("patch_drop"), config.patch_drop_rate, config.num_fixed_tokens, config.num_kept_tokens
        )
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"),
            config.in_chans,
            width,
            config.patch_size,
            bias=not config.pre_norm,
            norm=config.embed_norm_layer,
            flatten=not config.dynamic_img_size,
        )
        self.norm_pre = norm(scope.row("norm_pre"), width) if config.pre_norm else None
        rates = linear_rates(config.drop_path_rate, config.depth)
        blocks = scope / "blocks"
        make = BLOCKS[config.block_fn]
        modules = [make(blocks.row(str(i)), config.block(rate)) for i, rate in enumerate(rates)]
        self.blocks = modules
        self.sequence = Sequential(blocks, modules)
        self.norm = norm(scope.row("norm"), width) if config.final_norm and not use_fc_norm else None
        pools = config.global_pool == "map"
        self.attn_pool = AttentionPoolLatent(scope.row("attn_pool"), config.block(0.0)) if pools else None
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
        x = self.patch_drop(x)
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
        x = self.pos_drop(x)
        return x

    def _pool(self, x: Tensor) -> Tensor:
        config = self.config
        if config.global_pool == "token":
            return ops.select(x, 1, 0)
        if config.num_prefix_tokens and not config.pool_include_prefix:
            x = ops.narrow(x, 1, config.num_prefix_tokens, x.shape[1])
        if self.attn_pool is not None:
            x = self.attn_pool(x)
            return x
        if config.global_pool == "avg":
            return ops.mean(x, 1)
        if config.global_pool == "avgmax":
            return ops.mul(ops.add(ops.amax(x, 1), ops.mean(x, 1)), 0.5)
        return ops.amax(x, 1)

    def _head(self, x: Tensor) -> Tensor:
        x = self._pool(x)
        if self.fc_norm is not None:
            x = self.fc_norm(x)
        x = self.head_drop(x)
        x = self.head(x)
        return x

    def _head_distilled(self, x: Tensor) -> Tensor:
        assert self.head_dist is not None
        x, x_dist = ops.select(x, 1, 0), ops.select(x, 1, 1)
        x = self.head_drop(x)
        x_dist = self.head_drop(x_dist)
        x = self.head(x)
        x_dist = self.head_dist(x_dist)
        return ops.mul(ops.add(x, x_dist), 0.5)
