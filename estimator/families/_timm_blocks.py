"""timm's blocks (timm 1.0.31, models/vision_transformer.py) and attention pooling (layers/attention_pool.py).

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .. import ops
from ..engine import Module, Scope, Tensor
from ._timm_layers import ACTIVATIONS, MLPS, NORMS, Attention, BlockConfig, Mlp
from .nn import LayerNorm, LayerScale, Linear, RmsNorm, drop_path

__all__ = ["BLOCKS", "AttentionPoolLatent"]


def _mlp(scope: Scope, config: BlockConfig) -> Module:
    return MLPS[config.mlp_layer](scope, config.dim, int(config.dim * config.mlp_ratio), config)


def _layer_scale(scope: Scope, config: BlockConfig) -> LayerScale | None:
    return LayerScale(scope, config.dim) if config.init_values else None


def _branch(x: Tensor, scale: LayerScale | None, rate: float) -> Tensor:
    return drop_path(x if scale is None else scale(x), rate)


class Block(Module):
    """Pre-norm block."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        norm = NORMS[config.norm_layer]
        self.drop_path = config.drop_path
        self.norm1 = norm(scope / "norm1", config.dim)
        self.attn = Attention(scope / "attn", config)
        self.ls1 = _layer_scale(scope / "ls1", config)
        self.norm2 = norm(scope / "norm2", config.dim)
        self.mlp = _mlp(scope / "mlp", config)
        self.ls2 = _layer_scale(scope / "ls2", config)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, _branch(self.attn(self.norm1(x)), self.ls1, self.drop_path))
        x = ops.add(x, _branch(self.mlp(self.norm2(x)), self.ls2, self.drop_path))
        return x


class ResPostBlock(Module):
    """Norm at the end of each residual branch."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        norm = NORMS[config.norm_layer]
        self.drop_path = config.drop_path
        self.attn = Attention(scope / "attn", config)
        self.norm1 = norm(scope / "norm1", config.dim)
        self.mlp = _mlp(scope / "mlp", config)
        self.norm2 = norm(scope / "norm2", config.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, drop_path(self.norm1(self.attn(x)), self.drop_path))
        x = ops.add(x, drop_path(self.norm2(self.mlp(x)), self.drop_path))
        return x


class ParallelScalingBlock(Module):
    """Attention and MLP in parallel behind one input projection (ViT-22B)."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        dim, norm = config.dim, NORMS[config.norm_layer]
        self.config, self.hidden = config, int(config.mlp_ratio * dim)
        self.num_heads, self.head_dim = config.num_heads, dim // config.num_heads
        self.act = ACTIVATIONS[config.act_layer]
        self.in_norm = norm(scope / "in_norm", dim)
        self.in_proj = Linear(scope / "in_proj", dim, self.hidden + 3 * dim, bias=config.qkv_bias)
        self.mlp_bias = None if config.qkv_bias else scope.parameter("mlp_bias", self.hidden)
        self.q_norm = norm(scope / "q_norm", self.head_dim) if config.qk_norm else None
        self.k_norm = norm(scope / "k_norm", self.head_dim) if config.qk_norm else None
        self.attn_out_proj = Linear(scope / "attn_out_proj", dim, dim, bias=config.proj_bias)
        self.mlp_out_proj = Linear(scope / "mlp_out_proj", self.hidden, dim, bias=config.proj_bias)
        self.ls = LayerScale(scope / "ls", dim) if config.init_values is not None else None

    def _heads(self, x: Tensor, norm: LayerNorm | RmsNorm | None) -> Tensor:
        b, n, _ = x.shape
        x = ops.view(x, b, n, self.num_heads, self.head_dim)
        return ops.transpose(x if norm is None else norm(x), 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        y = self.in_norm(x)
        y = self.in_proj(y)
        x_mlp, q, k, v = ops.split(y, (self.hidden, c, c, c), 2)
        if self.mlp_bias is not None:
            x_mlp = ops.add(x_mlp, self.mlp_bias)
        q, k, v = self._heads(q, self.q_norm), self._heads(k, self.k_norm), self._heads(v, None)
        if self.config.fused_attn:
            x_attn = ops.scaled_dot_product_attention(q, k, v, self.config.attn_drop)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.config.attn_drop)
            x_attn = ops.matmul(attn, v)
        x_attn = ops.reshape(ops.transpose(x_attn, 1, 2), b, n, c)
        x_mlp = self.act(x_mlp)
        x_mlp = ops.dropout(x_mlp, self.config.proj_drop)
        y = ops.add(self.attn_out_proj(x_attn), self.mlp_out_proj(x_mlp))
        x = ops.add(x, _branch(y, self.ls, self.config.drop_path))
        return x


class _Branch(Module):
    """One parallel branch: norm, body, LayerScale, stochastic depth, as an ``nn.Sequential``."""

    def __init__(self, scope: Scope, config: BlockConfig, name: str) -> None:
        super().__init__(scope)
        self.rate = config.drop_path
        self.norm = NORMS[config.norm_layer](scope / "norm", config.dim)
        self.body = Attention(scope / name, config) if name == "attn" else _mlp(scope / name, config)
        self.ls = _layer_scale(scope / "ls", config)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = self.body(x)
        return _branch(x, self.ls, self.rate)


class ParallelThingsBlock(Module):
    """Two attentions in parallel, then two MLPs ("Three things everyone should know about ViT")."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        self.attns = [_Branch(scope / "attns" / str(i), config, "attn") for i in range(2)]
        self.ffns = [_Branch(scope / "ffns" / str(i), config, "mlp") for i in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        x = ops.add(x, ops.sum_(ops.stack([attn(x) for attn in self.attns], 0), 0))
        x = ops.add(x, ops.sum_(ops.stack([ffn(x) for ffn in self.ffns], 0), 0))
        return x


BLOCKS: dict[str, Callable[[Scope, BlockConfig], Module]] = {
    "Block": Block,
    "ResPostBlock": ResPostBlock,
    "ParallelScalingBlock": ParallelScalingBlock,
    "ParallelThingsBlock": ParallelThingsBlock,
}


class AttentionPoolLatent(Module):
    """timm/layers/attention_pool.py: one learnt query attends to all tokens, then an MLP."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        dim = config.dim
        self.num_heads, self.head_dim, self.fused_attn = config.num_heads, dim // config.num_heads, config.fused_attn
        self.latent = scope.parameter("latent", 1, 1, dim)
        self.q = Linear(scope / "q", dim, dim)
        self.kv = Linear(scope / "kv", dim, dim * 2)
        self.proj = Linear(scope / "proj", dim, dim)
        self.norm = NORMS[config.norm_layer](scope / "norm", dim)
        plain = dataclasses.replace(config, proj_bias=True, proj_drop=0.0, scale_mlp_norm=False)
        self.mlp = Mlp(scope / "mlp", dim, int(dim * config.mlp_ratio), plain)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q_latent = ops.expand(self.latent, b, -1, -1)
        q = ops.transpose(ops.reshape(self.q(q_latent), b, 1, self.num_heads, self.head_dim), 1, 2)
        kv = ops.permute(ops.reshape(self.kv(x), b, n, 2, self.num_heads, self.head_dim), 2, 0, 3, 1, 4)
        k, v = ops.unbind(kv, 0)
        if self.fused_attn:
            x = ops.scaled_dot_product_attention(q, k, v)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.softmax(attn)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, 1, c)
        x = self.proj(x)
        x = ops.add(x, self.mlp(self.norm(x)))
        return ops.select(x, 1, 0)
