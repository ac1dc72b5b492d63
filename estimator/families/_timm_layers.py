"""timm's shared layers (timm 1.0.31, timm/layers/), written as timm writes them.

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .. import ops
from ..engine import Module, Scope, Tensor
from .nn import Conv2d, LayerNorm, Linear, RmsNorm

__all__ = [
    "ACTIVATIONS",
    "MLPS",
    "NORMS",
    "Attention",
    "BlockConfig",
    "Mlp",
    "PatchDropout",
    "PatchEmbed",
    "Sequential",
]

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


class PatchEmbed(Module):
    """timm/layers/patch_embed.py: [B, 3, H, W] -> [B, N, C]; unless it flattens, the result stays [B, h, w, C]."""

    def __init__(
        self,
        scope: Scope,
        channels: int,
        width: int,
        patch: tuple[int, int],
        *,
        bias: bool,
        norm: str | None,
        flatten: bool,
    ) -> None:
        super().__init__(scope)
        self.flatten = flatten
        self.proj = Conv2d(scope / "proj", channels, width, patch, bias=bias)
        self.norm = NORMS[norm](scope / "norm", width) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        x = ops.transpose(ops.flatten(x, 2), 1, 2) if self.flatten else ops.permute(x, 0, 2, 3, 1)
        if self.norm is not None:
            x = self.norm(x)
        return x


class PatchDropout(Module):
    """timm/layers/patch_dropout.py: prefix tokens stay, of the patches ``num_keep`` at random; nothing at rate 0."""

    def __init__(self, scope: Scope, rate: float, num_prefix_tokens: int, num_keep: int) -> None:
        super().__init__(scope)
        self.rate, self.num_prefix_tokens, self.num_keep = rate, num_prefix_tokens, num_keep

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0 or not self.run.training:
            return x
        if not self.num_prefix_tokens:
            return ops.keep_random_tokens(x, self.num_keep)
        prefix_tokens = ops.narrow(x, 1, 0, self.num_prefix_tokens)
        x = ops.narrow(x, 1, self.num_prefix_tokens, x.shape[1])
        x = ops.keep_random_tokens(x, self.num_keep)
        return ops.cat([prefix_tokens, x], 1)


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
