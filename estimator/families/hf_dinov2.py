"""transformers ``Dinov2ForImageClassification`` and its form with registers (transformers 5.24, models/dinov2*).

The image size of the config stays: another resolution interpolates the position embeddings in every forward pass, and
pixels beyond a whole number of patches are dropped.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ..units import DType
from ._hf import Attention, LossOf, Mlp, PatchEmbeddings, read_config, require_a_patch
from ._plan import Plan
from .nn import LayerNorm, LayerScale, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``Dinov2Config`` that decide memory; ``input_size`` is the image that is trained on."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    mlp_ratio: float = 4
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    image_size: Pair = (224, 224)
    patch_size: Pair = (14, 14)
    num_channels: int = 3
    qkv_bias: bool = True
    drop_path_rate: float = 0.0
    use_swiglu_ffn: bool = False
    use_mask_token: bool = True
    num_register_tokens: int = 0
    num_labels: int = 1000
    attn: str = "sdpa"
    input_size: Pair = (224, 224)

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLP."""
        return int(self.hidden_size * self.mlp_ratio)

    @property
    def num_positions(self) -> int:
        """Patches of the size that the position embeddings were made for."""
        return (self.image_size[0] // self.patch_size[0]) * (self.image_size[1] // self.patch_size[1])

    @property
    def grid(self) -> Pair:
        """Patches of the training image along height and width."""
        return self.input_size[0] // self.patch_size[0], self.input_size[1] // self.patch_size[1]


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn", "input_size"}


def plan(model: ModelConfig, settings: TrainSettings, prefix: str = "dinov2") -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    fields = read_config(model.name, model.config, dataclasses.replace(settings, res=None), KNOWN)
    config = Config(**fields, input_size=settings.res or fields["image_size"])
    require_a_patch(config.input_size, config.patch_size)
    if config.mlp_ratio != int(config.mlp_ratio):
        raise InvalidRequest(f"{model.name} takes a whole mlp_ratio, not {config.mlp_ratio}")
    return Plan(
        model=model,
        build=partial(ForImageClassification, config=config, prefix=prefix),
        image_size=config.input_size,
        patch_size=config.patch_size,
        num_tokens=config.grid[0] * config.grid[1] + 1 + config.num_register_tokens,
        blocks=tuple(f"{prefix}.encoder.layer.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=(f"{prefix}.embeddings",),
        attn=config.attn,
        resolved={
            "patch": config.patch_size[0],
            "dim": config.hidden_size,
            "depth": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "mlp_ratio": config.mlp_ratio,
            "dropout": config.hidden_dropout_prob,
            "attn_dropout": config.attention_probs_dropout_prob,
            "drop_path": config.drop_path_rate,
            "patch_drop": 0.0,
        },
    )


class Embeddings(Module):
    """Class token and patches, then positions, then registers behind the class token; the mask token is not used."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.config = config
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        if config.use_mask_token:
            scope.parameter("mask_token", 1, width, used=False)
        self.position_embeddings = scope.parameter("position_embeddings", 1, config.num_positions + 1, width)
        registers = config.num_register_tokens
        self.register_tokens = scope.parameter("register_tokens", 1, registers, width) if registers else None
        self.patch_embeddings = PatchEmbeddings(
            scope / "patch_embeddings", config.num_channels, width, config.patch_size
        )

    def _positions(self, embeddings: Tensor) -> Tensor:
        """``interpolate_pos_encoding``: bicubic in fp32, or the embeddings themselves at their own square size."""
        config = self.config
        height, width = config.input_size
        if embeddings.shape[1] - 1 == config.num_positions and height == width:
            return self.position_embeddings
        if self.register_tokens is None:
            class_pos_embed = ops.narrow(self.position_embeddings, 1, 0, 1)
        else:
            class_pos_embed = ops.view(ops.select(self.position_embeddings, 1, 0), 1, 1, -1)
        patch_pos_embed = ops.narrow(self.position_embeddings, 1, 1, config.num_positions + 1)
        dim = embeddings.shape[-1]
        side = int(config.num_positions**0.5)
        patch_pos_embed = ops.permute(ops.reshape(patch_pos_embed, 1, side, side, dim), 0, 3, 1, 2)
        target_dtype, antialias = patch_pos_embed.dtype, self.register_tokens is not None
        patch_pos_embed = ops.interpolate(ops.to(patch_pos_embed, DType.float32), *config.grid, antialias=antialias)
        patch_pos_embed = ops.to(patch_pos_embed, target_dtype)
        patch_pos_embed = ops.view(ops.permute(patch_pos_embed, 0, 2, 3, 1), 1, -1, dim)
        return ops.cat([class_pos_embed, patch_pos_embed], 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeddings = self.patch_embeddings(pixel_values)
        cls_tokens = ops.expand(self.cls_token, embeddings.shape[0], -1, -1)
        embeddings = ops.cat([cls_tokens, embeddings], 1)
        embeddings = ops.add(embeddings, self._positions(embeddings))
        if self.register_tokens is not None:
            first = ops.narrow(embeddings, 1, 0, 1)
            registers = ops.expand(self.register_tokens, embeddings.shape[0], -1, -1)
            embeddings = ops.cat([first, registers, ops.narrow(embeddings, 1, 1, embeddings.shape[1])], 1)
            del first, registers
        return ops.dropout(embeddings, self.config.hidden_dropout_prob)


class SwiGluFfn(Module):
    """``Dinov2SwiGLUFFN``: two thirds of the hidden width, rounded up to 8."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        hidden = (int(config.intermediate_size * 2 / 3) + 7) // 8 * 8
        self.gate_proj = Linear(scope / "gate_proj", config.hidden_size, hidden)
        self.up_proj = Linear(scope / "up_proj", config.hidden_size, hidden)
        self.down_proj = Linear(scope / "down_proj", hidden, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        down_proj: Tensor = self.down_proj(ops.mul(ops.silu(self.gate_proj(x)), self.up_proj(x)))
        return down_proj


class Layer(Module):
    """``Dinov2Layer``: pre-norm, LayerScale and stochastic depth at one rate for all layers."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.rate = config.drop_path_rate
        self.norm1 = LayerNorm(scope / "norm1", width)
        self.attention = Attention(scope / "attention", config, softmax_dtype=None)
        self.layer_scale1 = LayerScale(scope / "layer_scale1", width, name="lambda1")
        self.norm2 = LayerNorm(scope / "norm2", width)
        self.mlp = SwiGluFfn(scope / "mlp", config) if config.use_swiglu_ffn else Mlp(scope / "mlp", config)
        self.layer_scale2 = LayerScale(scope / "layer_scale2", width, name="lambda1")

    def _drop_path(self, hidden_states: Tensor) -> Tensor:
        return ops.rand_floor_scale(hidden_states) if self.rate > 0 else hidden_states

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.norm1(hidden_states)
        hidden_states, _ = self.attention(hidden_states)
        hidden_states = self.layer_scale1(hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        residual = hidden_states
        hidden_states = self.norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.layer_scale2(hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        return hidden_states


class Model(Module):
    """``Dinov2Model``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config)
        layers = scope / "encoder" / "layer"
        self.layers = [Layer(layers.row(str(i)), config) for i in range(config.num_hidden_layers)]
        self.layernorm = LayerNorm(scope.row("layernorm"), config.hidden_size)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        embedding_output = self.embeddings(pixel_values)
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        sequence_output = self.layernorm(hidden_states)
        pooled_output = ops.select(sequence_output, 1, 0)
        return sequence_output, pooled_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels] from the class token and the mean of the patches, or (loss, logits)."""

    takes_loss_kwargs = True

    def __init__(self, scope: Scope, config: Config, prefix: str) -> None:
        super().__init__(scope)
        self.first_patch = 1 + config.num_register_tokens
        self.backbone = Model(scope / prefix, config)
        self.blocks = self.backbone.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size * 2, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.backbone(pixel_values)
        sequence_output = outputs[0]
        cls_token = ops.select(sequence_output, 1, 0)
        patch_tokens = ops.narrow(sequence_output, 1, self.first_patch, sequence_output.shape[1])
        linear_input = ops.cat([cls_token, ops.mean(patch_tokens, 1)], 1)
        logits = self.classifier(linear_input)
        return logits if loss_of is None else (loss_of(logits), logits)
