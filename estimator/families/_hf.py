"""transformers' shared parts (transformers 5.24): attention functions, encoder layer, classification head.

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily, NotModelled
from ..settings import TrainSettings
from ..units import DType
from .nn import Conv2d, LayerNorm, Linear

__all__ = [
    "ACTIVATIONS",
    "OVERRIDES",
    "EncoderConfig",
    "EncoderLayer",
    "PatchEmbeddings",
    "classify",
    "pair",
    "read_config",
    "require_a_patch",
    "require_floats",
]

LossOf = Callable[[Tensor], Tensor]

#: ``ACT2FN`` of transformers/activations.py.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": ops.gelu,
    "gelu_pytorch_tanh": ops.gelu,
    "quick_gelu": ops.quick_gelu,
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
}

#: A setting and the config.json field that it replaces.
OVERRIDES: Mapping[str, str] = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "num_classes": "num_labels",
    "mlp_ratio": "mlp_ratio",
    "dropout": "hidden_dropout_prob",
    "attn_dropout": "attention_probs_dropout_prob",
    "drop_path": "drop_path_rate",
    "patch_drop": "patch_drop_rate",
    "window": "window_size",
}


class AttentionConfig(Protocol):
    """What :class:`Attention` reads from a family's config."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def attention_probs_dropout_prob(self) -> float: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def attn(self) -> str: ...


class MlpConfig(Protocol):
    """What :class:`Mlp` reads from a family's config."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...


class EncoderConfig(AttentionConfig, MlpConfig, Protocol):
    """What :class:`EncoderLayer` reads from a family's config."""

    @property
    def hidden_dropout_prob(self) -> float: ...


def pair(value: Any) -> tuple[int, int]:
    """An image or patch size of a config.json as (height, width)."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def read_config(
    name: str,
    config: Mapping[str, Any],
    settings: TrainSettings,
    known: frozenset[str],
    overrides: Mapping[str, str] = OVERRIDES,
    *,
    divisible: bool = False,
) -> dict[str, Any]:
    """config.json with the user's settings put in: the fields that a family knows, as constructor arguments.

    ``overrides`` name the field of a setting; ``divisible``: the class refuses heads that do not divide the width.
    """
    fields = {field: value for field, value in config.items() if field in known}
    for setting, field in overrides.items():
        value = getattr(settings, setting)
        if field in known and value is not None:
            fields[field] = value
        elif value and not (setting == "mlp_ratio" and "intermediate_size" in known):
            raise InvalidRequest(f"{name} has no {field}; leave out --{setting.replace('_', '-')}")
    fields["image_size"] = settings.res or pair(fields["image_size"])
    fields["patch_size"] = pair(settings.patch or fields["patch_size"])
    if "intermediate_size" in known and settings.mlp_ratio is not None:  # else config.json's own width stays
        fields["intermediate_size"] = int(fields["hidden_size"] * settings.mlp_ratio)
    fields["attn"] = "sdpa" if settings.attn == "auto" else settings.attn
    _check(name, fields, divisible=divisible)
    return fields


def _check(name: str, fields: Mapping[str, Any], *, divisible: bool) -> None:
    if divisible and fields["hidden_size"] % fields["num_attention_heads"]:
        raise InvalidRequest(
            f"hidden_size {fields['hidden_size']} is not divisible by {fields['num_attention_heads']} heads; "
            "the library refuses it"
        )
    if fields["hidden_size"] < fields["num_attention_heads"]:
        raise InvalidRequest(
            f"hidden_size {fields['hidden_size']} leaves nothing to {fields['num_attention_heads']} heads"
        )
    if fields.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise NoFamily(f"{name}: activation {fields['hidden_act']!r} is not modelled")
    if fields.get("num_channels", 3) != 3:
        raise InvalidRequest(f"{name} takes images of {fields['num_channels']} channels; the loops' images have 3")
    if fields["attn"] == "flash_attention_2":
        raise NotModelled(f"{name}: the flash-attn package is not modelled; --attn sdpa runs torch's own flash kernel")
    require_a_patch(fields["image_size"], fields["patch_size"])


def require_a_patch(image: tuple[int, int], patch: tuple[int, int]) -> None:
    """The convolution refuses an image that is smaller than its kernel."""
    for size, step in zip(image, patch):
        if size < step:
            raise InvalidRequest(f"res {size} is smaller than one patch of {step} pixels; raise --res or lower --patch")


def require_floats(name: str, config: Mapping[str, Any], *fields: str) -> None:
    """transformers' configurations refuse a whole number where a field is declared ``float``."""
    for field in fields:
        if isinstance(value := config[field], int):
            raise InvalidRequest(f"{name}: {field} is {value} in config.json; the library wants it as {float(value)}")


