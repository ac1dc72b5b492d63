"""transformers ``DINOv3ViTModel`` under a linear classifier (transformers 5.24, models/dinov3_vit).

Rotary position embeddings are computed in every forward pass from cached patch coordinates, so that any image size
fits and the configuration's own is not used. Shapes: B images, N tokens, C width.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ._hf import ACTIVATIONS, ATTENTIONS, OVERRIDES, LossOf, read_config, require_floats
from ._hf_dinov3_rope import RopePositionEmbedding, apply_rotary_pos_emb
from ._plan import Plan
from .nn import Conv2d, LayerNorm, LayerScale, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]

Pair = tuple[int, int]

HEAD = "transformers 5.24 has no DINOv3 image classifier: a linear layer on the pooled output"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``DINOv3ViTConfig`` that decide memory; ``image_size`` is the image that is trained on."""

    hidden_size: int = 384
    num_hidden_layers: int = 12
    num_attention_heads: int = 6
    intermediate_size: int = 1536
    hidden_act: str = "gelu"
    attention_dropout: float = 0.0
    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    num_channels: int = 3
    query_bias: bool = True
    key_bias: bool = False
    value_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    drop_path_rate: float = 0.0
    use_gated_mlp: bool = False
    num_register_tokens: int = 0
    pos_embed_shift: float | None = None
    pos_embed_jitter: float | None = None
    pos_embed_rescale: float | None = 2.0
    num_labels: int = 1000
    attn: str = "sdpa"

    @property
    def grid(self) -> tuple[int, int]:
        """Patches of one image, height x width; a remainder of pixels is dropped."""
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
    def num_frequencies(self) -> int:
        """Of one axis: ``torch.arange(0, 1, 4 / head_dim)``."""
        return math.ceil(1 / (4 / self.head_dim))


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """``DINOv3ViTModel(config)`` and a classifier on its pooled output; raises where transformers would."""
    overrides = {**OVERRIDES, "attn_dropout": "attention_dropout"}
    config = Config(**read_config(model.name, model.config, settings, KNOWN, overrides, divisible=True))
    require_floats(model.name, model.config, "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
    if 4 * config.num_frequencies != config.head_dim:
        raise InvalidRequest(
            f"heads of size {config.head_dim} cannot be rotated along two axes; "
            f"use --heads so that {config.hidden_size} channels make heads of a multiple of 4"
        )
    return Plan(
        model=model,
        build=partial(Classifier, config=config),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + 1 + config.num_register_tokens,
        blocks=tuple(f"dinov3_vit.model.layer.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=("dinov3_vit.embeddings",),
        attn=config.attn,
        resolved={
            "patch": config.patch_size[0],
            "dim": config.hidden_size,
            "depth": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "mlp_ratio": config.intermediate_size / config.hidden_size,
            "dropout": 0.0,
            "attn_dropout": config.attention_dropout,
            "drop_path": config.drop_path_rate,
            "patch_drop": 0.0,
        },
        assumptions=(HEAD,),
    )


class Embeddings(Module):
    """[B, 3, height, width] -> [B, N, C]: class token, registers, patches; the mask token is not used."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        scope.parameter("mask_token", 1, 1, width, used=False)
        self.register_tokens = scope.parameter("register_tokens", 1, config.num_register_tokens, width)
        self.patch_embeddings = Conv2d(scope / "patch_embeddings", config.num_channels, width, config.patch_size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        batch_size = pixel_values.shape[0]
        patch_embeddings = self.patch_embeddings(pixel_values)
        patch_embeddings = ops.transpose(ops.flatten(patch_embeddings, 2), 1, 2)
        cls_token = ops.expand(self.cls_token, batch_size, -1, -1)
        register_tokens = ops.expand(self.register_tokens, batch_size, -1, -1)
        return ops.cat([cls_token, register_tokens, patch_embeddings], 1)


class Attention(Module):
    """``DINOv3ViTAttention``: each projection has a bias of its own; the softmax is taken as it comes."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.dropout, self.attend = config.attention_dropout, ATTENTIONS[config.attn]
        self.k_proj = Linear(scope / "k_proj", width, width, bias=config.key_bias)
        self.v_proj = Linear(scope / "v_proj", width, width, bias=config.value_bias)
        self.q_proj = Linear(scope / "q_proj", width, width, bias=config.query_bias)
        self.o_proj = Linear(scope / "o_proj", width, width, bias=config.proj_bias)

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        b, n, _ = hidden_states.shape
        query_states = self.q_proj(hidden_states)
        key_states = self.k_proj(hidden_states)
        value_states = self.v_proj(hidden_states)
        query_states = ops.transpose(ops.view(query_states, b, n, self.num_heads, self.head_dim), 1, 2)
        key_states = ops.transpose(ops.view(key_states, b, n, self.num_heads, self.head_dim), 1, 2)
        value_states = ops.transpose(ops.view(value_states, b, n, self.num_heads, self.head_dim), 1, 2)
        cos, sin = position_embeddings
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        output, weights = self.attend(query_states, key_states, value_states, self.dropout, None)
        output = ops.contiguous(ops.reshape(output, b, n, -1))
        output = self.o_proj(output)
        return output, weights


class Mlp(Module):
    """``DINOv3ViTMLP`` and ``DINOv3ViTGatedMLP``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width, hidden, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.activation = ACTIVATIONS[config.hidden_act]
        self.gate_proj = Linear(scope / "gate_proj", width, hidden, bias=bias) if config.use_gated_mlp else None
        self.up_proj = Linear(scope / "up_proj", width, hidden, bias=bias)
        self.down_proj = Linear(scope / "down_proj", hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_proj is None:
            down_proj: Tensor = self.down_proj(self.activation(self.up_proj(x)))
        else:
            down_proj = self.down_proj(ops.mul(self.activation(self.gate_proj(x)), self.up_proj(x)))
        return down_proj


class Layer(Module):
    """``DINOv3ViTLayer``: pre-norm, LayerScale and stochastic depth at one rate for all layers."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.rate = config.drop_path_rate
        self.norm1 = LayerNorm(scope / "norm1", width)
        self.attention = Attention(scope / "attention", config)
        self.layer_scale1 = LayerScale(scope / "layer_scale1", width, name="lambda1")
        self.norm2 = LayerNorm(scope / "norm2", width)
        self.mlp = Mlp(scope / "mlp", config)
        self.layer_scale2 = LayerScale(scope / "layer_scale2", width, name="lambda1")

    def _drop_path(self, hidden_states: Tensor) -> Tensor:
        return ops.rand_floor_scale(hidden_states) if self.rate > 0 else hidden_states

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        residual = hidden_states
        hidden_states = self.norm1(hidden_states)
        hidden_states, _ = self.attention(hidden_states, position_embeddings)
        hidden_states = self.layer_scale1(hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        residual = hidden_states
        hidden_states = self.norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.layer_scale2(hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        return hidden_states


class Model(Module):
    """``DINOv3ViTModel``: the normalised last hidden state and its class token."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config)
        self.rope_embeddings = RopePositionEmbedding(
            scope.row("rope_embeddings"),
            grid=config.grid,
            num_frequencies=config.num_frequencies,
            shift=config.pos_embed_shift,
            jitter=config.pos_embed_jitter,
            rescale=config.pos_embed_rescale,
        )
        layers = scope / "model" / "layer"
        self.layers = [Layer(layers.row(str(i)), config) for i in range(config.num_hidden_layers)]
        self.norm = LayerNorm(scope.row("norm"), config.hidden_size)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = self.embeddings(pixel_values)
        position_embeddings = self.rope_embeddings(pixel_values)
        encoder_output = hidden_states
        for layer in self.layers:
            encoder_output = layer(encoder_output, position_embeddings)
        sequence_output = self.norm(encoder_output)
        pooled_output = ops.select(sequence_output, 1, 0)
        return sequence_output, pooled_output


class Classifier(Module):
    """[B, 3, H, W] -> [B, num_labels], or (loss, logits) where labels came in."""

    takes_loss_kwargs = True

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.backbone = Model(scope / "dinov3_vit", config)
        self.blocks = self.backbone.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.backbone(pixel_values)
        pooled_output = outputs[1]
        logits = self.classifier(pooled_output)
        return logits if loss_of is None else (loss_of(logits), logits)
