"""How CUDA sums: the launch of a reduction, and what it borrows (native/cuda/Reduce.cuh, torch 2.14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .engine.tensor import Shape

if TYPE_CHECKING:
    from .kernels import Gpu

__all__ = ["ReduceConfig", "last_pow2", "reduction_dims"]

Dims = list[tuple[int, int]]  # (size, stride in elements), fastest first, neighbours merged


def reduction_dims(shape: Shape, strides: Shape, target: Shape) -> tuple[Dims, Dims]:
    """The dimensions that are summed and those that are kept on the way from ``shape`` to ``target``."""
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


class ReduceConfig:
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
        wide_pow2, high_pow2 = min(last_pow2(wide), limit), min(last_pow2(high), limit)
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


def last_pow2(value: int) -> int:
    """The largest power of two that is not above ``value``."""
    return 1 << (max(value, 1).bit_length() - 1)
