"""transformers ``SwinForImageClassification`` (transformers 5.24, models/swin/modeling_swin.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window, h heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ..units import DType
from ._hf import ACTIVATIONS, ATTENTIONS
from ._hf_swin import (
    Encoder,
    ForImageClassification,
    Stage,
    cropped,
    drop_path,
    interleaved,
    padded,
    window_partition,
    window_reverse,
)
from ._hf_swin_config import Config, Pair, block_paths, check_positions, configured, resolved, stage_ends
from ._plan import Plan, linear_rates
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    if settings.attn == "flash_attention_2":
        raise InvalidRequest(f"{model.name}: transformers' Swin has no flash attention; leave out --attn")
    config = configured(model, settings, attn="sdpa" if settings.attn == "auto" else settings.attn)
    check_positions(model.name, config, 0)
    _check_windows(model.name, config)
    sdpa = (
        "transformers 5.24 runs Swin's attention as scaled_dot_product_attention with an additive mask of position "
        "biases; releases through 5.0 ran it eagerly (--attn eager)"
    )
    return Plan(
        model=model,
        build=partial(SwinForImageClassification, config=config, prefix="swin", encoder=SwinEncoder),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.grid(0)[0] * config.grid(0)[1],
        blocks=block_paths(config, "swin"),
        head=("classifier",),
        stem=("swin.embeddings",),
        attn=config.attn,
        resolved=resolved(config),
        pads_images=True,
        assumptions=(sdpa,) if config.attn == "sdpa" else (),
    )


def _check_windows(name: str, config: Config) -> None:
    """A window shrinks with the grid in forward, but the bias was made for the window of the config."""
    for stage, depth in enumerate(config.depths):
        smallest = min(config.grid(stage))
        if depth and smallest < config.window_size:
            raise InvalidRequest(
                f"{name}: the grid of stage {stage} is {smallest} wide, less than a window of {config.window_size}, "
                "which transformers' Swin refuses; raise --res or lower --window"
            )


class RelativePositionBias(Module):
    """``SwinRelativePositionBias``: [1, h, N, N] from a table with a row per offset."""

    def __init__(self, scope: Scope, heads: int, window: int) -> None:
        super().__init__(scope)
        self.area = window * window
        self.relative_position_bias_table = scope.parameter(
            "relative_position_bias_table", (2 * window - 1) ** 2, heads
        )
        self.index = scope.buffer("relative_position_index", self.area * self.area, dtype=DType.int64)

    def forward(self) -> Tensor:
        relative_position_bias = ops.rows_of(self.relative_position_bias_table, self.index)
        relative_position_bias = ops.view(relative_position_bias, self.area, self.area, -1)
        return ops.unsqueeze(ops.contiguous(ops.permute(relative_position_bias, 2, 0, 1)), 0)


class Attention(Module):
    """``SwinAttention``: [B * windows, N, C]; bias and shift mask add up to one mask per window and head."""

    def __init__(self, scope: Scope, config: Config, dim: int, heads: int) -> None:
        super().__init__(scope)
        self.head_dim = dim // heads
        self.dropout, self.attend = config.attention_probs_dropout_prob, ATTENTIONS[config.attn]
        self.q_proj = Linear(scope / "q_proj", dim, dim, bias=config.qkv_bias)
        self.k_proj = Linear(scope / "k_proj", dim, dim, bias=config.qkv_bias)
        self.v_proj = Linear(scope / "v_proj", dim, dim, bias=config.qkv_bias)
        self.o_proj = Linear(scope / "o_proj", dim, dim)
        self.relative_position_bias = RelativePositionBias(scope / "relative_position_bias", heads, config.window_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        b, n, _ = hidden_states.shape
        query_states = ops.transpose(ops.view(self.q_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        key_states = ops.transpose(ops.view(self.k_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        value_states = ops.transpose(ops.view(self.v_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        relative_position_bias = self.relative_position_bias()
        if attention_mask is not None:
            windows = attention_mask.shape[0]
            attention_mask = ops.unsqueeze(ops.unsqueeze(attention_mask, 1), 0)
            attention_mask = ops.expand(attention_mask, b // windows, -1, -1, -1, -1)
            attention_mask = ops.reshape(attention_mask, -1, 1, n, n)
            combined_mask = ops.add(relative_position_bias, attention_mask)
        else:
            combined_mask = relative_position_bias
        attn_output, attn_weights = self.attend(
            query_states, key_states, value_states, self.dropout, DType.float32, combined_mask
        )
        attn_output = ops.contiguous(ops.reshape(attn_output, b, n, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class Mlp(Module):
    """``SwinMLP``."""

    def __init__(self, scope: Scope, config: Config, dim: int) -> None:
        super().__init__(scope)
        self.activation_fn = ACTIVATIONS[config.hidden_act]
        self.fc1 = Linear(scope / "fc1", dim, int(config.mlp_ratio * dim))
        self.fc2 = Linear(scope / "fc2", int(config.mlp_ratio * dim), dim)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states = self.fc2(hidden_states)
        return hidden_states


class Layer(Module):
    """``SwinLayer``: a grid no larger than the window is one window, not shifted."""

    def __init__(self, scope: Scope, config: Config, stage: int, rate: float, *, odd: bool) -> None:
        super().__init__(scope)
        dim, self.window = config.width(stage), config.window_size
        self.shifted = odd and self.window > 1 and min(config.grid(stage)) > self.window
        self.rate, self.dropout = rate, config.hidden_dropout_prob
        self.attention = Attention(scope / "attention", config, dim, config.num_heads[stage])
        self.layernorm_before = LayerNorm(scope / "layernorm_before", dim)
        self.layernorm_after = LayerNorm(scope / "layernorm_after", dim)
        self.mlp = Mlp(scope / "mlp", config, dim)

    def _cyclic_shift(self, hidden_states: Tensor) -> Tensor:
        if self.shifted:
            hidden_states = ops.roll(hidden_states)
        return hidden_states

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> tuple[Tensor, Tensor | None]:
        height, width = input_dimensions
        b, _, c = hidden_states.shape
        shortcut = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states = ops.view(hidden_states, b, height, width, c)
        whole = padded(input_dimensions, self.window)
        hidden_states = ops.pad_grid(hidden_states, *whole)
        hidden_states_windows = window_partition(self._cyclic_shift(hidden_states), self.window)
        hidden_states_windows = ops.view(hidden_states_windows, -1, self.window * self.window, c)
        attn_mask = ops.shift_mask(hidden_states, *whole, self.window) if self.shifted else None
        attention_output, attn_weights = self.attention(hidden_states_windows, attn_mask)
        attention_output = ops.dropout(attention_output, self.dropout)
        attention_windows = ops.view(attention_output, -1, self.window, self.window, c)
        attention_windows = self._cyclic_shift(window_reverse(attention_windows, self.window, *whole))
        if whole != input_dimensions:
            attention_windows = cropped(attention_windows, height, width)
        attention_windows = ops.view(attention_windows, b, height * width, c)
        hidden_states = ops.add(shortcut, drop_path(attention_windows, self.rate))
        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(ops.dropout(hidden_states, self.dropout), residual)
        return hidden_states, attn_weights


class PatchMerging(Module):
    """``SwinPatchMerging``: [B, H * W, C] -> [B, H/2 * W/2, 2 C], normalised before it is reduced."""

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.reduction = Linear(scope / "reduction", 4 * dim, 2 * dim, bias=False)
        self.norm = LayerNorm(scope / "norm", 4 * dim)

    def forward(self, input_feature: Tensor, input_dimensions: Pair) -> Tensor:
        input_feature = interleaved(input_feature, *input_dimensions)
        input_feature = self.norm(input_feature)
        input_feature = self.reduction(input_feature)
        return input_feature


class SwinStage(Stage):
    """``SwinStage``: its blocks, and the merging that leads to the next stage."""

    def __init__(self, scope: Scope, config: Config, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        blocks = scope / "blocks"
        self.blocks = [Layer(blocks.row(str(i)), config, stage, rate, odd=i % 2 == 1) for i, rate in enumerate(rates)]
        is_last = stage + 1 == len(config.depths)
        self.downsample = None if is_last else PatchMerging(scope / "downsample", config.width(stage))

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> tuple[Tensor, Tensor, Tensor | None]:
        height, width = input_dimensions
        last_attn_weights = None
        for layer_module in self.blocks:
            hidden_states, last_attn_weights = layer_module(hidden_states, input_dimensions)
        hidden_states_before_downsampling = hidden_states
        if self.downsample is not None:
            hidden_states = self.downsample(hidden_states_before_downsampling, input_dimensions)
            height, width = (height + 1) // 2, (width + 1) // 2
        b, _, c = hidden_states.shape
        spatial = ops.permute(ops.view(hidden_states, b, height, width, c), 0, 3, 1, 2)
        reshaped_hidden_states = ops.contiguous(spatial)
        del spatial
        return hidden_states, reshaped_hidden_states, last_attn_weights


class SwinEncoder(Encoder):
    """``SwinEncoder``: a stage's channels-first copy lives until the next stage has returned its own."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        rates = linear_rates(config.drop_path_rate, sum(config.depths))
        layers = scope / "layers"
        self.layers = [
            SwinStage(layers.row(str(i)), config, i, rates[end - config.depths[i] : end])
            for i, end in enumerate(stage_ends(config))
        ]

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> Tensor:
        for layer_module in self.layers:
            hidden_states, reshaped_hidden_state, last_attn_weights = layer_module(hidden_states, input_dimensions)
            if layer_module.downsample is not None:
                input_dimensions = ((input_dimensions[0] + 1) // 2, (input_dimensions[1] + 1) // 2)
        del reshaped_hidden_state, last_attn_weights
        return hidden_states


class SwinForImageClassification(ForImageClassification):
    """Blocks are checkpointed too, inside their stages."""

    def enable_checkpointing(self, count: int | None) -> None:
        """A stage whose blocks all are among the first ``count``, and each of these blocks once more inside it."""
        super().enable_checkpointing(count)
        for block in self.blocks[:count]:
            block.checkpointed = True
