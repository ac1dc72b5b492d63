"""What the kernels borrow that copy in and out of FSDP's buffers (torch 2.14, ATen/native/cuda/TensorShape.cu).

Both hand the kernel its tables in device memory: 64-bit numbers, of which one for every block of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from ..kernels import Gpu

__all__ = ["chunk_cat_bytes", "split_with_sizes_copy_bytes"]

_THREADS = 128
_TILE_BYTES = 16 * _THREADS
_ENTRY_BYTES = 8


def split_with_sizes_copy_bytes(chunks: Sequence[int], ranks: int, gpu: Gpu) -> int:
    """Tables of ``split_with_sizes_copy.out``: ``chunks`` are the bytes of each parameter on one rank.

    Threads copy more than once where the grid would be twice what the device runs at a time.
    """
    num_blocks = sum(-(-size // _TILE_BYTES) for size in chunks)
    most = gpu.num_sms * gpu.threads_per_sm // _THREADS * 2
    factor = -(-num_blocks * ranks // most)
    per_block = min(ceil(sqrt(factor)), ranks)
    tile = _TILE_BYTES * -(-factor // per_block)
    num_blocks = sum(-(-size // tile) for size in chunks)
    return _ENTRY_BYTES * (num_blocks + 4 * len(chunks) + 1)


def chunk_cat_bytes(chunks: Sequence[int]) -> int:
    """Tables of ``_chunk_cat.out``: ``chunks`` are the bytes of each gradient for one rank, in the output's type."""
    num_blocks = sum(-(-size // _TILE_BYTES) for size in chunks)
    return _ENTRY_BYTES * (num_blocks + 6 * len(chunks) + 2)
