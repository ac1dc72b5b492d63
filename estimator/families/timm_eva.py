"""timm ``Eva``: EVA, EVA-02, Perception Encoder, RoPE-ViT, DINOv3, LingBot and Sapiens2 (timm 1.0.31, models/eva.py).

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._plan import Plan, linear_rates
from ._timm_blocks import AttentionPoolLatent
from ._timm_config import resolved
from ._timm_eva_blocks import EvaBlock, EvaBlockPostNorm
from ._timm_eva_config import Config, configured
from ._timm_layers import NORMS, PatchEmbed
from ._timm_rope import RotaryEmbeddingCat, RotaryEmbeddingDinoV3, RotaryEmbeddingMixed, apply_keep_indices_nlc
from .nn import Dropout, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

Rope = RotaryEmbeddingCat | RotaryEmbeddingDinoV3 | RotaryEmbeddingMixed


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = configured(model, settings)
    return Plan(
        model=model,
        build=partial(Eva, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=config.num_prefix_tokens + config.num_kept_patches,
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head",),
        stem=("model", "patch_embed", "pos_drop", "patch_drop", "rope", "norm_pre"),
        attn="sdpa" if config.fused_attn else "eager",
        resolved=resolved(config),
    )


class PatchDropoutWithIndices(Module):
    """timm/layers/patch_dropout.py: prefix tokens stay, of the patches ``num_keep``; their positions [B, kept] too."""

    def __init__(self, scope: Scope, num_prefix_tokens: int, num_keep: int) -> None:
        super().__init__(scope)
        self.num_prefix_tokens, self.num_keep = num_prefix_tokens, num_keep

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        prefix_tokens = None
        if self.num_prefix_tokens:
            prefix_tokens = ops.narrow(x, 1, 0, self.num_prefix_tokens)
            x = ops.narrow(x, 1, self.num_prefix_tokens, x.shape[1])
        keep_indices = ops.random_tokens(x, self.num_keep)
        x = ops.gather_tokens(x, keep_indices)
        if prefix_tokens is not None:
            x = ops.cat([prefix_tokens, x], 1)
        return x, keep_indices


def _rope(scope: Scope, config: Config) -> Rope:
    if config.rope_type == "mixed":
        return RotaryEmbeddingMixed(scope, config.head_dim, config.depth, config.num_heads, config.grid)
    if config.rope_type == "cat":
        return RotaryEmbeddingCat(scope, config.head_dim, config.grid)
    return RotaryEmbeddingDinoV3(
        scope, config.head_dim, config.grid, rotate_half=config.rope_rotate_half, cached=not config.dynamic_img_size
    )


class Eva(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width, norm = config.embed_dim, NORMS[config.norm_layer]
        tokens = math.prod(config.grid) + (0 if config.no_embed_class else config.num_prefix_tokens)
        self.cls_token = scope.parameter("cls_token", 1, 1, width) if config.class_token else None
        has_registers = config.num_reg_tokens > 0
        self.reg_token = scope.parameter("reg_token", 1, config.num_reg_tokens, width) if has_registers else None
        self.pos_embed = scope.parameter("pos_embed", 1, tokens, width) if config.use_abs_pos_emb else None
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"),
            config.in_chans,
            width,
            config.patch_size,
            bias=not config.use_pre_transformer_norm,
            norm=None,
            flatten=not config.dynamic_img_size,
        )
        self.pos_drop = Dropout(scope.row("pos_drop"), config.pos_drop_rate)
        drops = config.patch_drop_rate > 0
        dropout = partial(PatchDropoutWithIndices, scope.row("patch_drop"), config.num_prefix_tokens)
        self.patch_drop = dropout(config.num_kept_patches) if drops else None
        self.rope = _rope(scope.row("rope"), config) if config.use_rot_pos_emb else None
        self.norm_pre = norm(scope.row("norm_pre"), width) if config.use_pre_transformer_norm else None
        self.blocks = self._blocks(scope / "blocks")
        self.norm = norm(scope.row("norm"), width) if config.has_norm else None
        self.attn_pool = self._attention_pool(scope) if config.global_pool == "map" else None
        self.fc_norm = norm(scope.row("fc_norm"), width) if config.has_fc_norm else None
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.head = Linear(scope.row("head"), width, config.num_classes)
        mixed = {"rope.freqs"} if isinstance(self.rope, RotaryEmbeddingMixed) else set()
        self.no_weight_decay = frozenset({"pos_embed", "cls_token", "reg_token", *mixed})

    def _blocks(self, scope: Scope) -> list[Module]:
        config = self.config
        make = EvaBlockPostNorm if config.use_post_norm else EvaBlock
        rates = linear_rates(config.drop_path_rate, config.depth)
        each = enumerate(zip(rates, config.kv_heads))
        return [make(scope.row(str(i)), config.block(rate, heads)) for i, (rate, heads) in each]

    def _attention_pool(self, scope: Scope) -> AttentionPoolLatent:
        config = self.config
        pool = dataclasses.replace(
            config.block(0.0, config.num_heads),
            num_heads=config.attn_pool_num_heads or config.num_heads,
            mlp_ratio=config.attn_pool_mlp_ratio or config.mlp_ratio,
            act_layer="gelu",
        )
        return AttentionPoolLatent(scope.row("attn_pool"), pool)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.forward_head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, position, blocks, final norm."""
        x = self.patch_embed(x)
        x, rot_pos_embed = self._pos_embed(x)
        if self.norm_pre is not None:
            x = self.norm_pre(x)
        if isinstance(self.rope, RotaryEmbeddingMixed) and rot_pos_embed is not None:
            for i, blk in enumerate(self.blocks):
                x = blk(x, ops.select(rot_pos_embed, 0, i))
        else:
            for blk in self.blocks:
                x = blk(x, rot_pos_embed)
        if self.norm is not None:
            x = self.norm(x)
        return x

    def _pos_embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        config = self.config
        if config.dynamic_img_size:
            x = ops.view(x, x.shape[0], -1, x.shape[3])
        rot_pos_embed = self._rot_pos_embed()
        tokens = (self.cls_token, self.reg_token)
        to_cat = [ops.expand(token, x.shape[0], -1, -1) for token in tokens if token is not None]
        if config.no_embed_class and self.pos_embed is not None:
            x = ops.add(x, self.pos_embed)
        if to_cat:
            x = ops.cat([*to_cat, x], 1)
        if not config.no_embed_class and self.pos_embed is not None:
            x = ops.add(x, self.pos_embed)
        x = self.pos_drop(x)
        if self.patch_drop is not None and self.run.training:
            x, keep_indices = self.patch_drop(x)
            if rot_pos_embed is not None:
                rot_pos_embed = apply_keep_indices_nlc(x, rot_pos_embed, keep_indices)
                if isinstance(self.rope, RotaryEmbeddingMixed):
                    rot_pos_embed = ops.transpose(rot_pos_embed, 0, 1)
                else:
                    b, n, c = rot_pos_embed.shape
                    rot_pos_embed = ops.view(rot_pos_embed, b, 1, n, c)
        return x, rot_pos_embed

    def _rot_pos_embed(self) -> Tensor | None:
        if isinstance(self.rope, RotaryEmbeddingDinoV3):
            return self.rope.get_embed(create=self.config.dynamic_img_size or self.config.augments_rope)
        return None if self.rope is None else self.rope.get_embed()

    def _pool(self, x: Tensor) -> Tensor:
        config = self.config
        if self.attn_pool is not None:
            x = self.attn_pool(x)
            return x
        if config.global_pool == "token":
            return ops.select(x, 1, 0)
        if config.num_prefix_tokens:
            x = ops.narrow(x, 1, config.num_prefix_tokens, x.shape[1])
        if config.global_pool == "avg":
            return ops.mean(x, 1)
        if config.global_pool == "avgmax":
            return ops.mul(ops.add(ops.amax(x, 1), ops.mean(x, 1)), 0.5)
        return ops.amax(x, 1)

    def forward_head(self, x: Tensor) -> Tensor:
        """Pool, norm, classifier."""
        x = self._pool(x)
        if self.fc_norm is not None:
            x = self.fc_norm(x)
        x = self.head_drop(x)
        x = self.head(x)
        return x
