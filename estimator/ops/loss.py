"""Cross-entropy."""

from __future__ import annotations

from ..engine.autocast import cast_loss_to_float32, cast_to_float32, to
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..units import DType
from .pointwise import add, mul
from .reduce import kept_input, mean
from .shape import gather, reshape

__all__ = ["cross_entropy", "label_smoothing_cross_entropy", "log_softmax", "nll_loss"]

Grads = list["Tensor | None"]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``F.cross_entropy(logits [B, K], target [B])`` -> scalar.

    ``log_softmax`` runs at the logits' own type (it is called with an explicit dtype, which autocast respects) and
    saves its output; ``nll_loss`` is on the fp32 list, so autocast copies the result to fp32 and saves that too. Both
    live until the loss is there (aten/src/ATen/native/LossNLL.cpp).
    """
    logits = cast_loss_to_float32(logits)
    log_probabilities = log_softmax(logits, logits.dtype)
    return nll_loss(cast_to_float32(log_probabilities), target)


def label_smoothing_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """timm's ``LabelSmoothingCrossEntropy`` (timm 1.0.31, loss/cross_entropy.py): [B, K], [B] -> scalar."""
    log_probabilities = log_softmax(logits, DType.float32 if logits.run.autocasts_to_float32 else logits.dtype)
    nll = mul(gather(log_probabilities, target.alias((*target.shape, 1), (1, 1)), 1), -1.0)
    nll = reshape(nll, *target.shape)
    smooth_loss = mul(mean(log_probabilities, 1), -1.0)
    loss = add(mul(nll, 0.9), mul(smooth_loss, 0.1))
    return mean(loss, 0)


def log_softmax(x: Tensor, dtype: DType) -> Tensor:
    """``F.log_softmax(x, -1, dtype)``: saves its output.

    Half goes to float inside the kernel, bfloat16 is copied first, as in ``softmax``.
    """
    fused = x.dtype is DType.float16 and dtype is DType.float32 and not x.run.kernels.on_cpu
    operand = x if fused else to(x, dtype)
    out = Tensor.empty(x.run, x.shape, dtype)
    run, shape, source = x.run, x.shape, x.dtype

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return (Tensor.empty(run, shape, source if fused else saved[0].dtype),)

    return record(out, (operand,), backward, (out, *kept_input(operand)))


def nll_loss(x: Tensor, target: Tensor) -> Tensor:
    """``F.nll_loss(x [B, K], target [B])``, the mean: saves input, target and the total weight."""
    run, shape = x.run, x.shape
    out = Tensor.empty(run, (), x.dtype)
    total_weight = Tensor.empty(run, (), x.dtype)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return (Tensor.empty(run, shape, saved[0].dtype),)

    return record(out, (x,), backward, (x, target, total_weight))
