"""What timm's ``Eva`` is built from: its constructor's arguments, with the user's settings put in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import apply_overrides, require_divisible
from ._timm_config import OVERRIDES_WITH_PATCH_DROP, arguments, with_sizes
from ._timm_eva_blocks import EvaBlockConfig
from ._timm_layers import NORMS

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
    global_pool: str = "avg"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    num_kv_heads: Any = None
    qkv_bias: bool = True
    qkv_fused: bool = True
    qk_norm: bool = False
    mlp_ratio: float = 4.0
    swiglu_mlp: bool = False
    swiglu_align_to: int = 0
    scale_mlp: bool = False
    scale_attn_inner: bool = False
    attn_type: str = "eva"
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    patch_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_layer: str | None = None
    init_values: float | None = None
    attn_only_layer_scale: bool = False
    class_token: bool = True
    num_reg_tokens: int = 0
    no_embed_class: bool = False
    use_abs_pos_emb: bool = True
    use_rot_pos_emb: bool = False
    rope_type: str = "cat"
    rope_grid_offset: float = 0.0
    rope_grid_indexing: str = "ij"
    rope_temperature: float = 10000.0
    rope_rotate_half: bool = False
    rope_shift_coords: float | None = None
    rope_jitter_coords: float | None = None
    rope_rescale_coords: float | None = None
    rope_mrope_section: Any = None
    use_post_norm: bool = False
    use_pre_transformer_norm: bool = False
    use_post_transformer_norm: bool | None = None
    use_fc_norm: bool | None = None
    attn_pool_num_heads: int | None = None
    attn_pool_mlp_ratio: float | None = None
    dynamic_img_size: bool = False
    dynamic_img_pad: bool = False
    ref_feat_shape: Any = None
    head_init_scale: float = 0.001
    fused_attn: bool = True

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along height and width: a remainder of pixels is dropped, as the convolution drops it."""
        return self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.embed_dim // self.num_heads

    @property
    def num_prefix_tokens(self) -> int:
        """Class and register tokens."""
        return int(self.class_token) + self.num_reg_tokens

    @property
    def num_kept_patches(self) -> int:
        """What patch dropout leaves."""
        patches = math.prod(self.grid)
        return max(1, int(patches * (1.0 - self.patch_drop_rate))) if self.patch_drop_rate > 0 else patches

    @property
    def has_fc_norm(self) -> bool:
        """Norm after pooling: by default of an average."""
        return self.global_pool == "avg" if self.use_fc_norm is None else self.use_fc_norm

    @property
    def has_norm(self) -> bool:
        """Norm after the last block: by default where none follows the pooling."""
        return not self.has_fc_norm if self.use_post_transformer_norm is None else self.use_post_transformer_norm

    @property
    def augments_rope(self) -> bool:
        """Whether rotary coordinates are shifted or scaled at random in training."""
        return any(x is not None for x in (self.rope_shift_coords, self.rope_jitter_coords, self.rope_rescale_coords))

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """Heads of keys and values, block by block."""
        given = self.num_kv_heads
        each = (given,) * self.depth if given is None or isinstance(given, int) else tuple(given)
        return tuple(heads or self.num_heads for heads in each)

    def block(self, drop_path: float, kv_heads: int) -> EvaBlockConfig:
        """What the block with this stochastic depth is built from."""
        separate = self.scale_mlp or (self.swiglu_align_to > 0 and not self.use_post_norm)
        hidden = int(self.embed_dim * self.mlp_ratio)
        mlp = "Mlp"
        if self.swiglu_mlp and separate:
            mlp, hidden = "SwiGLU", hidden + (-hidden % self.swiglu_align_to if self.swiglu_align_to else 0)
        elif self.swiglu_mlp:
            mlp, hidden = "SwiGLUPacked", hidden * 2
        return EvaBlockConfig(
            dim=self.embed_dim,
            num_heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            mlp_hidden=hidden,
            qkv_bias=self.qkv_bias,
            qkv_fused=self.qkv_fused,
            qk_norm=self.qk_norm,
            num_kv_heads=kv_heads,
            num_prefix_tokens=self.num_prefix_tokens,
            rotate_half=self.rope_rotate_half,
            attn_type=self.attn_type,
            attn_only_layer_scale=self.attn_only_layer_scale,
            scale_attn_norm=self.scale_attn_inner,
            scale_mlp_norm=self.scale_mlp,
            proj_bias=True,
            proj_drop=self.proj_drop_rate,
            attn_drop=self.attn_drop_rate,
            init_values=self.init_values,
            drop_path=drop_path,
            norm_layer=self.norm_layer,
            act_layer="silu" if self.swiglu_mlp else "gelu",
            mlp_layer=mlp,
            fused_attn=self.fused_attn,
        )


