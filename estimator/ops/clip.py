"""Clipping of gradients by their norm."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.storages import Storages
from ..engine.tensor import Tensor
from ..units import DType

__all__ = ["clip_grad_norm"]


def clip_grad_norm(grads: Sequence[Tensor], *, sharded: bool = False) -> Tensor:
    """``clip_grad_norm_`` by foreach: one norm per gradient, type by type, their stack, the total
    (torch/nn/utils/clip_grad.py).

    Of ``sharded`` gradients the stack is raised, summed over the ranks and its root taken (torch 2.14,
    distributed/tensor/_ops/_math_ops.py, ``_NormPartial``). The kernel borrows one fp32 number for every 65536 elements
    of the largest, per gradient (ForeachReduceOp.cu).
    """
    run = grads[0].run
    dtypes = list(dict.fromkeys(grad.dtype for grad in grads))[::-1]  # as foreach sorts them, see ``by_dtype``
    dtype = dtypes[0] if len(dtypes) == 1 else DType.float32
    norms: list[Storages] = []
    for own in dtypes:
        alike = [grad.numel for grad in grads if grad.dtype is own]
        per_chunk = run.workspace(4 * len(alike) * -(-max(alike) // 65536))
        norms.append(Storages(run, [own.size] * len(alike)))
        del per_chunk
    stacked = Tensor.empty(run, (len(grads),), dtype)
    over_ranks = [Tensor.empty(run, stacked.shape, dtype) for _ in range(3 * sharded)]
    del over_ranks[:2]
    total = Tensor.empty(run, (), dtype)
    del over_ranks, stacked, norms
    raised, reciprocal, coefficient = (Tensor.empty(run, (), dtype) for _ in range(3))
    del raised, reciprocal
    clamped = Tensor.empty(run, (), dtype)
    del coefficient, clamped
    return total
