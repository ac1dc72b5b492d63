"""What transformers' two Swin families share (transformers 5.24, models/swin and models/swinv2).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ._hf import LossOf
from ._hf_swin_config import Config, Pair
from .nn import Conv2d, LayerNorm, Linear

__all__ = [
    "Encoder",
    "ForImageClassification",
    "Stage",
    "cropped",
    "drop_path",
    "interleaved",
    "neighbours",
    "padded",
    "side_by_side",
    "window_partition",
    "window_reverse",
]


class Stage(Module):
    """One resolution: its blocks, and the merging that leads to the next."""

    blocks: Sequence[Module]
    downsample: Module | None


class Encoder(Module):
    """The stages in order."""

    layers: Sequence[Stage]


EncoderType = Callable[[Scope, Config], Encoder]


def window_partition(input_feature: Tensor, window: int) -> Tensor:
    """[B, H, W, C] -> [B * windows, w, w, C], a copy."""
    b, height, width, c = input_feature.shape
    input_feature = ops.view(input_feature, b, height // window, window, width // window, window, c)
    return ops.view(ops.contiguous(ops.transpose(input_feature, 2, 3)), -1, window, window, c)


def window_reverse(windows: Tensor, window: int, height: int, width: int) -> Tensor:
    """[B * windows, w, w, C] -> [B, H, W, C], a copy."""
    c = windows.shape[-1]
    windows = ops.view(windows, -1, height // window, width // window, window, window, c)
    windows = ops.view(ops.contiguous(ops.transpose(windows, 2, 3)), -1, height, width, c)
    return windows


def padded(grid: Pair, window: int) -> Pair:
    """The grid in whole windows."""
    return -(-grid[0] // window) * window, -(-grid[1] // window) * window


def cropped(x: Tensor, height: int, width: int) -> Tensor:
    """``x[:, :height, :width, :].contiguous()``; a slice of everything is no slice."""
    if x.shape[1] != height:
        x = ops.narrow(x, 1, 0, height)
    if x.shape[2] != width:
        x = ops.narrow(x, 2, 0, width)
    return ops.contiguous(x)


def drop_path(hidden_states: Tensor, rate: float) -> Tensor:
    """``SwinDropPath``; at rate 0 an ``nn.Identity``."""
    return ops.rand_floor_scale(hidden_states) if rate > 0 else hidden_states


def interleaved(input_feature: Tensor, height: int, width: int) -> Tensor:
    """[B, H * W, C] -> [B, H/2 * W/2, 4 C]: odd sides are padded, then four strided slices side by side."""
    return side_by_side(neighbours(input_feature, height, width))


def neighbours(input_feature: Tensor, height: int, width: int) -> list[Tensor]:
    """[B, H * W, C] -> four of [B, H/2, W/2, C], views of the input or of its padded copy."""
    b, _, c = input_feature.shape
    input_feature = ops.view(input_feature, b, height, width, c)
    if height % 2 or width % 2:
        input_feature = ops.pad_grid(input_feature, height + height % 2, width + width % 2)
    return [_every_other(input_feature, row, col) for col in (0, 1) for row in (0, 1)]


def side_by_side(parts: list[Tensor]) -> Tensor:
    """Four of [B, H, W, C] -> [B, H * W, 4 C]."""
    b, _, _, c = parts[0].shape
    return ops.view(ops.cat(parts, 3), b, -1, 4 * c)


def _every_other(x: Tensor, row: int, col: int) -> Tensor:
    return ops.narrow(ops.narrow(x, 1, row, x.shape[1], 2), 2, col, x.shape[2], 2)


class AdaptiveAvgPool1d(Module):
    """``nn.AdaptiveAvgPool1d(1)``: [B, C, N] -> [B, C, 1], by its form for two dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, _ = x.shape
        return ops.view(ops.adaptive_avg_pool2d(ops.unsqueeze(x, 2)), b, c, 1)


