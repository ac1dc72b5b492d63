"""torchvision's shifted window attention (torchvision 0.29.1, models/swin_transformer.py), versions 1 and 2.

Shapes: B images, H x W grid, C width, N tokens of a window.
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType
from .nn import Linear

__all__ = ["ShiftedWindowAttention", "ShiftedWindowAttentionV2"]

Pair = tuple[int, int]


class ShiftedWindowAttention(Module):
    """[B, H, W, C] -> [B, H, W, C]: padded to whole windows, rolled, attended to, and put back."""

    def __init__(
        self, scope: Scope, dim: int, heads: int, window: Pair, shift: Pair, attn_dropout: float, dropout: float
    ) -> None:
        super().__init__(scope)
        self.heads, self.window, self.shift = heads, window, shift
        self.attn_dropout, self.dropout = attn_dropout, dropout
        self.area = window[0] * window[1]
        self._own_parameters(scope)
        self.index = scope.buffer("relative_position_index", self.area**2, dtype=DType.int64, persistent=True)
        self.qkv = Linear(scope / "qkv", dim, dim * 3)
        self.proj = Linear(scope / "proj", dim, dim)

    def _own_parameters(self, scope: Scope) -> None:
        offsets = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.relative_position_bias_table = scope.parameter("relative_position_bias_table", offsets, self.heads)

    def forward(self, x: Tensor) -> Tensor:
        relative_position_bias = self._relative_position_bias()
        return self._shifted_window_attention(x, relative_position_bias)

    def _relative_position_bias(self) -> Tensor:
        return self._rows(self.relative_position_bias_table)

    def _rows(self, table: Tensor) -> Tensor:
        """``_get_relative_position_bias``: [offsets, heads] -> [1, heads, N, N]."""
        bias = ops.rows_of(table, self.index)
        bias = ops.view(bias, self.area, self.area, -1)
        bias = ops.contiguous(ops.permute(bias, 2, 0, 1))
        return ops.view(bias, 1, *bias.shape)

    def _shifted_window_attention(self, input: Tensor, relative_position_bias: Tensor) -> Tensor:
        _, height, width, c = input.shape
        grid = (-(-height // self.window[0]) * self.window[0], -(-width // self.window[1]) * self.window[1])
        shifted = any(s and w < side for s, w, side in zip(self.shift, self.window, grid))
        x = self._partitioned(input, grid, shifted)
        qkv_bias = self._qkv_bias()
        qkv = ops.linear(x, self.qkv.weight, qkv_bias)
        qkv = ops.permute(ops.reshape(qkv, *x.shape[:2], 3, self.heads, c // self.heads), 2, 0, 3, 1, 4)
        q, k, v = ops.select(qkv, 0, 0), ops.select(qkv, 0, 1), ops.select(qkv, 0, 2)
        attn, _factor = self._scores(q, k)
        attn = ops.add(attn, relative_position_bias)
        if shifted:
            attn_mask = ops.window_mask(x, grid, self.window)
            windows = attn_mask.shape[0]
            attn = ops.view(attn, -1, windows, *attn.shape[1:])
            attn = ops.add(attn, ops.view(attn_mask, 1, windows, 1, self.area, self.area))
            attn = ops.view(attn, -1, *attn.shape[2:])
        attn = ops.softmax(attn)
        attn = ops.dropout(attn, self.attn_dropout)
        x = ops.reshape(ops.transpose(ops.matmul(attn, v), 1, 2), *x.shape)
        x = ops.linear(x, self.proj.weight, self.proj.bias)
        x = ops.dropout(x, self.dropout)
        x = self._reversed(x, input.shape, grid)
        if shifted:
            x = ops.roll(x)
        x = ops.contiguous(_cropped(x, height, width))
        return x

    def _partitioned(self, x: Tensor, grid: Pair, shifted: bool) -> Tensor:
        x = ops.pad_grid(x, *grid)
        if shifted:
            x = ops.roll(x)
        b, _, _, c = x.shape
        (height, width), (rows, columns) = grid, self.window
        x = ops.view(x, b, height // rows, rows, width // columns, columns, c)
        x = ops.reshape(ops.permute(x, 0, 1, 3, 2, 4, 5), -1, self.area, c)
        return x

    def _reversed(self, x: Tensor, shape: tuple[int, ...], grid: Pair) -> Tensor:
        (height, width), (rows, columns) = grid, self.window
        x = ops.view(x, shape[0], height // rows, width // columns, rows, columns, shape[3])
        return ops.reshape(ops.permute(x, 0, 1, 3, 2, 4, 5), shape[0], height, width, shape[3])

    def _qkv_bias(self) -> Tensor:
        assert self.qkv.bias is not None
        return self.qkv.bias

    def _scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The products of queries and keys, and the factor that lives as long as they do."""
        q = ops.mul(q, 1.0)
        return ops.matmul(q, ops.transpose(k, 2, 3)), q


class ShiftedWindowAttentionV2(ShiftedWindowAttention):
    """Cosine attention with a learnt scale; the bias per relative position comes from a small MLP."""

    def __init__(
        self, scope: Scope, dim: int, heads: int, window: Pair, shift: Pair, attn_dropout: float, dropout: float
    ) -> None:
        super().__init__(scope, dim, heads, window, shift, attn_dropout, dropout)
        cpb_mlp = scope / "cpb_mlp"
        self.cpb_hidden = Linear(cpb_mlp / "0", 2, 512)
        self.cpb_out = Linear(cpb_mlp / "2", 512, heads, bias=False)

    def _own_parameters(self, scope: Scope) -> None:
        self.logit_scale = scope.parameter("logit_scale", self.heads, 1, 1)
        offsets = (2 * self.window[0] - 1, 2 * self.window[1] - 1)
        dtype = scope.run.buffer_dtype
        self.coordinates = scope.buffer("relative_coords_table", 1, *offsets, 2, dtype=dtype, persistent=True)

    def _relative_position_bias(self) -> Tensor:
        bias = self._rows(ops.view(self._cpb_mlp(self.coordinates), -1, self.heads))
        bias = ops.mul(ops.sigmoid(bias), 16.0)
        return bias

    def _cpb_mlp(self, x: Tensor) -> Tensor:
        x = self.cpb_hidden(x)
        x = ops.relu_(x)
        x = self.cpb_out(x)
        return x

    def _qkv_bias(self) -> Tensor:
        """The keys have no bias: it is zeroed in a copy."""
        qkv_bias = super()._qkv_bias()
        return ops.clone_with_zeros(qkv_bias, qkv_bias.numel // 3)

    def _scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        attn = ops.matmul(ops.normalize(q), ops.transpose(ops.normalize(k), 2, 3))
        logit_scale = ops.exp(ops.clamp(self.logit_scale))
        attn = ops.mul(attn, logit_scale)
        return attn, logit_scale


def _cropped(x: Tensor, height: int, width: int) -> Tensor:
    """``x[:, :H, :W, :]``: nothing where the size is the same already."""
    if x.shape[1] != height:
        x = ops.narrow(x, 1, 0, height)
    if x.shape[2] != width:
        x = ops.narrow(x, 2, 0, width)
    return x
