"""Attention and blocks of timm's ``Eva`` (timm 1.0.31, models/eva.py, and ``AttentionRope`` of layers/attention.py).

Shapes: B images, N tokens, C width, H heads, G heads of keys and values, D head size.
"""

from __future__ import annotations

import dataclasses

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType
from ._timm_layers import MLPS, NORMS, BlockConfig
from ._timm_rope import apply_rot_embed_cat
from .nn import Linear, drop_path

__all__ = ["EvaBlock", "EvaBlockConfig", "EvaBlockPostNorm"]

Projected = tuple["Tensor | None", Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvaBlockConfig(BlockConfig):
    """What every block of ``models/eva.py`` is built from; ``mlp_hidden`` is the width inside its MLP."""

    attn_type: str
    qkv_fused: bool
    num_kv_heads: int
    num_prefix_tokens: int
    rotate_half: bool
    attn_only_layer_scale: bool
    mlp_hidden: int


class _Attention(Module):
    """What both attentions do after their projections."""

    def __init__(self, scope: Scope, config: EvaBlockConfig) -> None:
        super().__init__(scope)
        dim, norm = config.dim, NORMS[config.norm_layer]
        self.config = config
        self.num_heads, self.head_dim = config.num_heads, dim // config.num_heads
        self._make_projections(scope)
        self.q_norm = norm(scope / "q_norm", self.head_dim) if config.qk_norm else None
        self.k_norm = norm(scope / "k_norm", self.head_dim) if config.qk_norm else None
        self.norm = norm(scope / "norm", dim) if config.scale_attn_norm else None
        self.proj = Linear(scope / "proj", dim, dim)

    def _make_projections(self, scope: Scope) -> None:
        raise NotImplementedError

    def _project(self, x: Tensor) -> Projected:
        """Query, key and value [B, H or G, N, D], and before them what has a name until the attention returns."""
        raise NotImplementedError

    def _split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        b, n, _ = qkv.shape
        return ops.unbind(ops.permute(ops.reshape(qkv, b, n, 3, self.num_heads, self.head_dim), 2, 0, 3, 1, 4), 0)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        b, n, _ = x.shape
        return ops.transpose(ops.reshape(x, b, n, heads, self.head_dim), 1, 2)

    def _rotate(self, x: Tensor, rope: Tensor, dtype: DType) -> Tensor:
        """Prefix tokens as they are, patches turned."""
        prefix, half = self.config.num_prefix_tokens, self.config.rotate_half
        return ops.to(
            ops.cat(
                [
                    ops.narrow(x, 2, 0, prefix),
                    apply_rot_embed_cat(ops.narrow(x, 2, prefix, x.shape[2]) if prefix else x, rope, half=half),
                ],
                2,
            ),
            dtype,
        )

    def forward(self, x: Tensor, rope: Tensor | None) -> Tensor:
        config = self.config
        b, n, c = x.shape
        _qkv_bias, q, k, v = self._project(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q = self._rotate(q, rope, v.dtype)
            k = self._rotate(k, rope, v.dtype)
        groups = self.num_heads // config.num_kv_heads
        if groups > 1:
            k = ops.repeat_interleave(k, groups, 1)
            v = ops.repeat_interleave(v, groups, 1)
        if config.fused_attn:
            x = ops.scaled_dot_product_attention(q, k, v, config.attn_drop)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, config.attn_drop)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        if self.norm is not None:
            x = self.norm(x)
        x = self.proj(x)
        x = ops.dropout(x, config.proj_drop)
        return x


class EvaAttention(_Attention):
    """Keys without a bias: packed, the biases of query and value are joined around a buffer of zeros."""

    def _make_projections(self, scope: Scope) -> None:
        dim, bias = self.config.dim, self.config.qkv_bias
        self.q_bias = self.k_bias = self.v_bias = None
        if not self.config.qkv_fused:
            self.q_proj = Linear(scope / "q_proj", dim, dim, bias=bias)
            self.k_proj = Linear(scope / "k_proj", dim, dim, bias=False)
            self.v_proj = Linear(scope / "v_proj", dim, dim, bias=bias)
            return
        if bias:
            self.q_bias = scope.parameter("q_bias", dim)
            self.k_bias = scope.buffer("k_bias", dim, dtype=self.run.buffer_dtype)
            self.v_bias = scope.parameter("v_bias", dim)
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=False)

    def _project(self, x: Tensor) -> Projected:
        if not self.config.qkv_fused:
            q = self._heads(self.q_proj(x), self.num_heads)
            k = self._heads(self.k_proj(x), self.num_heads)
            v = self._heads(self.v_proj(x), self.num_heads)
            return None, q, k, v
        if self.q_bias is None or self.k_bias is None or self.v_bias is None:
            q, k, v = self._split(self.qkv(x))
            return None, q, k, v
        qkv_bias = ops.cat([self.q_bias, self.k_bias, self.v_bias], 0)
        qkv = ops.linear(x, self.qkv.weight, qkv_bias)
        q, k, v = self._split(qkv)
        return qkv_bias, q, k, v


