"""bitsandbytes 0.50.2 (optim/optimizer.py, optim/ademamix.py): states of 32 bits, or of 8 in blocks of 256.

The kernels update in place and borrow nothing. One quantile map for each state serves all parameters. Paged states are
CUDA managed memory, which PyTorch's allocator does not see.
"""

from __future__ import annotations

from math import prod

from ..engine.tensor import Shape
from ..units import DType
from .row import Kept, KeptOf, Optimizer

__all__ = ["ROWS"]

_BLOCK = 256
_SMALLEST_8BIT = 4096
_SMALLEST_PAGED = 100_000

#: Copies of the parameter in each state: AdEMAMix keeps two averages of the gradients in its first.
_ADAM, _ADEMAMIX, _ONE = (1, 1), (2, 1), (1,)


def _states(slots: tuple[int, ...], bits: int, *, paged: bool) -> KeptOf:
    def kept(shape: Shape, dtype: DType) -> tuple[Kept, ...]:
        count = prod(shape)
        seen = not paged or count < _SMALLEST_PAGED
        shapes = [shape if slot == 1 else (slot, *shape) for slot in slots if seen]
        if bits == 32 or count < _SMALLEST_8BIT:
            return tuple(Kept(of_state, DType.float32) for of_state in shapes)
        maps = [Kept((256,), DType.float32, shared=f"map {i}") for i in range(len(slots))]
        codes = [Kept(of_state, DType.uint8) for of_state in shapes]
        maxima = [Kept((slot * -(-count // _BLOCK),), DType.float32) for slot in slots]
        return (*maps, *maxima, *codes) if slots == _ADEMAMIX else (*maps, *codes, *maxima)

    return kept


#: Types that every kernel takes; RMSprop's 32-bit one, which updates the small tensors in any case, knows no bfloat16
#: (backends/cuda/ops.py).
_DTYPES = frozenset({DType.float32, DType.float16, DType.bfloat16})
_NO_BFLOAT16 = _DTYPES - {DType.bfloat16}


def _row(slots: tuple[int, ...], bits: int, *, paged: bool = False, dtypes: frozenset[DType] = _DTYPES) -> Optimizer:
    """Trainer keeps the tables of embeddings in 32 bits (transformers 5.24, trainer.py)."""
    each = sum(slots) * bits // 8
    managed = (
        f"paged optimizer state ({each} bytes for each element of a tensor of {_SMALLEST_PAGED:,} and more): CUDA "
        "managed memory, which moves between the GPU and the host and is not in PyTorch's figures"
    )
    return Optimizer(
        source="bitsandbytes 0.50.2",
        kept=_states(slots, bits, paged=paged),
        kept_of_embedding=_states(slots, 32, paged=paged),
        not_modelled=(managed,) if paged else (),
        dtypes=dtypes,
    )


ROWS = {
    "adamw_bnb_8bit": _row(_ADAM, 8),
    "adamw_8bit": _row(_ADAM, 8),
    "paged_adamw_32bit": _row(_ADAM, 32, paged=True),
    "paged_adamw_8bit": _row(_ADAM, 8, paged=True),
    "ademamix": _row(_ADEMAMIX, 32),
    "ademamix_8bit": _row(_ADEMAMIX, 8),
    "paged_ademamix_32bit": _row(_ADEMAMIX, 32, paged=True),
    "paged_ademamix_8bit": _row(_ADEMAMIX, 8, paged=True),
    "lion_32bit": _row(_ONE, 32),
    "lion_8bit": _row(_ONE, 8),
    "paged_lion_32bit": _row(_ONE, 32, paged=True),
    "paged_lion_8bit": _row(_ONE, 8, paged=True),
    "rmsprop_bnb": _row(_ONE, 32, dtypes=_NO_BFLOAT16),
    "rmsprop_bnb_32bit": _row(_ONE, 32, dtypes=_NO_BFLOAT16),
    "rmsprop_bnb_8bit": _row(_ONE, 8, dtypes=_NO_BFLOAT16),
}
