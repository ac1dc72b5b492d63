"""transformers ``SiglipForImageClassification`` (transformers 5.24, models/siglip)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from . import _hf_clip
from ._hf import LossOf, Mlp
from ._hf_clip import Attention, Config, Embeddings, Encoder, plan_of
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """No class token; the pooling head runs in every forward pass, though the classifier does not use it."""
    return plan_of(model, settings, ForImageClassification, prefix_tokens=0)


class EncoderLayer(_hf_clip.EncoderLayer):
    """``SiglipEncoderLayer``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.layer_norm1 = LayerNorm(scope / "layer_norm1", config.hidden_size)
        self.self_attn = Attention(scope / "self_attn", config)
        self.layer_norm2 = LayerNorm(scope / "layer_norm2", config.hidden_size)
        self.mlp = Mlp(scope / "mlp", config)


class MultiheadAttention(Module):
    """``torch.nn.MultiheadAttention(batch_first=True)`` of a probe [B, 1, C] over tokens [B, N, C]: key is value, and
    the weights are returned, so the attention is spelt out (torch 2.14, nn/functional.py)."""

    def __init__(self, scope: Scope, width: int, heads: int) -> None:
        super().__init__(scope)
        self.heads = heads
        self.in_proj_weight = scope.parameter("in_proj_weight", 3 * width, width)
        self.in_proj_bias = scope.parameter("in_proj_bias", 3 * width)
        self.out_proj = Linear(scope / "out_proj", width, width)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ops.transpose(query, 1, 0), ops.transpose(key, 1, 0)
        attn_output, attn_output_weights = self._attend(query, key)
        return ops.transpose(attn_output, 1, 0), attn_output_weights

    def _in_projection_packed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = q.shape[-1]
        w_q, w_kv = ops.split(self.in_proj_weight, (width, 2 * width), 0)
        b_q, b_kv = ops.split(self.in_proj_bias, (width, 2 * width), 0)
        q_proj = ops.linear(q, w_q, b_q)
        kv_proj = ops.linear(k, w_kv, b_kv)
        length, batch, _ = k.shape
        kv_proj = ops.contiguous(ops.permute(ops.view(kv_proj, length, batch, 2, width), 2, 0, 1, 3))
        return q_proj, ops.select(kv_proj, 0, 0), ops.select(kv_proj, 0, 1)

    def _attend(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """``multi_head_attention_forward``: lengths before batch."""
        (target, batch, width), source = query.shape, key.shape[0]
        q, k, v = self._in_projection_packed(query, key)
        q, k, v = (ops.transpose(ops.view(x, x.shape[0], batch * self.heads, -1), 0, 1) for x in (q, k, v))
        q_scaled = ops.mul(q, 1.0)
        attn_output_weights = ops.matmul(q_scaled, ops.transpose(k, 1, 2))
        del q_scaled, k
        attn_output_weights = ops.softmax(attn_output_weights)
        attn_output = ops.matmul(attn_output_weights, v)
        del v
        attn_output = ops.reshape(ops.transpose(attn_output, 0, 1), target * batch, width)
        attn_output = ops.linear(attn_output, self.out_proj.weight, self.out_proj.bias)
        attn_output = ops.view(attn_output, target, batch, width)
        attn_output_weights = ops.view(attn_output_weights, batch, self.heads, target, source)
        return attn_output, ops.mean(attn_output_weights, 1)


class PoolingHead(Module):
    """``SiglipMultiheadAttentionPoolingHead``: [B, N, C] -> [B, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.probe = scope.parameter("probe", 1, 1, width)
        self.attention = MultiheadAttention(scope / "attention", width, config.num_attention_heads)
        self.layernorm = LayerNorm(scope / "layernorm", width)
        self.mlp = Mlp(scope / "mlp", config)

    def forward(self, hidden_state: Tensor) -> Tensor:
        probe = ops.repeat(self.probe, hidden_state.shape[0], 1, 1)
        hidden_state = self.attention(probe, hidden_state)[0]
        residual = hidden_state
        hidden_state = self.layernorm(hidden_state)
        hidden_state = ops.add(residual, self.mlp(hidden_state))
        return ops.select(hidden_state, 1, 0)


class VisionModel(Module):
    """``SiglipVisionModel``: normalised tokens, and the pooling head's output where the config has one."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config, class_token=False)
        self.encoder = Encoder(scope.row("encoder"), config, EncoderLayer)
        self.post_layernorm = LayerNorm(scope.row("post_layernorm"), config.hidden_size)
        head = scope.row("head").without_gradients()
        self.head = PoolingHead(head, config) if config.vision_use_head else None

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden_states = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(hidden_states)
        last_hidden_state = self.post_layernorm(encoder_outputs)
        pooler_output = None if self.head is None else self.head(last_hidden_state)
        return last_hidden_state, pooler_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels] from the mean of the tokens, or (loss, logits) where labels came in."""

    takes_loss_kwargs = True
    uses_num_items = False

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.vision_model = VisionModel(scope / "vision_model", config)
        self.blocks = self.vision_model.encoder.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        outputs = self.vision_model(pixel_values)
        sequence_output = outputs[0]
        sequence_output = ops.mean(sequence_output, 1)
        logits = self.classifier(sequence_output)
        return logits if loss_of is None else (loss_of(logits), logits)
