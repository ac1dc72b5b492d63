"""What timm's ``VisionTransformer`` is built from: its constructor's arguments, with the user's settings put in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import apply_overrides, require_divisible
from ._timm_blocks import BLOCKS
from ._timm_config import OVERRIDES_WITH_PATCH_DROP, arguments, with_sizes
from ._timm_layers import ACTIVATIONS, MLPS, NORMS, BlockConfig

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "configured"]


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
    def num_fixed_tokens(self) -> int:
        """Tokens that patch dropout keeps: it is made before the distillation token is counted, and may drop it."""
        return int(self.class_token) + self.reg_tokens

    @property
    def num_kept_tokens(self) -> int:
        """Of the other tokens, those that patch dropout leaves."""
        others = math.prod(self.grid) + int(self.distilled)
        return max(1, int(others * (1.0 - self.patch_drop_rate))) if self.patch_drop_rate > 0 else others

    def block(self, drop_path: float) -> BlockConfig:
        """What the block with this stochastic depth is built from."""
        return BlockConfig(
            dim=self.embed_dim,
            num_heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            scale_attn_norm=self.scale_attn_norm,
            scale_mlp_norm=self.scale_mlp_norm,
            proj_bias=self.proj_bias,
            proj_drop=self.proj_drop_rate,
            attn_drop=self.attn_drop_rate,
            init_values=self.init_values,
            drop_path=drop_path,
            norm_layer=self.norm_layer,
            act_layer=self.act_layer,
            mlp_layer=self.mlp_layer,
            fused_attn=self.fused_attn,
        )


def configured(model: ModelConfig, settings: TrainSettings) -> Config:
    """The arguments that ``timm.create_model(name, img_size=..., ...)`` arrives at; raises where timm would."""
    config = Config(**arguments(Config, model), distilled=model.class_name == "VisionTransformerDistilled")
    config = apply_overrides(config, settings, OVERRIDES_WITH_PATCH_DROP)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn in {"auto", "sdpa"})
    _check(model.name, config, settings)
    return config


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    if settings.window is not None:
        raise InvalidRequest(f"{name} has no windows; --window belongs to Swin models")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest("timm models run F.scaled_dot_product_attention; use --attn sdpa (or --sdpa-kernel flash)")
    require_divisible("dim", config.embed_dim, "heads", config.num_heads)
    for size, patch in zip(config.img_size, config.patch_size):
        if size < patch:
            raise InvalidRequest(
                f"res {size} is smaller than one patch of {patch} pixels; raise --res or lower --patch"
            )
        if config.dynamic_img_size and not config.dynamic_img_pad and size % patch:
            raise InvalidRequest(
                f"{name} refuses {size} pixels: not a multiple of its patch {patch}; use --res {size - size % patch}"
            )
    known: dict[str, Mapping[Any, object]] = {"block_fn": BLOCKS, "norm_layer": NORMS, "act_layer": ACTIVATIONS}
    for field, table in known.items():
        if getattr(config, field) not in table:
            raise NoFamily(f"{name}: {field} {getattr(config, field)} is not modelled")
    if config.mlp_layer not in MLPS or config.attn_layer not in {"", "attn", "Attention"}:
        raise NoFamily(f"{name}: {config.mlp_layer} with attention {config.attn_layer or 'attn'} is not modelled")
    if config.dynamic_img_pad or config.global_pool not in {"token", "avg", "avgmax", "max", "map"}:
        raise NoFamily(f"{name}: pooling {config.global_pool!r} or padded patch embedding is not modelled")
