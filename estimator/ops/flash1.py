"""FlashAttention-1, the flash kernel of torch 2.0 and 2.1."""

from __future__ import annotations

from .. import flash1 as rules
from ..engine.autograd import Saved, record
from ..engine.run import Storage
from ..engine.tensor import Tensor
from ..units import DType
from .linear import count_attention_flops

__all__ = ["flash1"]

Grads = list["Tensor | None"]


def flash1(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v [B, H, N, D] -> [B, H, N, D] (aten/src/ATen/native/transformers/cuda/attention.cu and
    attention_backward.cu, torch 2.0 and 2.1).

    The kernel works on packed tokens [B * N, H, D]: operands that no view packs (tokens before images in memory) are
    copied for each call, and the output is made packed, images first, whatever q's layout. FlashAttention-2 keeps q's.
    Saves q, k, v, the output, a log-sum-exp, and the offsets of the sequences, int32 [B + 1] twice.
    """
    run = q.run
    batch, heads, tokens, dim = q.shape
    offsets = [Tensor.empty(run, (batch + 1,), DType.int32) for _ in range(2)]
    copies = [_packed(x) for x in (q, k, v)]
    out = _made_packed(q)
    count_attention_flops(out, q, k, 2)
    accumulator = run.workspace(rules.accumulator_bytes(batch, heads, tokens, dim, 128 if dim > 64 else 256))
    lse = Tensor.empty(run, (batch, heads, rules.rows(tokens)), DType.float32)
    del copies, accumulator
    turing = run.kernels.gpu.capability == (7, 5)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        copies = [_packed(x) for x in (*saved[:3], grad, saved[3])]
        grads_qkv = tuple(_made_packed(x) for x in saved[:3])
        count_attention_flops(grads_qkv[0], saved[0], saved[1], 5)
        row_sums = run.workspace(4 * batch * heads * rules.rows(tokens))
        block = 128 if dim > 64 or (turing and dim > 32) else 256
        accumulator = run.workspace(rules.accumulator_bytes(batch, heads, tokens, dim, block))
        del copies, row_sums, accumulator
        return grads_qkv

    return record(out, (q, k, v), backward, (q, k, v, out, lse, *offsets))


def _made_packed(x: Tensor) -> Tensor:
    """[B, H, N, D] that lies as [B * N, H, D]."""
    _, heads, tokens, dim = x.shape
    return Tensor.empty(x.run, x.shape, x.dtype, strides=(tokens * heads * dim, dim, heads * dim, 1))


def _packed(x: Tensor) -> list[Storage]:
    """The copy behind ``x.transpose(1, 2).reshape(B * N, H, D)``, where it is not a view."""
    batch, _, tokens, _ = x.shape
    is_view = batch == 1 or tokens == 1 or x.strides[0] == tokens * x.strides[2]
    return [] if is_view else x.run.workspace(x.num_bytes)
