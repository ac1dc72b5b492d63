"""What CUDA kernels borrow from the allocator, and which kernel runs: by GPU generation and dtype, as torch 2.14."""

from __future__ import annotations

import dataclasses

from .engine.tensor import Shape
from .errors import InvalidRequest, NotModelled
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Kernel choice and workspace sizes (bytes) of one GPU under torch 2.14.1."""

    gpu: Gpu = dataclasses.field(default_factory=Gpu)
    sdpa_kernel: str = "auto"

    @property
    def cublas_workspace_bytes(self) -> int:
        """One per (handle, stream): 8.125 MiB, on sm9x to sm12x 32 MiB (aten/src/ATen/cuda/CublasHandlePool.cpp).

        A training process holds two: the main thread's and the autograd thread's; neither is ever freed.
        """
        return 32 * 2**20 if 9 <= self.gpu.capability[0] <= 12 else 8_519_680

    def attention(
        self,
        dtype: DType,
        head_dim: int,
        dropout: float,
        *,
        masked: bool = False,
        learnt: bool = True,
        dense: bool = True,
    ) -> str:
        """The kernel that runs (sdp_utils.cpp): flash, efficient, cudnn or math.

        A mask leaves efficient and math, and cudnn if it is not ``learnt`` (no gradient is wanted of it); queries, keys
        or values whose last dimension is not dense leave math.
        """
        if masked:
            return self._masked(dtype, head_dim, learnt)
        if not dense:
            return self._strided()
        if self.sdpa_kernel != "auto":
            return self._forced(dtype, head_dim)
        if self.gpu.capability in _PREFER_CUDNN and self._cudnn_ok(dtype, head_dim):
            return "cudnn"
        if self._flash_ok(dtype, head_dim, dropout):
            return "flash"
        return "efficient" if self._efficient_ok(dtype, head_dim) else "math"

    def _masked(self, dtype: DType, head_dim: int, learnt: bool) -> str:
        if self.sdpa_kernel == "auto":
            if not learnt and self.gpu.capability in _PREFER_CUDNN and self._cudnn_ok(dtype, head_dim):
                return "cudnn"
            return "efficient" if self._efficient_ok(dtype, head_dim) else "math"
        if self.sdpa_kernel == "flash":
            raise InvalidRequest("flash attention takes no mask; leave out --sdpa-kernel")
        if self.sdpa_kernel == "cudnn":
            raise NotModelled("cuDNN attention with a mask is not modelled; leave out --sdpa-kernel")
        return self._forced(dtype, head_dim)

    def _strided(self) -> str:
        if self.sdpa_kernel in {"auto", "math"}:
            return "math"
        raise InvalidRequest(
            f"sdpa_kernel {self.sdpa_kernel!r} cannot run attention over channels: they lie apart in memory; "
            "leave it out"
        )

    def _flash_ok(self, dtype: DType, head_dim: int, dropout: float) -> bool:
        if dtype.size != 2 or self.gpu.capability < (8, 0) or head_dim > 256:
            return False
        small = self.gpu.capability in {(8, 6), (8, 9), (12, 0), (12, 1)}
        return not (small and (192 < head_dim <= 224 or (head_dim > 224 and dropout > 0)))

    def _efficient_ok(self, dtype: DType, head_dim: int) -> bool:
        if dtype is DType.bfloat16 and self.gpu.capability < (8, 0):
            return False
        aligned = 8 if dtype.size == 2 else 4
        return head_dim % aligned == 0 or (dtype.size == 4 and self.gpu.capability < (8, 0))

    def _cudnn_ok(self, dtype: DType, head_dim: int) -> bool:
        """``check_cudnn_tensor_shapes``: up to 128, on Hopper 256 (cuDNN 9.10 and later, sdp_utils.cpp)."""
        widest = 256 if self.gpu.capability[0] == 9 else 128
        return dtype.size == 2 and self.gpu.capability >= (8, 0) and head_dim % 8 == 0 and head_dim <= widest

    def _forced(self, dtype: DType, head_dim: int) -> str:
        kernel = self.sdpa_kernel
        possible = {
            "flash": self._flash_ok(dtype, head_dim, 0.0),
            "efficient": self._efficient_ok(dtype, head_dim),
            "cudnn": self._cudnn_ok(dtype, head_dim),
            "math": True,
        }
        if not possible[kernel]:
            sm = "sm{}{}".format(*self.gpu.capability)
            raise InvalidRequest(
                f"sdpa_kernel {kernel!r} cannot run {dtype.label} with head size {head_dim} on {sm}; leave it out"
            )
        return kernel

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

    def efficient_backward(self, batch: int, heads: int, queries: int, keys: int, dim: int, dtype: DType) -> int:
        """The kernel's fp32 accumulators (mem_eff_attention/kernel_backward.h, torch 2.14)."""
        rows, columns, in_registers = self._efficient_tiles(dtype, dim)
        floats = -(-queries // rows) * -(-dim // columns) * (4 + rows * columns)
        if not in_registers:
            splits = max(1, min(-(-keys // columns), 200 // max(batch * heads, 1)))
            floats += 2 * splits * columns * (-(-dim // rows) * rows)
        return batch * heads * 4 * (-(-floats // 4) * 4)

    def _efficient_tiles(self, dtype: DType, dim: int) -> tuple[int, int, bool]:
        """Tile of queries x keys, and whether the output stays in registers (16-bit and head size up to the rows)."""
        if dtype.size == 4:
            return (64, 64, True) if dim <= 64 or self.gpu.capability < (8, 0) else (128, 64, True)
        if dim <= 64:
            return 64, 64, True
        large_smem = self.gpu.capability[0] in {8, 9} and self.gpu.capability not in {(8, 6), (8, 9)}
        if dim <= 96 and not large_smem and self.gpu.capability >= (8, 0):
            return 128, 64, True
        if dim <= 128:
            return (128, 128, True) if large_smem else (64, 64, False)
        return (128, 64, False) if large_smem else (64, 64, False)

    def layer_norm_backward(self, rows: int, width: int, dtype: DType) -> int:
        """Partial sums of the weight's and bias's gradients for tall inputs (layer_norm_kernel.cu, since torch 2.8)."""
        if rows <= 65536 or width / 32 >= self.gpu.num_sms / 2:
            return 0
        blocks = min(32768 // -(-width // 32), -(-rows // 32))
        return 2 * blocks * width * dtype.size

    def batch_norm_staging(self, rows: int, channels: int, numbers: int) -> tuple[int, ...]:
        """``numbers`` floats per channel and block, and the semaphores, of a channels-last reduction over the rows
        that spans blocks (native/cuda/Normalization.cuh, flexible_launch_configs)."""
        width = min(_last_pow2(channels), 32)
        height = min(_last_pow2(-(-rows // 16)), 512 // width)
        width = min(_last_pow2(channels), 512 // height)
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
        reduce, keep = _reduction_dims(shape, strides, target)
        if not reduce:
            return ()
        return _ReduceConfig(reduce, keep, self.gpu).scratch_bytes()


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


Dims = list[tuple[int, int]]  # (size, stride in elements), fastest first, neighbours merged


def _reduction_dims(shape: Shape, strides: Shape, target: Shape) -> tuple[Dims, Dims]:
    reduced = sorted((stride, size) for size, stride, to in zip(shape, strides, target) if size != 1 and to == 1)
    kept = sorted((stride, size) for size, stride, to in zip(shape, strides, target) if size != 1 and to != 1)
    return _merged(reduced), _merged(kept)


def _merged(dims: list[tuple[int, int]]) -> Dims:
    merged: Dims = []
    for stride, size in dims:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


class _ReduceConfig:
    """``setReduceConfig`` for a 4-byte accumulator, step by step."""

    def __init__(self, reduce: Dims, keep: Dims, gpu: Gpu) -> None:
        self.gpu = gpu
        self.inputs = _product(reduce)
        self.outputs = _product(keep)
        self.on_fastest = not keep or reduce[0][1] < keep[0][1]
        self.output_vector = 1
        wide, high = (self.inputs, self.outputs) if self.on_fastest else (self.outputs, self.inputs)
        if (reduce if self.on_fastest else keep)[0][1] == 1:
            if self.on_fastest and wide >= 128 and len(reduce) == 1:
                wide //= 4
            elif not self.on_fastest:
                self.output_vector = _vector_size(reduce, keep)
                wide //= self.output_vector
        limit = 512 // self.output_vector
        wide_pow2, high_pow2 = min(_last_pow2(wide), limit), min(_last_pow2(high), limit)
        width = min(wide_pow2, 32)
        self.height = min(high_pow2, limit // width)
        self.width = min(wide_pow2, limit // self.height)

    def scratch_bytes(self) -> tuple[int, ...]:
        """Bytes of the staging buffer and of the semaphores; nothing when a block does a whole output alone."""
        step_in, step_out = (self.width, 1) if self.on_fastest else (1, self.width)
        if -(-self.inputs // step_in) < min(self.height * 16, 256):
            return ()
        step_in *= self.height
        per_thread = -(-self.inputs // step_in)
        target = self.gpu.num_sms * (self.gpu.threads_per_sm // (self.width * self.height))
        grid = -(-(self.outputs // self.output_vector) // step_out)
        if per_thread < 256 or grid > target:
            return ()
        blocks = max(-(-per_thread // 256), min(-(-target // grid), -(-per_thread // 16)))
        if blocks <= 1:
            return ()
        size = 4 * self.outputs * blocks
        return size if self.on_fastest else size * self.width * self.output_vector, 4 * grid


def _vector_size(reduce: Dims, keep: Dims) -> int:
    size = 4
    for value in (keep[0][0], *(stride for _, stride in (*reduce, *keep[1:]))):
        while value % size:
            size //= 2
    return size


def _product(dims: Dims) -> int:
    result = 1
    for size, _ in dims:
        result *= size
    return result


def _last_pow2(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)
