"""torchao 0.18.0 (optim/adam.py, subclass_8bit.py, subclass_4bit.py) with the blocks of 256 that Trainer asks for.

The update of one parameter is compiled. What it borrows is what the inductor of torch 2.14 allocates for it: read off
its generated code for the shapes that vision transformers have, under a CUDA build without a device.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ..engine.tensor import Shape, Tensor
from ..units import DType
from .row import Group, Kept, KeptOf, Optimizer, StateOf, each

__all__ = ["ROWS"]

_BLOCK = 256
_SMALLEST = 4096


def _quantised(shape: Shape) -> bool:
    count = prod(shape)
    return count >= _SMALLEST and count % _BLOCK == 0


def _averages(bits: int) -> KeptOf:
    """Codes, one scale per block, and a map of the codes' values, for each average; small ones as the parameter."""

    def kept(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
        if not _quantised(shape):
            return (Kept(shape, dtype),) * 2
        count = prod(shape)
        codes = Kept((count * bits // 8,), DType.uint8)
        return (codes, Kept((count // _BLOCK,), DType.float32), Kept((2**bits,), DType.float32)) * 2

    return kept


def _in_one_kernel(shape: Shape) -> bool:
    """Whether one loop can run over the elements by row and by block.

    Blocks end where some dimension does, or they split the last dimension or the first.
    """
    sizes = [size for size in shape if size > 1]
    inner = 1
    while sizes and inner * sizes[-1] < _BLOCK:
        inner *= sizes.pop()
    ends = len(sizes) <= 1 or inner == 1 or inner * sizes[-1] == _BLOCK
    return ends and _BLOCK % inner == 0 and (inner * sizes[-1]) % _BLOCK == 0


def _borrow_8bit(p: Tensor) -> None:
    """The scales of both averages, and their scaled values in fp32."""
    if _in_one_kernel(p.shape):
        return
    scales = [_floats(p, p.numel // _BLOCK) for _ in range(2)]
    scaled = [_floats(p, p.numel) for _ in range(2)]
    del scaled, scales


def _borrow_4bit(p: Tensor) -> None:
    """The scales by way of two partial maxima per block; then scaled values in fp32, and codes of 8 bytes."""
    blocks = p.numel // _BLOCK
    first, second = _floats(p, 2 * blocks), _floats(p, 2 * blocks)
    first_scales = _floats(p, blocks)
    del first
    second_scales = _floats(p, blocks)
    del second
    scaled = [_floats(p, p.numel) for _ in range(2)]
    codes = [Tensor.empty(p.run, (p.numel,), DType.int64) for _ in range(2)]
    del scaled, codes, first_scales, second_scales


def _floats(p: Tensor, count: int) -> Tensor:
    return Tensor.empty(p.run, (count,), DType.float32)


def _adamw(borrow: Callable[[Tensor], None]) -> Callable[[Group, StateOf], None]:
    def step(group: Group, state_of: StateOf) -> None:
        for p in group.parameters:
            state_of(p)
            if _quantised(p.shape):
                borrow(p)

    return step


_NOT_MODELLED = (
    "the first step of a torchao optimizer, which compiles its kernels and tries them out: it borrows copies of the "
    "largest parameter's tensors and as much as the GPU's L2 cache holds",
)

ROWS = {
    "adamw_torch_8bit": Optimizer(
        source="torchao 0.18.0, block_size 256, its update compiled by torch 2.14",
        kept=_averages(8),
        step=each(_adamw(_borrow_8bit)),
        not_modelled=_NOT_MODELLED,
    ),
    "adamw_torch_4bit": Optimizer(
        source="torchao 0.18.0, block_size 256, its update compiled by torch 2.14",
        kept=_averages(4),
        step=each(_adamw(_borrow_4bit)),
        not_modelled=_NOT_MODELLED,
    ),
}