def configured(model: ModelConfig, settings: TrainSettings) -> Config:
    """The arguments that ``timm.create_model(name, img_size=..., ...)`` arrives at; raises where timm would."""
    config = apply_overrides(Config(**arguments(Config, model)), settings, OVERRIDES_WITH_PATCH_DROP)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn in {"auto", "sdpa"})
    _check_settings(model.name, config, settings)
    _check_heads(model.name, config)
    _check_modelled(model.name, config)
    return config


def _check_settings(name: str, config: Config, settings: TrainSettings) -> None:
    if settings.window is not None:
        raise InvalidRequest(f"{name} has no windows; --window belongs to Swin models")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest("timm models run F.scaled_dot_product_attention; use --attn sdpa (or --sdpa-kernel flash)")
    for size, patch in zip(config.img_size, config.patch_size):
        if size < patch:
            raise InvalidRequest(
                f"res {size} is smaller than one patch of {patch} pixels; raise --res or lower --patch"
            )
        if config.dynamic_img_size and not config.dynamic_img_pad and size % patch:
            raise InvalidRequest(
                f"{name} refuses {size} pixels: not a multiple of its patch {patch}; use --res {size - size % patch}"
            )


def _check_heads(name: str, config: Config) -> None:
    require_divisible("dim", config.embed_dim, "heads", config.num_heads)
    if config.global_pool == "map":
        require_divisible("dim", config.embed_dim, "pooling heads", config.attn_pool_num_heads or config.num_heads)
    if config.global_pool == "token" and not config.class_token:
        raise InvalidRequest(f"{name}: pooling by the class token needs class_token true")
    if config.use_rot_pos_emb and config.head_dim % 4:
        raise InvalidRequest(
            f"{name}: rotary embeddings need heads of a multiple of 4 channels, not {config.head_dim}; "
            "change --dim or --heads"
        )
    if len(config.kv_heads) != config.depth:
        raise InvalidRequest(
            f"{name} names the key heads of {len(config.kv_heads)} blocks; timm refuses another --depth"
        )
    for heads in set(config.kv_heads):
        if config.num_heads % heads:
            raise InvalidRequest(f"{name}: {config.num_heads} heads are not a multiple of {heads} heads of keys")
        if heads != config.num_heads and (config.qkv_fused or config.attn_type != "rope"):
            raise InvalidRequest(f"{name}: fewer heads of keys need attn_type rope and qkv_fused false")
    if config.use_post_norm and (config.qk_norm or config.attn_only_layer_scale or config.num_kv_heads is not None):
        raise InvalidRequest(f"{name}: timm's post-norm block has no qk_norm, num_kv_heads or attn_only_layer_scale")


def _check_modelled(name: str, config: Config) -> None:
    known: Mapping[str, tuple[object, ...]] = {
        "norm_layer": tuple(NORMS),
        "rope_type": ("cat", "mixed", "dinov3"),
        "global_pool": ("avg", "avgmax", "max", "token", "map"),
        "dynamic_img_pad": (False,),
    }
    for field, values in known.items():
        if getattr(config, field) not in values:
            raise NoFamily(f"{name}: {field} {getattr(config, field)} is not modelled")
    if config.use_rot_pos_emb and config.rope_type == "mixed" and config.rope_rotate_half:
        raise InvalidRequest(f"{name}: rope_type mixed needs rope_rotate_half false")
    if config.use_rot_pos_emb and config.rope_type != "dinov3" and (config.dynamic_img_size or config.augments_rope):
        raise NoFamily(
            f"{name}: rope_type {config.rope_type} with augmentation or a dynamic image size is not modelled"
        )
