"""What CUDA kernels borrow from the allocator, and which kernel runs: by GPU generation and dtype.

As torch 2.14 does it, or what :mod:`.generations` knows of an older version.
"""

from __future__ import annotations

import dataclasses

from . import blas, cpu, flash1
from .engine.tensor import Shape
from .errors import InvalidRequest
from .generations import Torch
from .reduction import ReduceConfig, last_pow2, reduction_dims
from .units import DType

__all__ = ["Gpu", "Kernels"]


#: Where cuDNN's attention comes first, with the cuDNN 9.24 of torch 2.14's wheels (check_prefer_cudnn_attention).
_PREFER_CUDNN = {(9, 0), (10, 0), (10, 3)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What kernel choice and workspaces depend on. The default is an A100 (sm80), as the contract fixes."""

    capability: tuple[int, int] = (8, 0)
    num_sms: int = 108
    threads_per_sm: int = 2048
    l2_cache_bytes: int = 40 * 2**20
    is_cpu: bool = False  # no GPU at all: torch's CPU kernels, see :mod:`.cpu`


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernel choice and workspace sizes (bytes) of one GPU under one version of torch."""

    gpu: Gpu = dataclasses.field(default_factory=Gpu)
    sdpa_kernel: str = "auto"
    torch: Torch = dataclasses.field(default_factory=Torch)

    @property
    def on_cpu(self) -> bool:
        """Whether torch's CPU kernels run: nothing else here is asked for then but :meth:`attention`."""
        return self.gpu.is_cpu

    @property
    def cublas_workspace_bytes(self) -> int:
        """One per thread that multiplies matrices: main and autograd."""
        return blas.workspace_bytes(self.torch, self.gpu.capability[0])

    @property
    def lt_workspace_bytes(self) -> int:
        """What cuBLASLt has of its own."""
        return blas.lt_workspace_bytes(self.torch)

    @property
    def has_bfloat16(self) -> bool:
        """Whether cuDNN convolves in bf16, and the fused attention kernels take it."""
        return self.gpu.capability >= (8, 0)

    def attention(
        self,
        dtype: DType,
        head_dim: int,
        dropout: float,
        *,
        mask: bool | None = None,
        trained: bool = True,
        dense: bool = True,
    ) -> str:
        """The kernel that runs (sdp_utils.cpp): flash, efficient, cudnn or math.

        ``mask``: None, or whether it wants a gradient; ``trained``: whether queries, keys or values do; not ``dense``
        in their last dimension, they leave math.
        """
        if self.on_cpu:
            return cpu.attention(self.sdpa_kernel, dropout, mask=mask, dense=dense)
        if not dense:
            return self._strided()
        possible = {
            "cudnn": mask is not True and self._cudnn_ok(dtype, head_dim, dropout, trained),
            "flash": mask is None and self._flash_ok(dtype, head_dim, dropout, trained),
            "efficient": self._takes(mask) and self._efficient_ok(dtype, head_dim),
            "math": True,
        }
        if self.sdpa_kernel == "auto":
            skipped = () if self._prefers_cudnn else ("cudnn",)
            return next(kernel for kernel, fits in possible.items() if fits and kernel not in skipped)
        if not possible[self.sdpa_kernel]:
            raise self._refused(dtype, head_dim, dropout, mask)
        return self.sdpa_kernel

    def _refused(self, dtype: DType, head_dim: int, dropout: float, mask: bool | None) -> InvalidRequest:
        if self.sdpa_kernel == "flash" and mask is not None:
            return InvalidRequest("flash attention takes no mask; leave out --sdpa-kernel")
        if self.sdpa_kernel == "cudnn" and mask:
            return InvalidRequest("cuDNN attention takes no mask that is learnt; leave out --sdpa-kernel")
        sm = "sm{}{}".format(*self.gpu.capability)
        also = f" and dropout {dropout}" if dropout else ""
        return InvalidRequest(
            f"sdpa_kernel {self.sdpa_kernel!r} cannot run {dtype.label} with head size {head_dim}{also} on {sm}; "
            "leave it out"
        )

    @property
    def _prefers_cudnn(self) -> bool:
        """2.9 did so from cuDNN 9.9 on (pytorch #162073), 2.10 again not with its wheels' cuDNN."""
        versions = self.torch.has("prefers_cudnn_attention") or self.torch.version == (2, 9)
        return versions and self.gpu.capability in _PREFER_CUDNN

    def _takes(self, mask: bool | None) -> bool:
        return mask is None or self.torch.has("efficient_takes_masks")

    def _strided(self) -> str:
        if self.sdpa_kernel in {"auto", "math"}:
            return "math"
        raise InvalidRequest(
            f"sdpa_kernel {self.sdpa_kernel!r} cannot run attention over channels: they lie apart in memory; "
            "leave it out"
        )

    def _flash_ok(self, dtype: DType, head_dim: int, dropout: float, trained: bool) -> bool:
        if not self.torch.has("flash_attention_2"):
            return flash1.possible(dtype, head_dim, self.gpu.capability)
        if dtype.size != 2 or self.gpu.capability < (8, 0) or head_dim > 256:
            return False
        small = self.gpu.capability in {(8, 6), (8, 9), (12, 0), (12, 1)}
        return not (small and trained and (192 < head_dim <= 224 or (head_dim > 224 and dropout > 0)))

    def _efficient_ok(self, dtype: DType, head_dim: int) -> bool:
        if dtype is DType.bfloat16 and not self.has_bfloat16:
            return False
        aligned = 8 if dtype.size == 2 else 4
        return head_dim % aligned == 0 or (dtype.size == 4 and self.gpu.capability < (8, 0))

    def _cudnn_ok(self, dtype: DType, head_dim: int, dropout: float, trained: bool) -> bool:
        """Up to 128, on sm9x and sm10x to 256, backward just 256; dropout in sixteenths (sdp_utils.cpp, cuDNN 9.24)."""
        if dtype.size != 2 or self.gpu.capability < (8, 0) or head_dim % 8 or dropout * 16 % 1:
            return False
        wide = self.gpu.capability[0] in {9, 10} and head_dim <= 256 and (head_dim == 256 or not trained)
        return head_dim <= 128 or wide

    def flash_forward(
        self, batch: int, heads: int, queries: int, keys: int, dim: int, dropout: float
    ) -> tuple[int, ...]:
        """fp32 accumulators when few rows are split over the keys (flash_api.cpp, num_splits_heuristic)."""
        key_blocks = -(-keys // (256 if dim <= 64 else 128 if dim <= 128 else 64))
        splits = 1 if dropout else _num_splits(batch * heads * -(-queries // 64), 2 * self.gpu.num_sms, key_blocks)
        if splits == 1:
            return ()
        width = -(-dim // 32) * 32 if dim <= 128 else -(-dim // 64) * 64
        return 4 * splits * batch * heads * queries, 4 * splits * batch * heads * queries * width

    def flash_backward(self, batch: int, heads: int, tokens: int, dim: int) -> tuple[int, int]:
        """Row sums and the fp32 accumulator of dq, over tokens rounded up to 128 (flash_api.cpp, mha_bwd)."""
        rows = -(-tokens // 128) * 128
        width = -(-dim // 32) * 32 if dim <= 128 else -(-dim // 64) * 64
        return 4 * batch * heads * rows, 4 * batch * rows * heads * width

    def cudnn_attention_backward(self, batch: int, heads: int, tokens: int, dim: int) -> int:
        """The front end's part: an fp32 accumulator of dq and the row sums; the engine's own part is not known."""
        return 4 * batch * heads * tokens * (dim + 1)

    def efficient_backward(
        self, batch: int, heads: int, queries: int, keys: int, dim: int, dtype: DType, dropout: float
    ) -> int:
        """The kernel's fp32 accumulators (mem_eff_attention/kernel_backward.h, torch 2.14)."""
        rows, columns, in_registers = self._efficient_tiles(dtype, dim, dropout)
        floats = -(-queries // rows) * -(-dim // columns) * (4 + rows * columns)
        if not in_registers:
            splits = max(1, min(-(-keys // columns), 200 // max(batch * heads, 1)))
            floats += 2 * splits * columns * (-(-dim // rows) * rows)
        return batch * heads * 4 * (-(-floats // 4) * 4)

    def efficient_sums_rows(self, dtype: DType, dim: int) -> bool:
        """Whether the kernel makes the row sums of output times gradient itself (kKernelComputesDelta)."""
        return dtype.size == 2 and (self.gpu.capability >= (7, 5) or self._efficient_tiles(dtype, dim, 0)[2])

    def _efficient_tiles(self, dtype: DType, dim: int, dropout: float) -> tuple[int, int, bool]:
        """Tile of queries x keys, and whether the output stays in registers (16-bit and head size up to the rows).

        The kernel for head sizes up to 96 is for sm86 and sm89 alone, and knows no dropout.
        """
        large_smem = self.gpu.capability[0] in {8, 9, 10} and self.gpu.capability not in {(8, 6), (8, 9)}
        if dim <= 64 or (dtype.size == 4 and not large_smem):
            return 64, 64, True
        if dtype.size == 4:
            return 128, 64, True
        if self.gpu.capability < (8, 0) or dim > 128:
            return 128, 64, dim <= 128
        if large_smem:
            return 128, 128, True
        small = self.gpu.capability in {(8, 6), (8, 9)} and dim <= 96 and not dropout
        return (128, 64, True) if small else (64, 64, False)

    def layer_norm_blocks(self, rows: int, width: int) -> int:
        """Rows of partial sums of the weight's and of the bias's gradient for tall inputs, which are summed afterwards
        (layer_norm_kernel.cu, ConfigureAndLaunchGammaBetaBackwardKernel); 0 where one kernel makes the gradients."""
        is_tall = rows > 65536 and width / 32 < self.gpu.num_sms / 2
        if self.on_cpu or not is_tall or not self.torch.has("layer_norm_partial_sums"):
            return 0
        return min(32768 // -(-width // 32), -(-rows // 32))

    def batch_norm_staging(self, rows: int, channels: int, numbers: int) -> tuple[int, ...]:
        """``numbers`` floats per channel and block, and the semaphores, of a channels-last reduction over the rows
        that spans blocks (native/cuda/Normalization.cuh, flexible_launch_configs)."""
        width = min(last_pow2(channels), 32)
        height = min(last_pow2(-(-rows // 16)), 512 // width)
        width = min(last_pow2(channels), 512 // height)
        blocks = min(-(-rows // (height * 16)), 128)
        return (4 * numbers * channels * blocks, 4 * -(-channels // width)) if blocks >= 8 else ()

    def sort_scratch(self, count: int, keys: int) -> int:
        """cub's radix sort of ``count`` pairs of int64 with keys below ``keys``: histograms of 8-bit digits, one row of
        them for every tile, and a second pair of arrays where there is more than one digit. The tile is the policy's
        of the generation (cub/device/dispatch/tuning, as compiled into torch 2.14.1)."""
        if count <= 2304:  # one tile, one kernel
            return 1
        tile = 4608 if self.gpu.capability[0] >= 9 else 3840 if self.gpu.capability[0] == 8 else 2816
        passes = -(-(keys - 1).bit_length() // 8)
        pair = 2 * (-(-8 * count // 256) * 256) if passes > 1 else 0
        return 255 + 256 + 2048 * passes + 1024 * -(-count // tile) + pair

    def sum_scratch(self, shape: Shape, strides: Shape, target: Shape) -> tuple[int, ...]:
        """Global-memory scratch of a sum from ``shape`` to the broadcastable ``target`` (native/cuda/Reduce.cuh):
        a staging buffer and one counter per column of blocks."""
        target = (1,) * (len(shape) - len(target)) + target
        reduce, keep = reduction_dims(shape, strides, target)
        if not reduce:
            return ()
        return ReduceConfig(reduce, keep, self.gpu).scratch_bytes()


def _num_splits(rows: int, sms: int, key_blocks: int) -> int:
    """The fewest splits within 85 % of the best wave efficiency; one when the rows nearly fill the GPU."""
    if rows >= 0.8 * sms:
        return 1
    efficiency = {}
    for splits in range(1, min(128, sms, key_blocks) + 1):
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = rows * splits / sms
            efficiency[splits] = waves / -(-rows * splits // sms)
    best = max(efficiency.values())
    return next(splits for splits, value in efficiency.items() if value >= 0.85 * best)
