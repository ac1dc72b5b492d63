"""What transformers' two Swin families read from a config.json and refuse (transformers 5.24, models/swin*)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ._hf import ACTIVATIONS, OVERRIDES, pair

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "Pair", "block_paths", "check_positions", "configured", "resolved", "stage_ends"]

Pair = tuple[int, int]

_OVERRIDES: Mapping[str, str] = {**OVERRIDES, "dim": "embed_dim"}
_ONE_NUMBER = {"depth": "depths", "heads": "num_heads"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``SwinConfig`` and ``Swinv2Config`` that decide memory; sizes are (height, width) in pixels."""

    image_size: Pair = (224, 224)
    patch_size: Pair = (4, 4)
    num_channels: int = 3
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: int = 7
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    drop_path_rate: float = 0.1
    use_absolute_embeddings: bool = False
    pretrained_window_sizes: tuple[int, ...] | None = None
    num_labels: int = 1000
    attn: str = "eager"

    @property
    def whole_patches(self) -> Pair:
        """Patches without a remainder of pixels: what the sizes in the constructor are made for."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    def width(self, stage: int) -> int:
        """Channels of a stage's blocks."""
        return int(self.embed_dim * 2**stage)

    def grid(self, stage: int) -> Pair:
        """The grid that a stage sees: images are padded to whole patches, grids to even sizes before they halve."""
        height, width = (-(-size // patch) for size, patch in zip(self.image_size, self.patch_size))
        for _ in range(stage):
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width


_FIELDS = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def configured(model: ModelConfig, settings: TrainSettings, *, attn: str) -> Config:
    """config.json with the user's settings put in; raises where either family would."""
    fields = {field: value for field, value in model.config.items() if field in _FIELDS}
    for setting, field in _OVERRIDES.items():
        value = getattr(settings, setting)
        if field in _FIELDS and value is not None:
            fields[field] = value
        elif value:
            raise InvalidRequest(_no_such(model.name, setting, field))
    for field in ("depths", "num_heads", "pretrained_window_sizes"):
        if field in fields:
            fields[field] = tuple(fields[field])
    fields["image_size"] = settings.res or pair(fields["image_size"])
    fields["patch_size"] = pair(settings.patch or fields["patch_size"])
    config = Config(**fields, attn=attn)
    _check(model.name, config)
    return config


def _no_such(name: str, setting: str, field: str) -> str:
    if setting in _ONE_NUMBER:
        return (
            f"{name} has {_ONE_NUMBER[setting]} per stage, which --{setting} cannot say; "
            "give a folder whose config.json has them"
        )
    return f"{name} has no {field}; leave out --{setting.replace('_', '-')}"


def _check(name: str, config: Config) -> None:
    stages = len(config.depths)
    if config.num_channels != 3:
        raise InvalidRequest(f"{name} takes images of {config.num_channels} channels; training images have 3")
    for field in ("num_heads", "pretrained_window_sizes"):
        values = getattr(config, field)
        if values is not None and len(values) < stages:
            raise InvalidRequest(f"{name} has {stages} stages but only {len(values)} {field}; give one per stage")
    if config.hidden_act not in ACTIVATIONS:
        raise NoFamily(f"{name}: activation {config.hidden_act!r} is not modelled")
    for stage, (depth, heads) in enumerate(zip(config.depths, config.num_heads)):
        if depth and (heads < 1 or config.width(stage) % heads):
            raise InvalidRequest(
                f"width {config.width(stage)} of stage {stage} is not divisible by {heads} heads; the library "
                "refuses it"
            )


def check_positions(name: str, config: Config, extra: int) -> None:
    """Absolute position embeddings are made for whole patches (and, by mistake, for ``extra`` tokens more)."""
    height, width = config.whole_patches
    grid = config.grid(0)
    if config.use_absolute_embeddings and height * width + extra not in {1, grid[0] * grid[1]}:
        raise InvalidRequest(
            f"{name}: {height * width + extra} absolute position embeddings do not fit {grid[0]} x {grid[1]} patches; "
            + ("set use_absolute_embeddings to false" if extra else "make --res a multiple of the patch size")
        )


def stage_ends(config: Config) -> tuple[int, ...]:
    """How many blocks lie in each stage and those before it."""
    return tuple(sum(config.depths[: stage + 1]) for stage in range(len(config.depths)))


def block_paths(config: Config, prefix: str) -> tuple[str, ...]:
    """The rows of the blocks, in order."""
    return tuple(
        f"{prefix}.encoder.layers.{i}.blocks.{j}" for i, depth in enumerate(config.depths) for j in range(depth)
    )


def resolved(config: Config) -> Mapping[str, Any]:
    """The settings as the model has them."""
    return {
        "patch": config.patch_size[0],
        "window": config.window_size,
        "dim": config.embed_dim,
        "mlp_ratio": config.mlp_ratio,
        "dropout": config.hidden_dropout_prob,
        "attn_dropout": config.attention_probs_dropout_prob,
        "drop_path": config.drop_path_rate,
        "patch_drop": 0.0,
    }