class AttentionRope(_Attention):
    """One bias for all, and possibly fewer heads of keys and values than of queries."""

    def _make_projections(self, scope: Scope) -> None:
        dim, bias = self.config.dim, self.config.qkv_bias
        if self.config.qkv_fused:
            self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=bias)
            return
        kv_dim = self.head_dim * self.config.num_kv_heads
        self.q_proj = Linear(scope / "q_proj", dim, dim, bias=bias)
        self.k_proj = Linear(scope / "k_proj", dim, kv_dim, bias=bias)
        self.v_proj = Linear(scope / "v_proj", dim, kv_dim, bias=bias)

    def _project(self, x: Tensor) -> Projected:
        if self.config.qkv_fused:
            q, k, v = self._split(self.qkv(x))
        else:
            q = self._heads(self.q_proj(x), self.num_heads)
            k = self._heads(self.k_proj(x), self.config.num_kv_heads)
            v = self._heads(self.v_proj(x), self.config.num_kv_heads)
        return None, q, k, v


def _attention(scope: Scope, config: EvaBlockConfig) -> Module:
    return AttentionRope(scope, config) if config.attn_type == "rope" else EvaAttention(scope, config)


def _mlp(scope: Scope, config: EvaBlockConfig) -> Module:
    return MLPS[config.mlp_layer](scope, config.dim, config.mlp_hidden, config)


class EvaBlock(Module):
    """Pre-norm block; its LayerScale is a parameter of the block itself."""

    keywords = ("rope", "attn_mask", "is_causal")

    def __init__(self, scope: Scope, config: EvaBlockConfig) -> None:
        super().__init__(scope)
        norm, scaled = NORMS[config.norm_layer], config.init_values is not None
        self.drop_path = config.drop_path
        self.gamma_1 = scope.parameter("gamma_1", config.dim) if scaled else None
        self.gamma_2 = scope.parameter("gamma_2", config.dim) if scaled and not config.attn_only_layer_scale else None
        self.norm1 = norm(scope / "norm1", config.dim)
        self.attn = _attention(scope / "attn", config)
        self.norm2 = norm(scope / "norm2", config.dim)
        self.mlp = _mlp(scope / "mlp", config)

    def forward(self, x: Tensor, rope: Tensor | None) -> Tensor:
        x_attn = self.attn(self.norm1(x), rope)
        if self.gamma_1 is not None:
            x_attn = ops.mul(self.gamma_1, x_attn)
        x = ops.add(x, drop_path(x_attn, self.drop_path))
        x_mlp = self.mlp(self.norm2(x))
        if self.gamma_2 is not None:
            x_mlp = ops.mul(self.gamma_2, x_mlp)
        x = ops.add(x, drop_path(x_mlp, self.drop_path))
        return x


class EvaBlockPostNorm(Module):
    """Norm at the end of each residual branch."""

    keywords = ("rope", "attn_mask", "is_causal")

    def __init__(self, scope: Scope, config: EvaBlockConfig) -> None:
        super().__init__(scope)
        norm = NORMS[config.norm_layer]
        self.drop_path = config.drop_path
        self.attn = _attention(scope / "attn", config)
        self.norm1 = norm(scope / "norm1", config.dim)
        self.mlp = _mlp(scope / "mlp", config)
        self.norm2 = norm(scope / "norm2", config.dim)

    def forward(self, x: Tensor, rope: Tensor | None) -> Tensor:
        x = ops.add(x, drop_path(self.norm1(self.attn(x, rope)), self.drop_path))
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.drop_path))
        return x
