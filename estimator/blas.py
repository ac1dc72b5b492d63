"""Workspaces of cuBLAS and cuBLASLt (aten/src/ATen/cuda/CublasHandlePool.cpp, CUDABlas.cpp) by version of torch."""

from __future__ import annotations

from .generations import Torch

__all__ = ["lt_workspace_bytes", "workspace_bytes"]


def workspace_bytes(torch: Torch, capability: int) -> int:
    """One per (handle, stream): 8.125 MiB, on compute capability 9 to 12 32 MiB.

    A training process holds two: the main thread's and the autograd thread's; neither is ever freed.
    """
    if not torch.has("cublas_workspace_is_allocated"):
        return 0
    if not torch.has("cublas_workspace_by_generation"):
        return 4 * 2**20
    large = {9}
    large |= {10, 12} if torch.has("large_workspace_on_blackwell") else set()
    large |= {11} if torch.has("large_workspace_on_thor") else set()
    return 32 * 2**20 if capability in large else 8_519_680


def lt_workspace_bytes(torch: Torch) -> int:
    """The library that multiplies and adds a bias in one call: nothing of its own today, 1 MiB before.

    torch up to 1.12 makes no such call in its CUDA 11.3 builds (native/cuda/Blas.cpp: from CUDA 11.4 on).
    """
    is_separate = not torch.has("one_workspace_of_cublas_and_lt")
    return 2**20 if is_separate and torch.has("cublas_workspace_is_allocated") else 0
