"""transformers ``Data2VecVisionForImageClassification``: BEiT as it was (transformers 5.24, models/data2vec).

A shared bias of relative positions is made anew for every layer; eager attention takes its softmax as it comes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._hf import ACTIVATIONS, LossOf
from ._hf_beit import Config, Embeddings, Pooler, RelativePositionBias, classify, read, resolved
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    config = read(model, settings)
    return Plan(
        model=model,
        build=partial(ForImageClassification, config=config),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + 1,
        blocks=tuple(f"data2vec_vision.encoder.layer.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=("data2vec_vision.embeddings",),
        attn=config.attn,
        resolved=resolved(config),
    )


class SelfAttention(Module):
    """``Data2VecVisionSelfAttention`` and its fused form."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.head_dim, self.dropout = config.head_dim, config.attention_probs_dropout_prob
        self.attend = self._sdpa if config.attn == "sdpa" else self._eager
        self.query = Linear(scope / "query", width, width)
        self.key = Linear(scope / "key", width, width, bias=False)
        self.value = Linear(scope / "value", width, width)
        has_bias = config.use_relative_position_bias
        self.relative_position_bias = (
            RelativePositionBias(scope / "relative_position_bias", config) if has_bias else None
        )

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, shared_bias: Tensor | None) -> Tensor:
        attention_scores = ops.matmul(query, ops.transpose(key, 2, 3))
        attention_scores = ops.mul(attention_scores, 1.0)
        if self.relative_position_bias is not None:
            attention_scores = ops.add(attention_scores, self.relative_position_bias())
        if shared_bias is not None:
            attention_scores = ops.add(attention_scores, shared_bias)
        attention_probs = ops.softmax(attention_scores)
        attention_probs = ops.dropout(attention_probs, self.dropout)
        context_layer = ops.matmul(attention_probs, value)
        return ops.contiguous(ops.permute(context_layer, 0, 2, 1, 3))

    def _sdpa(self, query: Tensor, key: Tensor, value: Tensor, shared_bias: Tensor | None) -> Tensor:
        attn_bias = shared_bias
        if self.relative_position_bias is not None:
            attn_bias = self.relative_position_bias()
            if shared_bias is not None:
                attn_bias = ops.add_to_view_(attn_bias, shared_bias)
        context_layer = ops.scaled_dot_product_attention(query, key, value, self.dropout, attn_bias)
        return ops.contiguous(ops.permute(context_layer, 0, 2, 1, 3))

    def forward(self, hidden_states: Tensor, shared_bias: Tensor | None) -> Tensor:
        b, n, width = hidden_states.shape
        query_layer = ops.transpose(ops.view(self.query(hidden_states), b, n, -1, self.head_dim), 1, 2)
        key_layer = ops.transpose(ops.view(self.key(hidden_states), b, n, -1, self.head_dim), 1, 2)
        value_layer = ops.transpose(ops.view(self.value(hidden_states), b, n, -1, self.head_dim), 1, 2)
        context_layer = self.attend(query_layer, key_layer, value_layer, shared_bias)
        return ops.view(context_layer, b, n, width)


class Dense(Module):
    """``Data2VecVisionSelfOutput`` and ``Data2VecVisionOutput``: a linear layer and dropout."""

    def __init__(self, scope: Scope, inputs: int, outputs: int, rate: float) -> None:
        super().__init__(scope)
        self.rate = rate
        self.dense = Linear(scope / "dense", inputs, outputs)

    def forward(self, hidden_states: Tensor, *input_tensor: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.rate)
        return hidden_states


class Attention(Module):
    """``Data2VecVisionAttention``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.attention = SelfAttention(scope / "attention", config)
        self.output = Dense(scope / "output", width, width, config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, shared_bias: Tensor | None) -> Tensor:
        self_output = self.attention(hidden_states, shared_bias)
        attention_output: Tensor = self.output(self_output, hidden_states)
        return attention_output


class Intermediate(Module):
    """``Data2VecVisionIntermediate``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense = Linear(scope / "dense", config.hidden_size, config.intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        return hidden_states


class Layer(Module):
    """``Data2VecVisionLayer``: the attention's output is held to the end, before and after its scale."""

    keywords = ("relative_position_bias",)
    binds_keywords = True

    def __init__(self, scope: Scope, config: Config, rate: float) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.rate = rate
        has_scale = config.layer_scale_init_value > 0
        self.lambda_1 = scope.parameter("lambda_1", width) if has_scale else None
        self.lambda_2 = scope.parameter("lambda_2", width) if has_scale else None
        self.attention = Attention(scope / "attention", config)
        self.intermediate = Intermediate(scope / "intermediate", config)
        self.output = Dense(scope / "output", config.intermediate_size, width, config.hidden_dropout_prob)
        self.layernorm_before = LayerNorm(scope / "layernorm_before", width)
        self.layernorm_after = LayerNorm(scope / "layernorm_after", width)

    def _drop_path(self, hidden_states: Tensor) -> Tensor:
        return ops.rand_floor_scale(hidden_states) if self.rate > 0 else hidden_states

    def forward(self, hidden_states: Tensor, shared_bias: Tensor | None) -> Tensor:
        self_attention_output = self.attention(self.layernorm_before(hidden_states), shared_bias)
        attention_output = self_attention_output
        if self.lambda_1 is not None:
            attention_output = ops.mul(self.lambda_1, attention_output)
        hidden_states = ops.add(self._drop_path(attention_output), hidden_states)
        layer_output = self.layernorm_after(hidden_states)
        layer_output = self.intermediate(layer_output)
        layer_output = self.output(layer_output)
        if self.lambda_2 is not None:
            layer_output = ops.mul(self.lambda_2, layer_output)
        layer_output = ops.add(self._drop_path(layer_output), hidden_states)
        return layer_output


class Encoder(Module):
    """``Data2VecVisionEncoder``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        is_shared = config.use_shared_relative_position_bias
        self.relative_position_bias = (
            RelativePositionBias(scope / "relative_position_bias", config) if is_shared else None
        )
        layer = scope / "layer"
        self.layers = [Layer(layer.row(str(i)), config, rate) for i, rate in enumerate(config.drop_path_rates)]

    def forward(self, hidden_states: Tensor) -> Tensor:
        shared_bias = None
        for layer_module in self.layers:
            if self.relative_position_bias is not None:
                shared_bias = self.relative_position_bias()
            hidden_states = layer_module(hidden_states, shared_bias)
        return hidden_states


class Model(Module):
    """``Data2VecVisionModel``: the last hidden state and what is pooled from it."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config)
        self.encoder = Encoder(scope.row("encoder"), config)
        self.layernorm = None if config.use_mean_pooling else LayerNorm(scope.row("layernorm"), config.hidden_size)
        self.pooler = Pooler(scope.row("pooler"), config)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        embedding_output = self.embeddings(pixel_values)
        encoder_output = self.encoder(embedding_output)
        sequence_output = encoder_output if self.layernorm is None else self.layernorm(encoder_output)
        pooled_output = self.pooler(sequence_output)
        return sequence_output, pooled_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels], or (loss, logits) where labels came in; the loss is a mean."""

    takes_loss_kwargs = True
    uses_num_items = False

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.backbone = Model(scope / "data2vec_vision", config)
        self.blocks = self.backbone.encoder.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.backbone(pixel_values)
        return classify(outputs, self.classifier, loss_of)
