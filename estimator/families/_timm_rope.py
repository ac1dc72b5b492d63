"""timm's rotary position embeddings (timm 1.0.31, layers/pos_embed_sincos.py).

Shapes: B images, H heads, N patches, D head size, K blocks; a table holds sines and cosines side by side, [N, 2D].
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType

__all__ = [
    "RotaryEmbeddingCat",
    "RotaryEmbeddingDinoV3",
    "RotaryEmbeddingMixed",
    "apply_keep_indices_nlc",
    "apply_rot_embed_cat",
]


def _rope_layout(x: Tensor, rotate_half: bool) -> Tensor:
    """[..., D/2] -> [..., D]: twice one after the other, or every channel twice."""
    last = len(x.shape) - 1
    return ops.cat([x, x], last) if rotate_half else ops.repeat_interleave(x, 2, last)


class RotaryEmbeddingCat(Module):
    """Frequencies and the finished table as buffers; frequencies stay fp32 when the model is cast."""

    def __init__(self, scope: Scope, head_dim: int, grid: tuple[int, int]) -> None:
        super().__init__(scope)
        scope.buffer("bands", head_dim // 4, dtype=DType.float32)
        self.pos_embed = scope.buffer("pos_embed", grid[0] * grid[1], head_dim * 2, dtype=self.run.buffer_dtype)

    def get_embed(self) -> Tensor:
        """[N, 2D]."""
        return self.pos_embed


class RotaryEmbeddingDinoV3(Module):
    """The table is made anew in every forward pass, in fp32, where the image size or augmentation may change it."""

    def __init__(self, scope: Scope, head_dim: int, grid: tuple[int, int], *, rotate_half: bool, cached: bool) -> None:
        super().__init__(scope)
        self.head_dim, self.num_patches, self.rotate_half = head_dim, grid[0] * grid[1], rotate_half
        self.periods = scope.buffer("periods", head_dim // 4, dtype=DType.float32)
        shape = (self.num_patches, head_dim * 2)
        self.pos_embed = scope.buffer("pos_embed_cached", *shape, dtype=self.run.buffer_dtype) if cached else None

    def get_embed(self, *, create: bool) -> Tensor:
        """[N, 2D]."""
        if self.pos_embed is not None and not create:
            return self.pos_embed
        sin, cos = self._from_coords()
        rope_embed = ops.cat([sin, cos], 1)
        return rope_embed

    def _from_coords(self) -> tuple[Tensor, Tensor]:
        coords = Tensor.empty(self.run, (self.num_patches, 2, 1), DType.float32)  # copied from the host
        angles = ops.div(ops.mul(coords, 1.0), ops.view(self.periods, 1, 1, self.head_dim // 4))
        angles = ops.flatten(angles, 1)
        sin = _rope_layout(ops.sin(angles), self.rotate_half)
        cos = _rope_layout(ops.cos(angles), self.rotate_half)
        return sin, cos


class RotaryEmbeddingMixed(Module):
    """Learnt frequencies of every block and head; the tables [K, H, N, 2D] are made in fp32 in every forward pass."""

    def __init__(self, scope: Scope, head_dim: int, depth: int, num_heads: int, grid: tuple[int, int]) -> None:
        super().__init__(scope)
        self.freqs = scope.parameter("freqs", 2, depth, num_heads, head_dim // 2)
        self.t_x = scope.buffer("t_x", grid[0] * grid[1], dtype=DType.float32)
        self.t_y = scope.buffer("t_y", grid[0] * grid[1], dtype=DType.float32)

    def get_embed(self) -> Tensor:
        """[K, H, N, 2D], in the type of the frequencies."""
        freqs = ops.to(self.freqs, DType.float32)
        freqs_x = ops.mul(_column(self.t_x), _row(ops.select(freqs, 0, 0)))
        freqs_y = ops.mul(_column(self.t_y), _row(ops.select(freqs, 0, 1)))
        combined = ops.add(freqs_x, freqs_y)
        sin_emb = _rope_layout(ops.sin(combined), rotate_half=False)
        cos_emb = _rope_layout(ops.cos(combined), rotate_half=False)
        rope_embeds = ops.cat([sin_emb, cos_emb], 3)
        return ops.to(rope_embeds, self.freqs.dtype)


def _column(x: Tensor) -> Tensor:
    return ops.view(x, *x.shape, 1)


def _row(x: Tensor) -> Tensor:
    return ops.view(x, *x.shape[:-1], 1, x.shape[-1])


def _rot(x: Tensor) -> Tensor:
    """Neighbouring channels swapped, one of each pair negated."""
    last, width = len(x.shape) - 1, x.shape[-1]
    return ops.reshape(
        ops.stack([ops.neg(ops.narrow(x, last, 1, width, 2)), ops.narrow(x, last, 0, width, 2)], last + 1), *x.shape
    )


def _rope_rotate_half(x: Tensor) -> Tensor:
    """The two halves of the channels swapped, the second negated."""
    last = len(x.shape) - 1
    x1, x2 = ops.chunk(x, 2, last)
    return ops.cat([ops.neg(x2), x1], last)


def apply_rot_embed_cat(x: Tensor, emb: Tensor, *, half: bool) -> Tensor:
    """x [B, H, N, D] turned by a table that broadcasts to it; a wider table widens the sum, not the result."""
    sin_emb, cos_emb = ops.chunk(emb, 2, len(emb.shape) - 1)
    return _apply_rot_embed(x, sin_emb, cos_emb, half)


def _apply_rot_embed(x: Tensor, sin_emb: Tensor, cos_emb: Tensor, half: bool) -> Tensor:
    turned = _rope_rotate_half if half else _rot
    out = ops.add(ops.mul(x, cos_emb), ops.mul(turned(x), sin_emb))
    return ops.to(out, x.dtype)


def apply_keep_indices_nlc(x: Tensor, pos_embed: Tensor, keep_indices: Tensor) -> Tensor:
    """The table of every image's own kept patches: [..., N, 2D] and indices [B, kept] -> [B, ..., kept, 2D]."""
    batch = x.shape[0]
    pos_embed = ops.expand(ops.view(pos_embed, 1, *pos_embed.shape), batch, *pos_embed.shape)
    return ops.gather_tokens(pos_embed, keep_indices)
