"""Row-major or channels-last: the format that PyTorch reads from the strides of [B, C, H, W] and asks of a kernel.

Source: c10/core/MemoryFormat.h and aten/src/ATen/native/ConvUtils.h of torch 2.14.
"""

from __future__ import annotations

from ..engine.run import Storage
from ..engine.tensor import Shape, Tensor, contiguous_strides

__all__ = ["format_copy", "format_strides", "has_format", "is_channels_last"]


def is_channels_last(x: Tensor) -> bool:
    """``suggest_memory_format``: are the channels the fastest dimension, then columns, rows, images?"""
    smallest = 0
    if x.strides[1] == 0:
        return False
    for dim in (1, 3, 2, 0):
        if x.shape[dim] == 0 or x.strides[dim] < smallest or (dim == 0 and smallest == x.strides[1]):
            return False
        smallest = x.strides[dim] * max(x.shape[dim], 1)
    return True


def format_strides(shape: Shape, *, channels_last: bool) -> Shape:
    """Strides of a new [B, C, H, W]."""
    if not channels_last:
        return contiguous_strides(shape)
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)


def has_format(x: Tensor, *, channels_last: bool) -> bool:
    """``is_contiguous(memory_format)``: sizes of one do not count."""
    wanted = format_strides(x.shape, channels_last=channels_last)
    return all(size == 1 or stride == want for size, stride, want in zip(x.shape, x.strides, wanted))


def format_copy(x: Tensor, *, channels_last: bool) -> list[Storage]:
    """What a kernel borrows for an operand that is laid out otherwise."""
    return [] if has_format(x, channels_last=channels_last) else x.run.workspace(x.num_bytes)
