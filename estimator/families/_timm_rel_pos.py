"""A learnt bias per relative position (timm 1.0.31, layers/pos_embed_rel.py), and what its families refuse alike.

Shapes: h x w window, A = h * w tokens of it, P prefix tokens (0 or 1), N = A + P, H heads.
"""

from __future__ import annotations

import math

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest
from ..settings import TrainSettings
from ..units import DType
from ._plan import require_divisible
from .nn import Linear

__all__ = ["Pair", "RelPosBias", "RelPosMlp", "check_sizes"]

Pair = tuple[int, int]


def check_sizes(name: str, settings: TrainSettings, *, dim: int, heads: int, img_size: Pair, patch_size: Pair) -> None:
    """Raise where timm would for a plain encoder on a grid that is fixed when the model is built."""
    if settings.window is not None:
        raise InvalidRequest(f"{name} has no windows; --window belongs to Swin models")
    if settings.patch_drop is not None:
        raise InvalidRequest(f"{name} has no patch_drop_rate; leave out --patch-drop")
    if settings.attn == "flash_attention_2":
        raise InvalidRequest(f"{name}: timm runs F.scaled_dot_product_attention; use --attn sdpa")
    require_divisible("dim", dim, "heads", heads)
    for size, patch in zip(img_size, patch_size):
        if size < patch:
            raise InvalidRequest(
                f"res {size} is smaller than one patch of {patch} pixels; raise --res or lower --patch"
            )


class RelPosBias(Module):
    """``RelPosBias``: a table with a row per offset, and three rows for the class token's pairs."""

    def __init__(self, scope: Scope, window: Pair, heads: int, prefix_tokens: int) -> None:
        super().__init__(scope)
        self.tokens = math.prod(window) + prefix_tokens
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1) + 3 * prefix_tokens
        self.relative_position_bias_table = scope.parameter("relative_position_bias_table", offsets, heads)
        self.index = scope.buffer("relative_position_index", self.tokens**2, dtype=DType.int64)

    def get_bias(self) -> Tensor:
        """[1, H, N, N]."""
        bias = ops.rows_of(self.relative_position_bias_table, self.index)
        bias = ops.permute(ops.view(bias, self.tokens, self.tokens, -1), 2, 0, 1)
        return ops.contiguous(ops.view(bias, 1, *bias.shape))

    def forward(self, attn: Tensor) -> Tensor:
        return ops.add(attn, self.get_bias())


class RelPosMlp(Module):
    """``RelPosMlp``: an MLP from log-scaled offsets to heads; a prefix token's pairs get zeros.

    Mode ``swin`` squashes the bias to 16 * sigmoid and has no bias in the second layer.
    """

    def __init__(
        self, scope: Scope, window: Pair, heads: int, prefix_tokens: int, *, hidden: int = 128, mode: str = "cr"
    ) -> None:
        super().__init__(scope)
        self.area, self.heads, self.prefix_tokens = math.prod(window), heads, prefix_tokens
        self.mlp = _Mlp(scope / "mlp", hidden, heads, bias=mode != "swin")
        self.bias_act = _Sigmoid(scope / "bias_act") if mode == "swin" else None
        self.index = scope.buffer("relative_position_index", self.area**2, dtype=DType.int64)
        offsets = (2 * window[0] - 1, 2 * window[1] - 1)
        self.rel_coords_log = scope.buffer("rel_coords_log", *offsets, 2, dtype=scope.run.buffer_dtype)

    def get_bias(self) -> Tensor:
        """[1, H, N, N]."""
        bias = self.mlp(self.rel_coords_log)
        bias = ops.rows_of(ops.view(bias, -1, self.heads), self.index)
        bias = ops.view(bias, self.area, self.area, self.heads)
        bias = ops.permute(bias, 2, 0, 1)
        if self.bias_act is not None:
            bias = self.bias_act(bias)
            bias = ops.mul(bias, 16.0)
        if self.prefix_tokens:
            bias = ops.pad_start(bias, self.prefix_tokens)
        return ops.contiguous(ops.view(bias, 1, *bias.shape))

    def forward(self, attn: Tensor) -> Tensor:
        return ops.add(attn, self.get_bias())


class _Sigmoid(Module):
    """``nn.Sigmoid``."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class _Mlp(Module):
    """timm/layers/mlp.py ``Mlp`` with ReLU, an eighth of the hidden features dropped."""

    def __init__(self, scope: Scope, hidden: int, heads: int, *, bias: bool) -> None:
        super().__init__(scope)
        self.fc1 = Linear(scope / "fc1", 2, hidden)
        self.fc2 = Linear(scope / "fc2", hidden, heads, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = ops.relu(x)
        x = ops.dropout(x, 0.125)
        x = self.fc2(x)
        return x