class PatchEmbeddings(Module):
    """``ViTPatchEmbeddings``: [B, 3, H, W] -> [B, N, C]; a remainder of pixels is dropped."""

    def __init__(self, scope: Scope, channels: int, width: int, patch: tuple[int, int]) -> None:
        super().__init__(scope)
        self.projection = Conv2d(scope / "projection", channels, width, patch)

    def forward(self, x: Tensor) -> Tensor:
        return ops.transpose(ops.flatten(self.projection(x), 2), 1, 2)


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    softmax_dtype: DType | None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``eager_attention_forward``: softmax in fp32 and cast back, or (DINOv2) as it comes; the weights are returned."""
    weights = ops.mul(ops.matmul(query, ops.transpose(key, 2, 3)), 1.0)
    if attention_mask is not None:
        weights = ops.add(weights, attention_mask)
    weights = (
        ops.softmax(weights) if softmax_dtype is None else ops.to(ops.softmax(weights, softmax_dtype), query.dtype)
    )
    weights = ops.dropout(weights, dropout)
    output = ops.matmul(weights, value)
    output = ops.contiguous(ops.transpose(output, 1, 2))
    return output, weights


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    softmax_dtype: DType | None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """integrations/sdpa_attention.py; the softmax is the kernel's own."""
    output = ops.scaled_dot_product_attention(query, key, value, dropout, attention_mask)
    output = ops.contiguous(ops.transpose(output, 1, 2))
    return output, None


ATTENTIONS = {"eager": eager_attention, "sdpa": sdpa_attention}


class Attention(Module):
    """``ViTAttention``: separate q, k, v projections, each of which casts its own copy of the input.

    Heads that do not divide the width make the attention narrower: their size is rounded down.
    """

    def __init__(self, scope: Scope, config: AttentionConfig, *, softmax_dtype: DType | None = DType.float32) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.softmax_dtype = softmax_dtype
        self.head_dim = width // config.num_attention_heads
        self.dropout, self.attend = config.attention_probs_dropout_prob, ATTENTIONS[config.attn]
        inner = config.num_attention_heads * self.head_dim
        self.q_proj = Linear(scope / "q_proj", width, inner, bias=config.qkv_bias)
        self.k_proj = Linear(scope / "k_proj", width, inner, bias=config.qkv_bias)
        self.v_proj = Linear(scope / "v_proj", width, inner, bias=config.qkv_bias)
        self.o_proj = Linear(scope / "o_proj", inner, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        b, n, _ = x.shape
        query = ops.transpose(ops.view(self.q_proj(x), b, n, -1, self.head_dim), 1, 2)
        key = ops.transpose(ops.view(self.k_proj(x), b, n, -1, self.head_dim), 1, 2)
        value = ops.transpose(ops.view(self.v_proj(x), b, n, -1, self.head_dim), 1, 2)
        output, weights = self.attend(query, key, value, self.dropout, self.softmax_dtype)
        output = ops.contiguous(ops.reshape(output, b, n, -1))
        output = self.o_proj(output)
        return output, weights


class Mlp(Module):
    """``ViTMLP``, ``Dinov2MLP``."""

    def __init__(self, scope: Scope, config: MlpConfig) -> None:
        super().__init__(scope)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.fc1 = Linear(scope / "fc1", config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(scope / "fc2", config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = self.fc2(hidden_states)
        return hidden_states


class EncoderLayer(Module):
    """``ViTLayer`` and ``DeiTLayer``."""

    def __init__(self, scope: Scope, config: EncoderConfig) -> None:
        super().__init__(scope)
        self.dropout = config.hidden_dropout_prob
        self.attention = Attention(scope / "attention", config)
        self.layernorm_before = LayerNorm(scope / "layernorm_before", config.hidden_size)
        self.layernorm_after = LayerNorm(scope / "layernorm_after", config.hidden_size)
        self.mlp = Mlp(scope / "mlp", config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states, _ = self.attention(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.dropout)
        hidden_states = ops.add(hidden_states, residual)
        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.dropout)
        hidden_states = ops.add(hidden_states, residual)
        return hidden_states


def classify(sequence_output: Tensor, classifier: Linear, loss_of: LossOf | None) -> Any:
    """The tail of ``ForImageClassification.forward``: class token, classifier, and the loss where labels came in."""
    pooled_output = ops.select(sequence_output, 1, 0)
    logits = classifier(pooled_output)
    return logits if loss_of is None else (loss_of(logits), logits)
