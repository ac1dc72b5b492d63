"""What transformers' BEiT and Data2VecVision share (transformers 5.24, models/beit and models/data2vec).

Shapes: B images, N tokens (one of them the class token), C width, H heads.
"""

from __future__ import annotations

import dataclasses
from math import isqrt
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ._hf import LossOf, PatchEmbeddings, read_config, require_floats
from ._plan import linear_rates
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Config", "Embeddings", "Pooler", "RelativePositionBias", "classify", "read", "resolved"]

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``BeitConfig`` and ``Data2VecVisionConfig`` that decide memory; sizes are (height, width)."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    num_channels: int = 3
    use_mask_token: bool = False
    use_absolute_position_embeddings: bool = False
    use_relative_position_bias: bool = False
    use_shared_relative_position_bias: bool = False
    layer_scale_init_value: float = 0.1
    drop_path_rate: float = 0.1
    use_mean_pooling: bool = True
    num_labels: int = 1000
    attn: str = "sdpa"

    @property
    def grid(self) -> Pair:
        """Patches along height and width; a remainder of pixels is dropped."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return self.grid[0] * self.grid[1]

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def drop_path_rates(self) -> tuple[float, ...]:
        """One rate per layer."""
        return linear_rates(self.drop_path_rate, self.num_hidden_layers)

    @property
    def interpolates_positions(self) -> bool:
        """Absolute positions were made for this number of patches, but only a square image takes them as they are."""
        return self.use_absolute_position_embeddings and self.image_size[0] != self.image_size[1]


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def read(model: ModelConfig, settings: TrainSettings, *, divisible: bool = True) -> Config:
    """The configuration with the user's settings; raises where transformers would."""
    config = Config(**read_config(model.name, model.config, settings, KNOWN, divisible=divisible))
    require_floats(model.name, model.config, "layer_scale_init_value")
    positions = config.num_patches
    if config.interpolates_positions and isqrt(positions) ** 2 != positions:
        raise InvalidRequest(
            f"{model.name}: {positions} position embeddings of a {config.grid[0]}x{config.grid[1]} grid cannot be "
            "interpolated, the library takes their number for a square; use a square --res"
        )
    divides = config.use_relative_position_bias or config.use_shared_relative_position_bias
    divides = divides or config.interpolates_positions
    if divides and settings.patch is None and isinstance(model.config["patch_size"], list):
        raise InvalidRequest(f"{model.name}: the library needs patch_size as one number; add --patch")
    return config


def resolved(config: Config) -> dict[str, Any]:
    """The architecture as ``--help`` names it."""
    return {
        "res": config.image_size,
        "patch": config.patch_size[0],
        "dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "mlp_ratio": config.intermediate_size / config.hidden_size,
        "dropout": config.hidden_dropout_prob,
        "attn_dropout": config.attention_probs_dropout_prob,
        "drop_path": config.drop_path_rate,
        "patch_drop": 0.0,
    }


class Embeddings(Module):
    """[B, 3, height, width] -> [B, N, C]: class token and patches, then absolute positions where there are any."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.config = config
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        if config.use_mask_token:
            scope.parameter("mask_token", 1, 1, width, used=False)
        has_positions = config.use_absolute_position_embeddings
        self.position_embeddings = (
            scope.parameter("position_embeddings", 1, config.num_patches + 1, width) if has_positions else None
        )
        self.patch_embeddings = PatchEmbeddings(
            scope / "patch_embeddings", config.num_channels, width, config.patch_size
        )

    def _positions(self, position_embeddings: Tensor) -> Tensor:
        """``interpolate_pos_encoding``: as they are for a square image, else bicubic from a square grid."""
        if not self.config.interpolates_positions:
            return position_embeddings
        _, count, dim = position_embeddings.shape
        class_pos_embed = ops.narrow(position_embeddings, 1, 0, 1)
        patch_pos_embed = ops.narrow(position_embeddings, 1, 1, count)
        side = isqrt(count - 1)
        patch_pos_embed = ops.reshape(patch_pos_embed, 1, side, side, dim)
        patch_pos_embed = ops.permute(patch_pos_embed, 0, 3, 1, 2)
        patch_pos_embed = ops.interpolate(patch_pos_embed, *self.config.grid)
        patch_pos_embed = ops.view(ops.permute(patch_pos_embed, 0, 2, 3, 1), 1, -1, dim)
        return ops.cat([class_pos_embed, patch_pos_embed], 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeddings = self.patch_embeddings(pixel_values)
        cls_tokens = ops.expand(self.cls_token, embeddings.shape[0], -1, -1)
        embeddings = ops.cat([cls_tokens, embeddings], 1)
        if self.position_embeddings is not None:
            embeddings = ops.add(embeddings, self._positions(self.position_embeddings))
        embeddings = ops.dropout(embeddings, self.config.hidden_dropout_prob)
        return embeddings


class RelativePositionBias(Module):
    """A table of (2h - 1)(2w - 1) + 3 distances -> [1, H, N, N]; called without arguments.

    The table is interpolated in every call, also to its own size. The index into it is made once and stays in host
    memory: ``torch.arange`` in forward names no device.
    """

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.height, self.width = config.grid
        self.num_relative_distance = (2 * self.height - 1) * (2 * self.width - 1) + 3
        self.relative_position_bias_table = scope.parameter(
            "relative_position_bias_table", self.num_relative_distance, config.num_attention_heads
        )

    def forward(self) -> Tensor:
        height, width = 2 * self.height - 1, 2 * self.width - 1
        table, distances = self.relative_position_bias_table, self.num_relative_distance
        tokens, heads = self.height * self.width + 1, table.shape[1]
        old_sub_table = ops.narrow(table, 0, 0, distances - 3)
        old_sub_table = ops.permute(ops.reshape(old_sub_table, 1, width, height, heads), 0, 3, 1, 2)
        new_sub_table = ops.interpolate(old_sub_table, height, width, mode="bilinear")
        new_sub_table = ops.reshape(ops.permute(new_sub_table, 0, 2, 3, 1), distances - 3, heads)
        new_table = ops.cat([new_sub_table, ops.narrow(table, 0, distances - 3, distances)], 0)
        bias = ops.rows_of_host_index(new_table, tokens * tokens)
        bias = ops.view(bias, tokens, tokens, heads)
        bias = ops.contiguous(ops.permute(bias, 2, 0, 1))
        return ops.view(bias, 1, heads, tokens, tokens)


class Pooler(Module):
    """[B, N, C] -> [B, C]: the normalised mean of the patches, or the class token."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.layernorm = LayerNorm(scope / "layernorm", config.hidden_size) if config.use_mean_pooling else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.layernorm is None:
            return ops.select(hidden_states, 1, 0)
        pooled: Tensor = self.layernorm(ops.mean(ops.narrow(hidden_states, 1, 1, hidden_states.shape[1]), 1))
        return pooled


def classify(outputs: tuple[Tensor, Tensor], classifier: Linear, loss_of: LossOf | None) -> Any:
    """The tail of ``ForImageClassification.forward``: ``outputs`` holds the last hidden state to its end."""
    pooled_output = outputs[1]
    logits = classifier(pooled_output)
    return logits if loss_of is None else (loss_of(logits), logits)
