"""Cross-entropy."""

from __future__ import annotations

from ..engine.autocast import cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor

__all__ = ["cross_entropy"]

Grads = list["Tensor | None"]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``F.cross_entropy(logits [B, K], target [B])`` -> scalar.

    ``log_softmax`` runs at the logits' own type (it is called with an explicit dtype, which autocast respects) and
    saves its output; ``nll_loss`` is on the fp32 list, so autocast copies the result to fp32 and saves that too.
    """
    return _nll_loss(cast_to_float32(_log_softmax(logits)), target)


def _log_softmax(x: Tensor) -> Tensor:
    out = Tensor.empty(x.run, x.shape, x.dtype)
    run, shape = x.run, x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return (Tensor.empty(run, shape, saved[0].dtype),)

    return record(out, (x,), backward, (out,))


def _nll_loss(x: Tensor, target: Tensor) -> Tensor:
    run, shape = x.run, x.shape
    out = Tensor.empty(run, (), x.dtype)
    total_weight = Tensor.empty(run, (), x.dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return (Tensor.empty(run, shape, saved[0].dtype),)

    return record(out, (x,), backward, (x, target, total_weight))
