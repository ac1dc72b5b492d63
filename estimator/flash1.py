"""FlashAttention-1, which torch ran before 2.2: what it can take, what it saves and borrows.

Source: aten/src/ATen/native/transformers/cuda/flash_attn/fmha_api.cpp of torch 2.0 and 2.1 (mha_fwd, mha_bwd). It works
on packed tokens [B * N, H, D]; its fp32 accumulators are there where the keys do not fit one block.
"""

from __future__ import annotations

from .units import DType

__all__ = ["accumulator_bytes", "possible", "rows"]


def possible(dtype: DType, head_dim: int, capability: tuple[int, int]) -> bool:
    """Head sizes are multiples of 8 up to 128; a backward above 64 needs an A100's or an H100's shared memory."""
    if dtype.size != 2 or capability < (7, 5) or head_dim % 8 or head_dim > 128:
        return False
    if dtype is DType.bfloat16 and capability < (8, 0):
        return False
    return head_dim <= 64 or capability in {(8, 0), (9, 0)}


def rows(tokens: int) -> int:
    """Rows of the log-sum-exp and of the row sums: tokens rounded up to 16."""
    return -(-tokens // 16) * 16


def accumulator_bytes(batch: int, heads: int, tokens: int, dim: int, block: int) -> int:
    """fp32 [B * N, H, D] where the keys, rounded up as the kernel does, are more than one block."""
    keys = 128 if tokens <= 128 else 256 if tokens <= 256 else -(-tokens // block) * block
    return 4 * batch * tokens * heads * dim if keys > block else 0
