"""transformers ``CLIPForImageClassification`` (transformers 5.24, models/clip)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from . import _hf_clip
from ._hf import LossOf, Mlp
from ._hf_clip import Config, Embeddings, Encoder, plan_of
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """A class token in front of the patches."""
    return plan_of(model, settings, ForImageClassification, prefix_tokens=1)


class Attention(_hf_clip.Attention):
    """``CLIPAttention``: all projections come before any is split into heads, so backward joins all heads first."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        queries = self.q_proj(hidden_states)
        keys = self.k_proj(hidden_states)
        values = self.v_proj(hidden_states)
        queries = self._heads(queries)
        keys = self._heads(keys)
        values = self._heads(values)
        return self._attended(queries, keys, values, hidden_states.shape)


class EncoderLayer(_hf_clip.EncoderLayer):
    """``CLIPEncoderLayer``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.self_attn = Attention(scope / "self_attn", config)
        self.layer_norm1 = LayerNorm(scope / "layer_norm1", config.hidden_size)
        self.mlp = Mlp(scope / "mlp", config)
        self.layer_norm2 = LayerNorm(scope / "layer_norm2", config.hidden_size)


class VisionModel(Module):
    """``CLIPVisionModel``: tokens, and the normalised class token, which the classifier does not use."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config, class_token=True)
        self.pre_layrnorm = LayerNorm(scope.row("pre_layrnorm"), config.hidden_size)
        self.encoder = Encoder(scope.row("encoder"), config, EncoderLayer)
        self.post_layernorm = LayerNorm(scope.row("post_layernorm").without_gradients(), config.hidden_size)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = self.embeddings(pixel_values)
        hidden_states = self.pre_layrnorm(hidden_states)
        last_hidden_state = self.encoder(hidden_states)
        pooled_output = ops.select(last_hidden_state, 1, 0)
        pooled_output = self.post_layernorm(pooled_output)
        return last_hidden_state, pooled_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels] from the mean of the patch tokens, or (loss, logits) where labels came in."""

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
        sequence_output = ops.mean(ops.narrow(sequence_output, 1, 1, sequence_output.shape[1]), 1)
        logits = self.classifier(sequence_output)
        return logits if loss_of is None else (loss_of(logits), logits)
