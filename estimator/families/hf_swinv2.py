"""transformers ``Swinv2ForImageClassification`` (transformers 5.24, models/swinv2/modeling_swinv2.py).

Shapes: B images, H x W grid, C width, w window, N = w * w tokens of a window, h heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ._hf import ACTIVATIONS, require_floats
from ._hf_swin import (
    Encoder,
    ForImageClassification,
    Stage,
    cropped,
    drop_path,
    neighbours,
    padded,
    side_by_side,
    window_partition,
    window_reverse,
)
from ._hf_swin_config import Config, Pair, block_paths, check_positions, configured, resolved, stage_ends
from ._hf_swinv2_attention import Attention
from ._plan import Plan, linear_rates
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

#: Absolute position embeddings are made for a class token that the model does not have.
_EXTRA_POSITIONS = 1


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    if settings.attn not in {"auto", "eager"}:
        raise InvalidRequest(
            f"{model.name}: transformers' Swin v2 has eager attention only; leave out --attn {settings.attn}"
        )
    require_floats(model.name, model.config, "mlp_ratio")
    config = configured(model, settings, attn="eager")
    check_positions(model.name, config, _EXTRA_POSITIONS)
    _check_windows(model.name, config)
    _check_checkpointing(settings, config)
    return Plan(
        model=model,
        build=partial(
            Swinv2ForImageClassification,
            config=config,
            prefix="swinv2",
            encoder=Swinv2Encoder,
            extra_positions=_EXTRA_POSITIONS,
        ),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.grid(0)[0] * config.grid(0)[1],
        blocks=block_paths(config, "swinv2"),
        head=("classifier",),
        stem=("swinv2.embeddings",),
        attn=config.attn,
        resolved=resolved(config),
        pads_images=True,
    )


def _height(config: Config, stage: int) -> int:
    """Height of the grid that a stage is built for: whole patches, rounded down at every halving."""
    return config.whole_patches[0] >> stage


def _check_windows(name: str, config: Config) -> None:
    for stage, depth in enumerate(config.depths):
        if depth and not _height(config, stage):
            raise InvalidRequest(
                f"{name}: a height of {config.image_size[0]} pixels leaves nothing for stage {stage}; use --res of at "
                f"least {config.patch_size[0] * 2**stage}"
            )


def _check_checkpointing(settings: TrainSettings, config: Config) -> None:
    """A stage is checkpointed as a whole."""
    count, ends = settings.checkpoint_layers, stage_ends(config)
    if count and count < ends[-1] and count not in ends:
        below, above = max((end for end in ends if end < count), default=0), min(end for end in ends if end > count)
        raise InvalidRequest(
            f"transformers checkpoints whole stages of Swin v2; use --checkpoint-layers {below} or {above}"
        )


class Intermediate(Module):
    """``Swinv2Intermediate``."""

    def __init__(self, scope: Scope, config: Config, dim: int) -> None:
        super().__init__(scope)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense = Linear(scope / "dense", dim, int(config.mlp_ratio * dim))

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        return hidden_states


class Output(Module):
    """``Swinv2Output``."""

    def __init__(self, scope: Scope, config: Config, dim: int) -> None:
        super().__init__(scope)
        self.rate = config.hidden_dropout_prob
        self.dense = Linear(scope / "dense", int(config.mlp_ratio * dim), dim)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.rate)
        return hidden_states


class Layer(Module):
    """``Swinv2Layer``: norms behind attention and MLP; window and shift follow the height it is built for."""

    def __init__(self, scope: Scope, config: Config, stage: int, rate: float, *, odd: bool) -> None:
        super().__init__(scope)
        dim, height = config.width(stage), _height(config, stage)
        self.rate = rate
        self.window = min(height, config.window_size)
        self.shifted = odd and config.window_size > 1 and height > self.window
        self.attention = Attention(scope / "attention", config, dim, config.num_heads[stage], self.window)
        self.layernorm_before = LayerNorm(scope / "layernorm_before", dim)
        self.intermediate = Intermediate(scope / "intermediate", config, dim)
        self.output = Output(scope / "output", config, dim)
        self.layernorm_after = LayerNorm(scope / "layernorm_after", dim)

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> tuple[Tensor]:
        height, width = input_dimensions
        b, _, c = hidden_states.shape
        shortcut = hidden_states
        hidden_states = ops.view(hidden_states, b, height, width, c)
        whole = padded(input_dimensions, self.window)
        hidden_states = ops.pad_grid(hidden_states, *whole)
        shifted_hidden_states = ops.roll(hidden_states) if self.shifted else hidden_states
        hidden_states_windows = window_partition(shifted_hidden_states, self.window)
        hidden_states_windows = ops.view(hidden_states_windows, -1, self.window * self.window, c)
        attn_mask = ops.shift_mask(hidden_states, *whole, self.window) if self.shifted else None
        attention_outputs = self.attention(hidden_states_windows, attn_mask)
        attention_output = attention_outputs[0]
        attention_windows = ops.view(attention_output, -1, self.window, self.window, c)
        shifted_windows = window_reverse(attention_windows, self.window, *whole)
        attention_windows = ops.roll(shifted_windows) if self.shifted else shifted_windows
        if whole != input_dimensions:
            attention_windows = cropped(attention_windows, height, width)
        attention_windows = ops.view(attention_windows, b, height * width, c)
        hidden_states = self.layernorm_before(attention_windows)
        hidden_states = ops.add(shortcut, drop_path(hidden_states, self.rate))
        layer_output = self.intermediate(hidden_states)
        layer_output = self.output(layer_output)
        layer_output = ops.add(hidden_states, drop_path(self.layernorm_after(layer_output), self.rate))
        return (layer_output,)


class PatchMerging(Module):
    """``Swinv2PatchMerging``: [B, H * W, C] -> [B, H/2 * W/2, 2 C], reduced before it is normalised."""

    def __init__(self, scope: Scope, dim: int) -> None:
        super().__init__(scope)
        self.reduction = Linear(scope / "reduction", 4 * dim, 2 * dim, bias=False)
        self.norm = LayerNorm(scope / "norm", 2 * dim)

    def forward(self, input_feature: Tensor, input_dimensions: Pair) -> Tensor:
        parts = neighbours(input_feature, *input_dimensions)  # names of the library's: a padded copy lives to the end
        input_feature = side_by_side(parts)
        input_feature = self.reduction(input_feature)
        input_feature = self.norm(input_feature)
        return input_feature


class Swinv2Stage(Stage):
    """``Swinv2Stage``: what is checkpointed, as a whole."""

    def __init__(self, scope: Scope, config: Config, stage: int, rates: tuple[float, ...]) -> None:
        super().__init__(scope)
        blocks = scope / "blocks"
        self.blocks = [Layer(blocks.row(str(i)), config, stage, rate, odd=i % 2 == 1) for i, rate in enumerate(rates)]
        is_last = stage + 1 == len(config.depths)
        self.downsample = None if is_last else PatchMerging(scope / "downsample", config.width(stage))

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> tuple[Tensor, Tensor, Pair]:
        height, width = output_dimensions = input_dimensions
        for layer_module in self.blocks:
            layer_outputs = layer_module(hidden_states, input_dimensions)
            hidden_states = layer_outputs[0]
        hidden_states_before_downsampling = hidden_states
        if self.downsample is not None:
            output_dimensions = (height + 1) // 2, (width + 1) // 2
            hidden_states = self.downsample(hidden_states_before_downsampling, input_dimensions)
        return hidden_states, hidden_states_before_downsampling, output_dimensions


class Swinv2Encoder(Encoder):
    """``Swinv2Encoder``: what a stage returned lives until the next one has returned."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        rates = linear_rates(config.drop_path_rate, sum(config.depths))
        layers = scope / "layers"
        self.layers = [
            Swinv2Stage(layers.row(str(i)), config, i, rates[end - config.depths[i] : end])
            for i, end in enumerate(stage_ends(config))
        ]

    def forward(self, hidden_states: Tensor, input_dimensions: Pair) -> Tensor:
        for layer_module in self.layers:
            layer_outputs = layer_module(hidden_states, input_dimensions)
            hidden_states = layer_outputs[0]
            hidden_states_before_downsampling = layer_outputs[1]
            input_dimensions = layer_outputs[2]
        del layer_outputs, hidden_states_before_downsampling
        return hidden_states


class Swinv2ForImageClassification(ForImageClassification):
    """Its loss does not divide by the number of labels that Trainer hands it."""

    uses_num_items = False