class PatchEmbeddings(Module):
    """[B, 3, H, W] -> [B, patches, C] and the grid; an image is padded to whole patches, first to the right."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.patch_size = config.patch_size
        self.projection = Conv2d(scope / "projection", config.num_channels, config.embed_dim, config.patch_size)

    def _maybe_pad(self, pixel_values: Tensor) -> Tensor:
        height, width = pixel_values.shape[2:]
        patch_height, patch_width = self.patch_size
        if width % patch_width:
            pixel_values = ops.pad_image(pixel_values, height, -(-width // patch_width) * patch_width)
        if height % patch_height:
            pixel_values = ops.pad_image(pixel_values, -(-height // patch_height) * patch_height, pixel_values.shape[3])
        return pixel_values

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Pair]:
        pixel_values = self._maybe_pad(pixel_values)
        embeddings = self.projection(pixel_values)
        _, _, height, width = embeddings.shape
        embeddings = ops.transpose(ops.flatten(embeddings, 2), 1, 2)
        return embeddings, (height, width)


class Embeddings(Module):
    """Patches, their norm, absolute positions (``extra`` more than whole patches) where the config wants them."""

    def __init__(self, scope: Scope, config: Config, extra: int) -> None:
        super().__init__(scope)
        self.dropout = config.hidden_dropout_prob
        positions = config.whole_patches[0] * config.whole_patches[1] + extra
        self.position_embeddings = (
            scope.parameter("position_embeddings", 1, positions, config.embed_dim)
            if config.use_absolute_embeddings
            else None
        )
        self.patch_embeddings = PatchEmbeddings(scope / "patch_embeddings", config)
        self.norm = LayerNorm(scope / "norm", config.embed_dim)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Pair]:
        embeddings, output_dimensions = self.patch_embeddings(pixel_values)
        embeddings = self.norm(embeddings)
        if self.position_embeddings is not None:
            embeddings = ops.add(embeddings, self.position_embeddings)
        embeddings = ops.dropout(embeddings, self.dropout)
        return embeddings, output_dimensions


class Model(Module):
    """``SwinModel`` and ``Swinv2Model``."""

    def __init__(self, scope: Scope, config: Config, encoder: EncoderType, extra_positions: int) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config, extra_positions)
        self.encoder = encoder(scope.row("encoder"), config)
        self.layernorm = LayerNorm(scope.row("layernorm"), config.width(len(config.depths) - 1))
        self.pooler = AdaptiveAvgPool1d(scope.row("pooler"))

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        embedding_output, input_dimensions = self.embeddings(pixel_values)
        encoder_output = self.encoder(embedding_output, input_dimensions)
        sequence_output = encoder_output
        sequence_output = self.layernorm(sequence_output)
        pooled_output = self.pooler(ops.transpose(sequence_output, 1, 2))
        pooled_output = ops.flatten(pooled_output, 1)
        return sequence_output, pooled_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels] from the mean over all tokens, or (loss, logits) where labels came in."""

    takes_loss_kwargs = True

    def __init__(
        self, scope: Scope, config: Config, prefix: str, encoder: EncoderType, extra_positions: int = 0
    ) -> None:
        super().__init__(scope)
        self.backbone = Model(scope / prefix, config, encoder, extra_positions)
        self.stages = self.backbone.encoder.layers
        self.blocks = [block for stage in self.stages for block in stage.blocks]
        self.classifier = Linear(scope.row("classifier"), config.width(len(config.depths) - 1), config.num_labels)

    def enable_checkpointing(self, count: int | None) -> None:
        """The stages whose blocks all are among the first ``count`` (None: all) are checkpointed as a whole."""
        begins = 0
        for stage in self.stages:
            begins += len(stage.blocks)
            stage.checkpointed = count is None or begins <= count

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.backbone(pixel_values)
        pooled_output = outputs[1]
        logits = self.classifier(pooled_output)
        return logits if loss_of is None else (loss_of(logits), logits)
