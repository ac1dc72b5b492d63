"""What timm's CaiT and XCiT share (timm 1.0.31, models/cait.py, layers/mlp.py): class attention and a plain MLP.

Shapes: B images, N tokens, C width, H heads, D head size.
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from .nn import Linear

__all__ = ["ClassAttn", "Mlp"]


class ClassAttn(Module):
    """The class token attends to all tokens: [B, N, C] -> [B, 1, C]."""

    def __init__(
        self,
        scope: Scope,
        dim: int,
        heads: int,
        *,
        qkv_bias: bool,
        fused: bool,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(scope)
        self.heads, self.fused, self.attn_drop, self.proj_drop = heads, fused, attn_drop, proj_drop
        self.q = Linear(scope / "q", dim, dim, bias=qkv_bias)
        self.k = Linear(scope / "k", dim, dim, bias=qkv_bias)
        self.v = Linear(scope / "v", dim, dim, bias=qkv_bias)
        self.proj = Linear(scope / "proj", dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        d = c // self.heads
        q = ops.permute(ops.reshape(ops.view(self.q(ops.select(x, 1, 0)), b, 1, c), b, 1, self.heads, d), 0, 2, 1, 3)
        k = ops.permute(ops.reshape(self.k(x), b, n, self.heads, d), 0, 2, 1, 3)
        v = ops.permute(ops.reshape(self.v(x), b, n, self.heads, d), 0, 2, 1, 3)
        if self.fused:
            x_cls = ops.scaled_dot_product_attention(q, k, v, self.attn_drop)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.attn_drop)
            x_cls = ops.matmul(attn, v)
        x_cls = ops.reshape(ops.transpose(x_cls, 1, 2), b, 1, c)
        x_cls = self.proj(x_cls)
        x_cls = ops.dropout(x_cls, self.proj_drop)
        return x_cls


class Mlp(Module):
    """Two linear layers around GELU."""

    def __init__(self, scope: Scope, dim: int, hidden: int, drop: float = 0.0) -> None:
        super().__init__(scope)
        self.drop = drop
        self.fc1 = Linear(scope / "fc1", dim, hidden)
        self.fc2 = Linear(scope / "fc2", hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.gelu(x)
        x = ops.dropout(x, self.drop)
        x = self.fc2(x)
        x = ops.dropout(x, self.drop)
        return x
