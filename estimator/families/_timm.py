"""timm's shared layers (timm 1.0.31, timm/layers/ and models/vision_transformer.py), written as timm writes them.

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .. import ops
from ..engine import Module, Scope, Tensor
from .nn import LayerNorm, LayerScale, Linear, RmsNorm, drop_path

__all__ = ["ACTIVATIONS", "BLOCKS", "MLPS", "NORMS", "AttentionPoolLatent", "BlockConfig", "Sequential"]

NORMS: dict[str | None, Callable[[Scope, int], LayerNorm | RmsNorm]] = {
    None: LayerNorm,
    "LayerNorm": LayerNorm,
    "RmsNorm": RmsNorm,
}
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: ops.gelu,
    "gelu": ops.gelu,
    "gelu_tanh": ops.gelu,
    "quick_gelu": ops.quick_gelu,
    "silu": ops.silu,
    "relu": ops.relu,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """What every block of ``models/vision_transformer.py`` is built from."""

    dim: int
    num_heads: int
    mlp_ratio: float
    qkv_bias: bool
    qk_norm: bool
    scale_attn_norm: bool
    scale_mlp_norm: bool
    proj_bias: bool
    proj_drop: float
    attn_drop: float
    init_values: float | None
    drop_path: float
    norm_layer: str | None
    act_layer: str | None
    mlp_layer: str
    fused_attn: bool


class Sequential(Module):
    """``nn.Sequential``: its input stays alive until the last module has run."""

    def __init__(self, scope: Scope, modules: list[Module]) -> None:
        super().__init__(scope)
        self.modules = modules

    def forward(self, x: Tensor) -> Tensor:
        for module in self.modules:
            x = module(x)
        return x


class Attention(Module):
    """timm/layers/attention.py, packed qkv."""

    def __init__(self, scope: Scope, config: BlockConfig) -> None:
        super().__init__(scope)
        dim, norm = config.dim, NORMS[config.norm_layer]
        self.num_heads, self.head_dim = config.num_heads, dim // config.num_heads
        self.fused_attn, self.attn_drop, self.proj_drop = config.fused_attn, config.attn_drop, config.proj_drop
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=config.qkv_bias)
        self.q_norm = norm(scope / "q_norm", self.head_dim) if config.qk_norm else None
        self.k_norm = norm(scope / "k_norm", self.head_dim) if config.qk_norm else None
        self.norm = norm(scope / "norm", dim) if config.scale_attn_norm else None
        self.proj = Linear(scope / "proj", dim, dim, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = ops.permute(ops.reshape(self.qkv(x), b, n, 3, self.num_heads, self.head_dim), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            x = ops.scaled_dot_product_attention(q, k, v, self.attn_drop)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.attn_drop)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        if self.norm is not None:
            x = self.norm(x)
        x = self.proj(x)
        x = ops.dropout(x, self.proj_drop)
        return x


class Mlp(Module):
    """timm/layers/mlp.py ``Mlp``."""

    def __init__(self, scope: Scope, dim: int, hidden: int, config: BlockConfig) -> None:
        super().__init__(scope)
        self.act, self.drop = ACTIVATIONS[config.act_layer], config.proj_drop
        self.fc1 = Linear(scope / "fc1", dim, hidden, bias=config.proj_bias)
        self.norm = NORMS[config.norm_layer](scope / "norm", hidden) if config.scale_mlp_norm else None
        self.fc2 = Linear(scope / "fc2", hidden, dim, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        x = ops.dropout(x, self.drop)
        if self.norm is not None:
            x = self.norm(x)
        x = self.fc2(x)
        x = ops.dropout(x, self.drop)
        return x


class GluMlp(Module):
    """timm/layers/mlp.py ``GluMlp``: one packed projection, gated by its first half (``SwiGLUPacked``) or its last."""

    def __init__(self, scope: Scope, dim: int, hidden: int, config: BlockConfig) -> None:
        super().__init__(scope)
        self.gate_last, self.drop = config.mlp_layer == "GluMlp", config.proj_drop
        self.act = ACTIVATIONS[config.act_layer]  # the block's choice, not the silu of the partial
        self.fc1 = Linear(scope / "fc1", dim, hidden, bias=config.proj_bias)
        self.norm = NORMS[config.norm_layer](scope / "norm", hidden // 2) if config.scale_mlp_norm else None
        self.fc2 = Linear(scope / "fc2", hidden // 2, dim, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x1, x2 = ops.chunk(x, 2, 2)
        x = ops.mul(x1, self.act(x2)) if self.gate_last else ops.mul(self.act(x1), x2)
        x = ops.dropout(x, self.drop)
        if self.norm is not None:
            x = self.norm(x)
        x = self.fc2(x)
        x = ops.dropout(x, self.drop)
        return x


class SwiGLU(Module):
    """timm/layers/mlp.py ``SwiGLU``: separate gate and value projections."""

    def __init__(self, scope: Scope, dim: int, hidden: int, config: BlockConfig) -> None:
        super().__init__(scope)
        self.act, self.drop = ACTIVATIONS[config.act_layer], config.proj_drop
        self.fc1_g = Linear(scope / "fc1_g", dim, hidden, bias=config.proj_bias)
        self.fc1_x = Linear(scope / "fc1_x", dim, hidden, bias=config.proj_bias)
        self.norm = NORMS[config.norm_layer](scope / "norm", hidden) if config.scale_mlp_norm else None
        self.fc2 = Linear(scope / "fc2", hidden, dim, bias=config.proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        x_gate = self.fc1_g(x)
        x = self.fc1_x(x)
        x = ops.mul(self.act(x_gate), x)
        x = ops.dropout(x, self.drop)
        if self.norm is not None:
            x = self.norm(x)
        x = self.fc2(x)
        x = ops.dropout(x, self.drop)
        return x


MLPS: dict[str, Callable[[Scope, int, int, BlockConfig], Module]] = {
    "Mlp": Mlp,
    "GluMlp": GluMlp,
    "SwiGLUPacked": GluMlp,
    "SwiGLU": SwiGLU,
}


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
