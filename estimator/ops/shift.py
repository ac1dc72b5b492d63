"""Shifted windows: their additive mask, made anew in every forward pass, and images padded to whole patches."""

from __future__ import annotations

from ..engine.tensor import Tensor
from ..units import DType
from .pointwise import elementwise
from .shape import contiguous, permute, view

__all__ = ["pad_image", "shift_mask"]


def pad_image(x: Tensor, height: int, width: int) -> Tensor:
    """``F.pad`` of [B, C, H, W] at its lower or right edge to [B, C, height, width]: a copy of pixels, which need no
    gradient (aten/src/ATen/native/PadNd.cpp, constant_pad_nd)."""
    return Tensor.empty(x.run, (*x.shape[:2], height, width), x.dtype)


def shift_mask(x: Tensor, height: int, width: int, window: int) -> Tensor:
    """transformers' ``get_attn_mask`` (5.24, models/swin): [windows, N, N] of the type of ``x``, N tokens of a window.

    Every pixel gets the number of its region, in whole numbers by row and by column; what differs inside a window is
    filled with -100 and the rest with 0, each fill a new tensor beside its byte mask. Saves nothing.
    """
    run = x.run
    rows, columns = Tensor.empty(run, (height,), DType.int64), Tensor.empty(run, (width,), DType.int64)
    row_region = _regions(rows)
    column_region = _regions(columns)
    tripled = elementwise(row_region, row_region).alias((1, height, 1, 1), (height, 1, 1, 1))
    numbers = elementwise(tripled, column_region.alias((1, 1, width, 1), (width, width, 1, 1)))
    del tripled
    img_mask = Tensor.empty(run, numbers.shape, x.dtype)
    del numbers
    tokens = window * window
    mask_windows = view(_partitioned(img_mask, window), -1, tokens)
    windows = mask_windows.shape[0]
    attn_mask = Tensor.empty(run, (windows, tokens, tokens), x.dtype)
    differs = Tensor.empty(run, attn_mask.shape, DType.bool)
    filled = Tensor.empty(run, attn_mask.shape, x.dtype)
    del differs
    equal = Tensor.empty(run, attn_mask.shape, DType.bool)
    attn_mask = Tensor.empty(run, attn_mask.shape, x.dtype)
    del equal, filled
    return attn_mask


def _regions(index: Tensor) -> Tensor:
    """``(index >= a).long() + (index >= b).long()``."""
    run, shape = index.run, index.shape
    behind = Tensor.empty(run, shape, DType.bool)
    first = Tensor.empty(run, shape, DType.int64)
    del behind
    behind = Tensor.empty(run, shape, DType.bool)
    second = Tensor.empty(run, shape, DType.int64)
    del behind
    return elementwise(first, second)


def _partitioned(mask: Tensor, window: int) -> Tensor:
    """[1, H, W, 1] -> one window after the other, a copy."""
    _, height, width, _ = mask.shape
    return contiguous(permute(view(mask, height // window, window, width // window, window), 0, 2, 1, 3))
