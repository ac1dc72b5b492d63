"""transformers ``ViTForImageClassification`` (transformers 5.24, models/vit); DeiT has one more prefix token."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..settings import TrainSettings
from ._hf import EncoderLayer, LossOf, PatchEmbeddings, classify, read_config
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``ViTConfig`` and ``DeiTConfig`` that decide memory; sizes are (height, width) in pixels."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    num_channels: int = 3
    qkv_bias: bool = True
    num_labels: int = 1000
    attn: str = "sdpa"

    @property
    def num_patches(self) -> int:
        """A remainder of pixels is dropped, as the convolution drops it."""
        return (self.image_size[0] // self.patch_size[0]) * (self.image_size[1] // self.patch_size[1])


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def plan(
    model: ModelConfig, settings: TrainSettings, prefix: str = "vit", tokens: tuple[str, ...] = ("cls_token",)
) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    config = Config(**read_config(model.name, model.config, settings, KNOWN))
    return Plan(
        model=model,
        build=partial(ForImageClassification, config=config, prefix=prefix, tokens=tokens),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + len(tokens),
        blocks=tuple(f"{prefix}.layers.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=(f"{prefix}.embeddings",),
        attn=config.attn,
        resolved={
            "res": config.image_size,
            "patch": config.patch_size[0],
            "dim": config.hidden_size,
            "depth": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "mlp_ratio": config.intermediate_size / config.hidden_size,
            "dropout": config.hidden_dropout_prob,
            "attn_dropout": config.attention_probs_dropout_prob,
            "drop_path": 0.0,
            "patch_drop": 0.0,
        },
    )


class Embeddings(Module):
    """``ViTEmbeddings``: prefix tokens are concatenated, then positions are added."""

    def __init__(self, scope: Scope, config: Config, tokens: tuple[str, ...]) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.dropout = config.hidden_dropout_prob
        cls_token = scope.parameter(tokens[0], 1, 1, width)
        self.position_embeddings = scope.parameter("position_embeddings", 1, config.num_patches + len(tokens), width)
        self.tokens = [cls_token, *(scope.parameter(name, 1, 1, width) for name in tokens[1:])]
        self.patch_embeddings = PatchEmbeddings(
            scope / "patch_embeddings", config.num_channels, width, config.patch_size
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeddings = self.patch_embeddings(pixel_values)
        expanded = [ops.expand(token, embeddings.shape[0], -1, -1) for token in self.tokens]
        embeddings = ops.cat([*expanded, embeddings], 1)
        embeddings = ops.add(embeddings, self.position_embeddings)
        return ops.dropout(embeddings, self.dropout)


class Model(Module):
    """``ViTModel`` without its pooler."""

    def __init__(self, scope: Scope, config: Config, tokens: tuple[str, ...]) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config, tokens)
        layers = scope / "layers"
        self.layers = [EncoderLayer(layers.row(str(i)), config) for i in range(config.num_hidden_layers)]
        self.layernorm = LayerNorm(scope.row("layernorm"), config.hidden_size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        pixel_values = ops.to(pixel_values, self.embeddings.patch_embeddings.projection.weight.dtype)
        embedding_output = self.embeddings(pixel_values)
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        sequence_output: Tensor = self.layernorm(hidden_states)
        return sequence_output


class ForImageClassification(Module):
    """[B, 3, H, W] -> [B, num_labels], or (loss, logits) where labels came in."""

    takes_loss_kwargs = True

    def __init__(self, scope: Scope, config: Config, prefix: str, tokens: tuple[str, ...]) -> None:
        super().__init__(scope)
        self.backbone = Model(scope / prefix, config, tokens)
        self.blocks = self.backbone.layers
        self.classifier = Linear(scope.row("classifier"), config.hidden_size, config.num_labels)

    def forward(self, pixel_values: Tensor, loss_of: LossOf | None = None) -> Any:
        sequence_output = self.backbone(pixel_values)
        return classify(sequence_output, self.classifier, loss_of)
