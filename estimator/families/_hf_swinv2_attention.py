"""transformers' Swin v2 attention (transformers 5.24, models/swinv2/modeling_swinv2.py), eager only.

Shapes: B images, C width, w window, N = w * w tokens of a window, h heads.
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType
from ._hf_swin_config import Config
from .nn import Linear

__all__ = ["Attention"]


class PositionBiasMlp(Module):
    """``continuous_position_bias_mlp``: two coordinates per offset -> heads, with a ReLU in place."""

    def __init__(self, scope: Scope, heads: int) -> None:
        super().__init__(scope)
        self.fc1 = Linear(scope / "0", 2, 512)
        self.fc2 = Linear(scope / "2", 512, heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.relu_(x)
        x = self.fc2(x)
        return x


class SelfAttention(Module):
    """``Swinv2SelfAttention``: cosine attention with a learnt scale and continuous position biases."""

    def __init__(self, scope: Scope, config: Config, dim: int, heads: int, window: int) -> None:
        super().__init__(scope)
        self.heads, self.area = heads, window * window
        self.dropout = config.attention_probs_dropout_prob
        self.logit_scale = scope.parameter("logit_scale", heads, 1, 1)
        self.relative_coords_table = scope.buffer(
            "relative_coords_table", 1, 2 * window - 1, 2 * window - 1, 2, dtype=scope.run.buffer_dtype
        )
        self.index = scope.buffer("relative_position_index", self.area, self.area, dtype=DType.int64)
        self.position_bias_mlp = PositionBiasMlp(scope / "continuous_position_bias_mlp", heads)
        self.query = Linear(scope / "query", dim, dim, bias=config.qkv_bias)
        self.key = Linear(scope / "key", dim, dim, bias=False)
        self.value = Linear(scope / "value", dim, dim, bias=config.qkv_bias)

    def _by_heads(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        return ops.transpose(ops.view(x, b, n, self.heads, c // self.heads), 1, 2)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor]:
        b, n, c = hidden_states.shape
        query_layer = self._by_heads(self.query(hidden_states))
        key_layer = self._by_heads(self.key(hidden_states))
        value_layer = self._by_heads(self.value(hidden_states))
        attention_scores = ops.matmul(ops.normalize(query_layer), ops.transpose(ops.normalize(key_layer), 2, 3))
        logit_scale = ops.exp(ops.clamp(self.logit_scale))
        attention_scores = ops.mul(attention_scores, logit_scale)
        relative_position_bias_table = ops.view(self.position_bias_mlp(self.relative_coords_table), -1, self.heads)
        rows = ops.rows_of(relative_position_bias_table, ops.view(self.index, -1))
        relative_position_bias = ops.view(rows, self.area, self.area, -1)
        del rows
        relative_position_bias = ops.contiguous(ops.permute(relative_position_bias, 2, 0, 1))
        relative_position_bias = ops.mul(ops.sigmoid(relative_position_bias), 16.0)
        attention_scores = ops.add(attention_scores, ops.unsqueeze(relative_position_bias, 0))
        if attention_mask is not None:
            windows = attention_mask.shape[0]
            mask = ops.unsqueeze(ops.unsqueeze(attention_mask, 1), 0)
            attention_scores = ops.add(ops.view(attention_scores, b // windows, windows, self.heads, n, n), mask)
            attention_scores = ops.add(attention_scores, mask)  # the library adds it twice
            attention_scores = ops.view(attention_scores, -1, self.heads, n, n)
        attention_probs = ops.softmax(attention_scores)
        attention_probs = ops.dropout(attention_probs, self.dropout)
        context_layer = ops.matmul(attention_probs, value_layer)
        context_layer = ops.contiguous(ops.permute(context_layer, 0, 2, 1, 3))
        context_layer = ops.view(context_layer, b, n, c)
        return (context_layer,)


class SelfOutput(Module):
    """``Swinv2SelfOutput``; its dropout has the attention's rate."""

    def __init__(self, scope: Scope, config: Config, dim: int) -> None:
        super().__init__(scope)
        self.rate = config.attention_probs_dropout_prob
        self.dense = Linear(scope / "dense", dim, dim)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.rate)
        return hidden_states


class Attention(Module):
    """``Swinv2Attention``."""

    def __init__(self, scope: Scope, config: Config, dim: int, heads: int, window: int) -> None:
        super().__init__(scope)
        self.self_attention = SelfAttention(scope / "self", config, dim, heads, window)
        self.output = SelfOutput(scope / "output", config, dim)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> tuple[Tensor]:
        self_outputs = self.self_attention(hidden_states, attention_mask)
        attention_output = self.output(self_outputs[0])
        return (attention_output,)
