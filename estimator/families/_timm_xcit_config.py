"""What timm's ``Xcit`` is built from: its constructor's arguments, with the user's settings put in."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._plan import apply_overrides, require_divisible
from ._timm_config import OVERRIDES, arguments, with_sizes

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "configured"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width) in pixels.

    ``fused_xca`` and ``fused_class_attn``: timm counts fused cross-covariance attention as experimental.
    """

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
    cls_attn_layers: int = 2
    use_pos_embed: bool = True
    eta: float | None = 1.0
    tokens_norm: bool = False
    fused_xca: bool = False
    fused_class_attn: bool = True

    @property
    def strides(self) -> int:
        """Convolutions of stride 2 in the patch embedding."""
        return 4 if self.patch_size[0] == 16 else 3

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along height and width: each convolution halves and rounds up."""
        height, width = (-(-size // 2**self.strides) for size in self.img_size)
        return height, width

    @property
    def attn(self) -> str:
        """``auto`` is a mixture."""
        if not self.fused_class_attn:
            return "eager"
        return "sdpa" if self.fused_xca else "auto"


def configured(model: ModelConfig, settings: TrainSettings) -> Config:
    """The arguments that ``timm.create_model(name, img_size=..., ...)`` arrives at; raises where timm would."""
    for name in ("window", "patch_drop"):
        if getattr(settings, name):
            raise InvalidRequest(f"{model.name} has no --{name.replace('_', '-')}; leave it out")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest("timm models run F.scaled_dot_product_attention; use --attn sdpa")
    config = apply_overrides(Config(**arguments(Config, model)), settings, OVERRIDES)
    config = dataclasses.replace(
        with_sizes(config, settings), fused_xca=settings.attn == "sdpa", fused_class_attn=settings.attn != "eager"
    )
    _check(model.name, config, settings)
    return config


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    patch = config.patch_size[0]
    if config.patch_size not in {(8, 8), (16, 16)}:
        raise InvalidRequest(f"{name} embeds patches of 8 or 16 pixels only; use --patch 8 or --patch 16")
    if rest := config.img_size[0] % patch:
        height = config.img_size[0] + patch - rest
        raise InvalidRequest(
            f"{name} refuses a height of {config.img_size[0]} pixels: not a multiple of its patch {patch}; use {height}"
        )
    require_divisible("dim", config.embed_dim, "heads", config.num_heads)
    if config.embed_dim < 2 ** (config.strides - 1):
        raise InvalidRequest(f"dim {config.embed_dim} leaves the first convolution of {name} no channel; raise --dim")
    if settings.bs * config.grid[0] * config.grid[1] == 1:
        raise InvalidRequest(f"{name}: batch normalisation needs more than one patch or image; raise --bs or --res")
    if config.global_pool not in {"token", "avg"} or config.eta is None:
        raise NoFamily(f"{name}: pooling {config.global_pool!r} or a model without eta is not modelled")
