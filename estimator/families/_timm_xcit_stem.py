"""Before the blocks of timm's ``Xcit`` (timm 1.0.31, models/xcit.py): convolutions and positional encoding.

Shapes: B images, H x W grid, N patches, C width.
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType
from ._timm_layers import Sequential
from ._timm_xcit_config import Config
from .nn import BatchNorm2d, Conv2d

__all__ = ["ConvPatchEmbed", "PositionalEncodingFourier"]

_FREQUENCIES = 32  # of the positional encoding, per direction


def _conv3x3(scope: Scope, inputs: int, outputs: int) -> Sequential:
    """3 x 3 convolution of stride 2 and batch norm."""
    conv = Conv2d(scope / "0", inputs, outputs, (3, 3), stride=2, padding=1, bias=False)
    return Sequential(scope, [conv, BatchNorm2d(scope / "1", outputs)])


class Gelu(Module):
    """``nn.GELU``."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class ConvPatchEmbed(Module):
    """Each convolution halves the grid, the last makes the full width: [B, 3, rows, columns] -> [B, N, C]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        proj, count = scope / "proj", config.strides
        widths = [config.in_chans, *(config.embed_dim // 2 ** (count - 1 - i) for i in range(count))]
        modules: list[Module] = []
        for i in range(count):
            if i:
                modules.append(Gelu(proj))
            modules.append(_conv3x3(proj / str(2 * i), widths[i], widths[i + 1]))
        self.proj = Sequential(proj, modules)

    def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
        x = self.proj(x)
        height, width = x.shape[2:]
        x = ops.transpose(ops.flatten(x, 2), 1, 2)
        return x, height, width


class PositionalEncodingFourier(Module):
    """Sines and cosines of rows and columns, made anew in every forward pass, then projected: -> [B, C, H, W]."""

    def __init__(self, scope: Scope, width: int) -> None:
        super().__init__(scope)
        self.token_projection = Conv2d(scope / "token_projection", 2 * _FREQUENCIES, width, (1, 1))

    def _arange(self, size: int) -> Tensor:
        return ops.to(Tensor.empty(self.run, (size,), DType.int64), DType.float32)

    def forward(self, b: int, height: int, width: int) -> Tensor:
        y_embed = ops.repeat(ops.view(self._arange(height), 1, height, 1), 1, 1, width)
        x_embed = ops.repeat(ops.view(self._arange(width), 1, 1, width), 1, height, 1)
        y_embed = ops.mul(ops.div(y_embed, ops.mul(ops.narrow(y_embed, 1, height - 1, height), 1.0)), 1.0)
        x_embed = ops.mul(ops.div(x_embed, ops.mul(ops.narrow(x_embed, 2, width - 1, width), 1.0)), 1.0)
        dim_t = self._arange(_FREQUENCIES)
        dim_t = ops.mul(ops.mul(ops.mul(ops.mul(dim_t, 0.5), 2.0), 1.0), 1.0)
        pos_x = ops.div(ops.view(x_embed, 1, height, width, 1), dim_t)
        pos_y = ops.div(ops.view(y_embed, 1, height, width, 1), dim_t)
        pos_x = _interleaved(pos_x)
        pos_y = _interleaved(pos_y)
        pos = ops.permute(ops.cat([pos_y, pos_x], 3), 0, 3, 1, 2)
        pos = self.token_projection(ops.to(pos, self.run.parameter_dtype))
        return ops.repeat(pos, b, 1, 1, 1)


def _interleaved(x: Tensor) -> Tensor:
    """Sine at even and cosine at odd frequencies."""
    even, odd = (ops.narrow(x, 3, start, _FREQUENCIES, 2) for start in (0, 1))
    return ops.flatten(ops.stack([ops.sin(even), ops.cos(odd)], 4), 3)
