"""DINOv3's rotary position embeddings (transformers 5.24, models/dinov3_vit).

Shapes: B images, N tokens, the last P of them patches, H heads, D head size.
"""

from __future__ import annotations

from .. import ops
from ..engine import Module, Scope, Tensor
from ..units import DType

__all__ = ["RopePositionEmbedding", "apply_rotary_pos_emb"]


class RopePositionEmbedding(Module):
    """Images -> cosine and sine [P, D] in the images' type; training shifts, jitters and rescales the coordinates.

    The coordinates [P, 2] are made in the first forward pass and stay in a cache outside the model.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        grid: tuple[int, int],
        num_frequencies: int,
        shift: float | None,
        jitter: float | None,
        rescale: float | None,
    ) -> None:
        super().__init__(scope)
        self.shift, self.jitter, self.rescale = shift, jitter, rescale
        self.inv_freq = scope.buffer("inv_freq", num_frequencies, dtype=scope.run.buffer_dtype)
        self.grid = grid
        self.patch_coords: Tensor | None = None

    def _patches_center_coordinates(self) -> Tensor:
        """``get_patches_center_coordinates``, behind a cache."""
        if self.patch_coords is None:
            height, width = self.grid
            coords_h = Tensor.empty(self.run, (height,), DType.float32)
            coords_w = Tensor.empty(self.run, (width,), DType.float32)
            coords_h = ops.mul(coords_h, 1.0)
            coords_w = ops.mul(coords_w, 1.0)
            coords = ops.stack([ops.expand(ops.view(coords_h, -1, 1), -1, width), ops.expand(coords_w, height, -1)], 2)
            coords = ops.view(coords, height * width, 2)
            self.patch_coords = ops.mul(ops.mul(coords, 1.0), 1.0)
        return self.patch_coords

    def _augmented(self, coords: Tensor) -> Tensor:
        """``augment_patches_center_coordinates``: random numbers and their exponentials live until it returns."""
        if self.shift is not None:
            shift_hw = Tensor.empty(self.run, (1, 2), DType.float32)
            coords = ops.add(coords, shift_hw)
        if self.jitter is not None:
            jitter_hw = Tensor.empty(self.run, (1, 2), DType.float32)
            jitter_hw = ops.exp(jitter_hw)
            coords = ops.mul(coords, jitter_hw)
        if self.rescale is not None:
            rescale_hw = Tensor.empty(self.run, (1,), DType.float32)
            rescale_hw = ops.exp(rescale_hw)
            coords = ops.mul(coords, rescale_hw)
        return coords

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        patch_coords = self._augmented(self._patches_center_coordinates())
        patches, frequencies = patch_coords.shape[0], self.inv_freq.shape[0]
        inv_freq = ops.view(self.inv_freq, 1, 1, frequencies)
        angles = ops.mul(ops.mul(ops.view(patch_coords, patches, 2, 1), 1.0), inv_freq)
        angles = ops.view(angles, patches, 2 * frequencies)
        angles = ops.cat([angles, angles], 1)
        cos = ops.cos(angles)
        sin = ops.sin(angles)
        return ops.to(cos, pixel_values.dtype), ops.to(sin, pixel_values.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """[..., D] -> the second half negated, then the first."""
    dim = x.shape[-1]
    x1 = ops.narrow(x, 3, 0, dim // 2)
    x2 = ops.narrow(x, 3, dim // 2, dim)
    return ops.cat([ops.neg(x2), x1], 3)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [B, H, N, D] with their patches rotated; under autocast the fp32 angles widen the whole of both."""
    num_patches = sin.shape[0]
    sizes = (q.shape[2] - num_patches, num_patches)
    q_prefix_tokens, q_patches = ops.split(q, sizes, 2)
    k_prefix_tokens, k_patches = ops.split(k, sizes, 2)
    q_patches = ops.add(ops.mul(q_patches, cos), ops.mul(rotate_half(q_patches), sin))
    k_patches = ops.add(ops.mul(k_patches, cos), ops.mul(rotate_half(k_patches), sin))
    q = ops.cat([q_prefix_tokens, q_patches], 2)
    k = ops.cat([k_prefix_tokens, k_patches], 2)
    return q, k
