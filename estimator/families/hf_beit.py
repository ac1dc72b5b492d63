"""transformers ``BeitForImageClassification`` (transformers 5.24, models/beit).

Learnt biases of relative positions, of each layer or shared by all, are added to the attention scores or handed to the
fused kernel as a mask; the loss is a mean whatever the Trainer passes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ..units import DType
from ._hf import ATTENTIONS, LossOf, Mlp
from ._hf_beit import Config, Embeddings, Pooler, RelativePositionBias, classify, read, resolved
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    config = read(model, settings, divisible=False)
    if config.head_dim == 0:
        raise InvalidRequest(f"{config.num_attention_heads} heads are more than the {config.hidden_size} channels")
    return Plan(
        model=model,
        build=partial(ForImageClassification, config=config),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + 1,
        blocks=tuple(f"beit.layers.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=("beit.embeddings",),
        attn=config.attn,
        resolved=resolved(config),
    )


class Attention(Module):
    """``BeitAttention``: the key has no bias, and heads need not divide the width."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width, inner = config.hidden_size, config.num_attention_heads * config.head_dim
        self.head_dim = config.head_dim
        self.dropout, self.attend = config.attention_probs_dropout_prob, ATTENTIONS[config.attn]
        self.q_proj = Linear(scope / "q_proj", width, inner)
        self.k_proj = Linear(scope / "k_proj", width, inner, bias=False)
        self.v_proj = Linear(scope / "v_proj", width, inner)
        self.o_proj = Linear(scope / "o_proj", inner, width)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        b, n, _ = hidden_states.shape
        query = ops.transpose(ops.view(self.q_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        key = ops.transpose(ops.view(self.k_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        value = ops.transpose(ops.view(self.v_proj(hidden_states), b, n, -1, self.head_dim), 1, 2)
        output, weights = self.attend(query, key, value, self.dropout, DType.float32, attention_mask)
        output = ops.contiguous(ops.reshape(output, b, n, -1))
        output = self.o_proj(output)
        return output, weights


class Layer(Module):
    """``BeitLayer``: pre-norm, LayerScale, and stochastic depth that grows with the layer."""

    keywords = ("attention_mask",)
    binds_keywords = True

    def __init__(self, scope: Scope, config: Config, rate: float) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.rate, self.dropout = rate, config.hidden_dropout_prob
        has_scale = config.layer_scale_init_value > 0
        self.lambda_1: Tensor | float = scope.parameter("lambda_1", width) if has_scale else 1.0
        self.lambda_2: Tensor | float = scope.parameter("lambda_2", width) if has_scale else 1.0
        self.attention = Attention(scope / "attention", config)
        self.layernorm_before = LayerNorm(scope / "layernorm_before", width)
        self.layernorm_after = LayerNorm(scope / "layernorm_after", width)
        self.mlp = Mlp(scope / "mlp", config)
        has_bias = config.use_relative_position_bias
        self.relative_position_bias = (
            RelativePositionBias(scope / "relative_position_bias", config) if has_bias else None
        )

    def _drop_path(self, hidden_states: Tensor) -> Tensor:
        return ops.rand_floor_scale(hidden_states) if self.rate > 0 else hidden_states

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        if self.relative_position_bias is not None:
            bias = self.relative_position_bias()
            attention_mask = bias if attention_mask is None else ops.add(bias, attention_mask)
        residual = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states, _ = self.attention(hidden_states, attention_mask)
        hidden_states = ops.dropout(hidden_states, self.dropout)
        hidden_states = _scaled(self.lambda_1, hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.dropout)
        hidden_states = _scaled(self.lambda_2, hidden_states)
        hidden_states = ops.add(self._drop_path(hidden_states), residual)
        return hidden_states


def _scaled(scale: Tensor | float, hidden_states: Tensor) -> Tensor:
    """``scale * hidden_states``: also a product where the scale is the number 1."""
    return ops.mul(scale, hidden_states) if isinstance(scale, Tensor) else ops.mul(hidden_states, scale)


class Model(Module):
    """``BeitModel``: the last hidden state and what is pooled from it."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config)
        is_shared = config.use_shared_relative_position_bias
        self.shared_position_bias = (
            RelativePositionBias(scope.row("shared_position_bias"), config) if is_shared else None
        )
        layers = scope / "layers"
        self.layers = [Layer(layers.row(str(i)), config, rate) for i, rate in enumerate(config.drop_path_rates)]
        self.layernorm = None if config.use_mean_pooling else LayerNorm(scope.row("layernorm"), config.hidden_size)
        self.pooler = Pooler(scope.row("pooler"), config)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        embedding_output = self.embeddings(pixel_values)
        attention_mask = None if self.shared_position_bias is None else self.shared_position_bias()
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        sequence_output = hidden_states if self.layernorm is None else self.layernorm(hidden_states)
        pooled_output = self.pooler(sequence_output)
        return sequence_output, pooled_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels], or (loss, logits) where labels came in."""

    takes_loss_kwargs = True
    uses_num_items = False

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.backbone = Model(scope / "beit", config)
        self.blocks = self.backbone.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.backbone(pixel_values)
        return classify(outputs, self.classifier, loss_of)
