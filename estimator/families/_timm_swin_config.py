"""What timm's Swin families are built from: their constructors' arguments, with the user's settings put in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import apply_overrides
from ._timm_config import arguments, with_sizes

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "Pair", "SwinV1Config", "SwinV2Config", "SwinV2CrConfig", "configured"]

Pair = tuple[int, int]
ConfigT = TypeVar("ConfigT", bound="Config")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The arguments that the three constructors share, with Swin's defaults; sizes are (height, width)."""

    img_size: Pair = (224, 224)
    patch_size: Pair = (4, 4)
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "avg"
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: Any = 7
    always_partition: bool = False
    strict_img_size: bool = True
    dynamic_img_size: bool = False
    mlp_ratio: float = 4.0
    drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.1
    norm_layer: str = "LayerNorm"

    #: Arguments of which one value is modelled, the default.
    only_default: ClassVar[tuple[str, ...]] = ("global_pool", "strict_img_size", "dynamic_img_size", "norm_layer")
    #: Whether ``--attn sdpa`` reaches the class.
    can_fuse: ClassVar[bool] = False

    def stage_window(self, stage: int) -> Pair:
        """One number for all stages, or one per stage (swin_s3)."""
        window = self.window_size if isinstance(self.window_size, int) else self.window_size[stage]
        return (window, window) if isinstance(window, int) else (window[0], window[1])

    def stage_grid(self, stage: int) -> Pair:
        """The grid of a stage's blocks: halved, rounded up, before every stage but the first."""
        height, width = self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]
        for _ in range(stage):
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def stage_dim(self, stage: int) -> int:
        """The width of a stage's blocks."""
        dim: int = self.embed_dim * 2**stage
        return dim


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SwinV1Config(Config):
    """``SwinTransformer``; fused attention is its experimental option."""

    qkv_bias: bool = True
    fused_attn: bool = False

    can_fuse: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SwinV2Config(Config):
    """``SwinTransformerV2``. The window of the pretraining only scales the coordinates of the position bias."""

    qkv_bias: bool = True
    act_layer: str = "gelu"
    pretrained_window_sizes: tuple[int, ...] = (0, 0, 0, 0)

    only_default: ClassVar[tuple[str, ...]] = (*Config.only_default, "act_layer")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SwinV2CrConfig(Config):
    """``SwinTransformerV2Cr``; ``sequential_attn`` is accepted there and does nothing."""

    window_size: Any = None
    window_ratio: int = 8
    drop_path_rate: float = 0.0
    init_values: float | None = 0.0
    extra_norm_period: int = 0
    extra_norm_stage: bool = False
    sequential_attn: bool = False

    def stage_window(self, stage: int) -> Pair:
        """Without a size of its own, a fraction of the whole patch grid in every stage."""
        if self.window_size is not None:
            return Config.stage_window(self, stage)
        height, width = self.stage_grid(0)
        return max(1, height // self.window_ratio), max(1, width // self.window_ratio)

    def ends_with_norm(self, stage: int, block: int) -> bool:
        """Every ``extra_norm_period`` blocks, at the end of every stage if asked for, and of the last in any case."""
        if self.extra_norm_period and (block + 1) % self.extra_norm_period == 0:
            return True
        is_last = stage + 1 == len(self.depths)
        return (self.extra_norm_stage or is_last) and block + 1 == self.depths[stage]


_OVERRIDES = {
    "dim": "embed_dim",
    "mlp_ratio": "mlp_ratio",
    "num_classes": "num_classes",
    "window": "window_size",
    "dropout": "drop_rate",
    "attn_dropout": "attn_drop_rate",
    "drop_path": "drop_path_rate",
}


def configured(config_class: type[ConfigT], model: ModelConfig, settings: TrainSettings) -> ConfigT:
    """The arguments that ``timm.create_model(name, img_size=..., ...)`` arrives at; raises where timm would."""
    row = arguments(config_class, model)
    for name in ("depths", "num_heads", "pretrained_window_sizes"):
        if name in row:
            row[name] = tuple(row[name])
    config = with_sizes(apply_overrides(config_class(**row), settings, _OVERRIDES), settings)
    _check(model.name, config, settings)
    return config


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    for setting in ("depth", "heads", "patch_drop"):
        if getattr(settings, setting) is not None:
            option = setting.replace("_", "-")
            raise InvalidRequest(f"{name} takes no --{option}: its class has no such argument; leave it out")
    if settings.attn == "flash_attention_2" or (settings.attn == "sdpa" and not config.can_fuse):
        reason = "a position bias rules flash attention out" if config.can_fuse else "its cosine attention is eager"
        raise InvalidRequest(f"{name}: {reason}; leave out --attn")
    defaults = type(config)()
    for field in config.only_default:
        if (value := getattr(config, field)) != getattr(defaults, field):
            raise NoFamily(f"{name}: {field} {value!r} is not modelled")
    window = config.window_size
    if (window is None and defaults.window_size is not None) or (isinstance(window, int) and window < 1):
        raise InvalidRequest(f"{name}: window_size {window} is no size; leave it out of config.json")
    if len(config.depths) != len(config.num_heads):
        raise InvalidRequest(f"{name}: {len(config.depths)} depths for {len(config.num_heads)} numbers of heads")
    for stage, heads in enumerate(config.num_heads):
        if not heads or config.stage_dim(stage) % heads:
            raise InvalidRequest(f"width {config.stage_dim(stage)} is not divisible by {heads} heads")
    if min(config.stage_grid(0)) < 1:
        raise InvalidRequest(f"res {config.img_size} is smaller than one patch of {config.patch_size[0]} pixels")
