"""What timm's ``SwinTransformer`` is built from: its constructor's arguments, with the user's settings put in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest, NotModelled
from ..settings import TrainSettings
from ._plan import apply_overrides
from ._timm_config import arguments, with_sizes

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "Pair", "configured"]

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width)."""

    img_size: Pair = (224, 224)
    patch_size: Pair = (4, 4)
    in_chans: int = 3
    num_classes: int = 1000
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: Any = 7
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.1
    fused_attn: bool = False

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


_OVERRIDES = {
    "dim": "embed_dim",
    "mlp_ratio": "mlp_ratio",
    "num_classes": "num_classes",
    "window": "window_size",
    "dropout": "drop_rate",
    "attn_dropout": "attn_drop_rate",
    "drop_path": "drop_path_rate",
}


def configured(model: ModelConfig, settings: TrainSettings) -> Config:
    """The arguments that ``timm.create_model(name, img_size=..., ...)`` arrives at; raises where timm would."""
    row = arguments(Config, model)
    for name in ("depths", "num_heads"):
        if name in row:
            row[name] = tuple(row[name])
    config = apply_overrides(Config(**row), settings, _OVERRIDES)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn == "sdpa")
    _check(model.name, config, settings)
    return config


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    for setting in ("depth", "heads", "patch_drop"):
        if getattr(settings, setting):
            raise NotModelled(f"{name}: --{setting.replace('_', '-')} is not modelled for a model in stages")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest(f"{name}: a position bias rules flash attention out; leave out --attn")
    for stage, heads in enumerate(config.num_heads):
        if config.embed_dim * 2**stage % heads:
            raise InvalidRequest(f"width {config.embed_dim * 2**stage} is not divisible by {heads} heads")
    if min(config.stage_grid(0)) < 1:
        raise InvalidRequest(f"res {config.img_size} is smaller than one patch of {config.patch_size[0]} pixels")
