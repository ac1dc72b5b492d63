"""What CLIP's and SigLIP's vision towers share (transformers 5.24, models/clip and models/siglip).

Only the vision tower is built, from ``config.vision_config``; sizes are single numbers there, so images are square.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ..units import DType
from ._hf import ATTENTIONS, Mlp, read_config
from ._plan import Plan
from .nn import Conv2d, Embedding, LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Attention", "Config", "Embeddings", "Encoder", "EncoderLayer", "plan_of"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``CLIPVisionConfig`` and ``SiglipVisionConfig`` that decide memory, ``attention_dropout`` among
    them under ViT's name; sizes are (height, width) in pixels, both the same."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "quick_gelu"
    attention_probs_dropout_prob: float = 0.0
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (32, 32)
    num_channels: int = 3
    vision_use_head: bool = False
    num_labels: int = 1000
    attn: str = "sdpa"

    @property
    def num_patches(self) -> int:
        """A remainder of pixels is dropped, as the convolution drops it."""
        return (self.image_size[0] // self.patch_size[0]) ** 2


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def plan_of(model: ModelConfig, settings: TrainSettings, build: Callable[..., Module], *, prefix_tokens: int) -> Plan:
    """The model that ``AutoModelForImageClassification.from_config`` builds; raises where transformers would."""
    fields = {**model.config["vision_config"]}
    _require_single_numbers(model.name, fields, settings)
    fields["attention_probs_dropout_prob"] = fields.pop("attention_dropout")
    config = Config(**read_config(model.name, fields, settings, KNOWN, divisible=True))
    return Plan(
        model=model,
        build=partial(build, config=config),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + prefix_tokens,
        blocks=tuple(f"vision_model.encoder.layers.{i}" for i in range(config.num_hidden_layers)),
        head=("classifier",),
        stem=("vision_model.embeddings",),
        attn=config.attn,
        resolved={
            "res": config.image_size,
            "patch": config.patch_size[0],
            "dim": config.hidden_size,
            "depth": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "mlp_ratio": config.intermediate_size / config.hidden_size,
            "dropout": 0.0,
            "attn_dropout": config.attention_probs_dropout_prob,
            "drop_path": 0.0,
            "patch_drop": 0.0,
        },
        assumptions=("the vision tower alone, with a linear classifier on the mean of its patch tokens",),
    )


def _require_single_numbers(name: str, fields: Mapping[str, Any], settings: TrainSettings) -> None:
    """``image_size // patch_size`` of the library takes whole numbers only."""
    if settings.res is not None and settings.res[0] != settings.res[1]:
        side = max(settings.res)
        raise InvalidRequest(f"{name} takes square images only; use --res {side}")
    for field, given in (("image_size", settings.res), ("patch_size", settings.patch)):
        if given is None and not isinstance(fields[field], int):
            raise InvalidRequest(
                f"{name}: {field} {fields[field]} must be one number in config.json; the library fails"
            )


class Embeddings(Module):
    """``CLIPVisionEmbeddings``, with a class token and a convolution without bias, and ``SiglipVisionEmbeddings``, the
    other way round; positions come from a table by the buffer of their ids."""

    def __init__(self, scope: Scope, config: Config, *, class_token: bool) -> None:
        super().__init__(scope)
        width, patch = config.hidden_size, config.patch_size
        positions = config.num_patches + int(class_token)
        self.class_embedding = scope.parameter("class_embedding", width) if class_token else None
        self.patch_embedding = Conv2d(
            scope / "patch_embedding", config.num_channels, width, patch, bias=not class_token
        )
        self.position_embedding = Embedding(scope / "position_embedding", positions, width)
        self.position_ids = scope.buffer("position_ids", 1, positions, dtype=DType.int64)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patch_embeds = self.patch_embedding(pixel_values)
        patch_embeds = ops.transpose(ops.flatten(patch_embeds, 2), 1, 2)
        if self.class_embedding is None:
            embeddings = patch_embeds
        else:
            class_embeds = ops.expand(self.class_embedding, pixel_values.shape[0], 1, -1)
            embeddings = ops.cat([class_embeds, patch_embeds], 1)
        embeddings = ops.add(embeddings, self.position_embedding(self.position_ids))
        return embeddings


class Attention(Module):
    """``SiglipAttention``: [B, N, C] -> [B, N, C]; each projection is split into heads before the next."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.dropout, self.attend = config.attention_probs_dropout_prob, ATTENTIONS[config.attn]
        self.k_proj = Linear(scope / "k_proj", width, width)
        self.v_proj = Linear(scope / "v_proj", width, width)
        self.q_proj = Linear(scope / "q_proj", width, width)
        self.out_proj = Linear(scope / "out_proj", width, width)

    def _heads(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        return ops.transpose(ops.view(x, b, n, -1, self.head_dim), 1, 2)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        queries = self._heads(self.q_proj(hidden_states))
        keys = self._heads(self.k_proj(hidden_states))
        values = self._heads(self.v_proj(hidden_states))
        return self._attended(queries, keys, values, hidden_states.shape)

    def _attended(
        self, queries: Tensor, keys: Tensor, values: Tensor, shape: tuple[int, ...]
    ) -> tuple[Tensor, Tensor | None]:
        attn_output, attn_weights = self.attend(queries, keys, values, self.dropout, DType.float32)
        attn_output = ops.contiguous(ops.reshape(attn_output, *shape[:-1], -1))
        attn_output = self.out_proj(attn_output)
        return attn_output, attn_weights


class Encoder(Module):
    """``CLIPEncoder``, ``SiglipEncoder``: pre-norm layers made by ``layer``."""

    def __init__(self, scope: Scope, config: Config, layer: Callable[[Scope, Config], Module]) -> None:
        super().__init__(scope)
        layers = scope / "layers"
        self.layers = [layer(layers.row(str(i)), config) for i in range(config.num_hidden_layers)]

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        hidden_states = inputs_embeds
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states)
        return hidden_states


class EncoderLayer(Module):
    """``CLIPEncoderLayer``, ``SiglipEncoderLayer``; each makes its parameters in its own order."""

    layer_norm1: LayerNorm
    self_attn: Attention
    layer_norm2: LayerNorm
    mlp: Mlp

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states)
        hidden_states = ops.add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(residual, hidden_states)
        return hidden_states
