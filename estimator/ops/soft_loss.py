"""Cross-entropy with softened targets: smoothed class indices, or dense targets [B, K] as mixup makes them."""

from __future__ import annotations

from ..engine.autocast import cast_loss_to_float32, cast_to_float32
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..units import DType
from .loss import log_softmax, nll_loss
from .pointwise import add, div, elementwise, like, mul
from .reduce import mean, sum_, sum_all
from .shape import gather

__all__ = ["dense_cross_entropy", "label_smoother", "smoothed_cross_entropy", "soft_target_cross_entropy"]

Grads = list["Tensor | None"]


def smoothed_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``F.cross_entropy(logits [B, K], target [B], label_smoothing=...)`` -> scalar.

    ATen/native/LossNLL.cpp, ``cross_entropy_loss_label_smoothing``: the negative log-likelihood, and the mean of all
    log-probabilities over the targets that are not ignored.
    """
    logits = cast_loss_to_float32(logits)
    log_probabilities = log_softmax(logits, logits.dtype)
    nll = nll_loss(cast_to_float32(log_probabilities), target)
    smooth = mul(sum_(log_probabilities, 1), -1.0)
    ignored = _compared(target)
    smooth = _masked_fill_(smooth, ignored)
    smooth_mean = _mean_of_kept(smooth, ignored)
    scaled_mean = mul(smooth_mean, 1.0)
    scaled_nll = mul(nll, 1.0)
    return add(scaled_nll, scaled_mean)


def _mean_of_kept(smooth: Tensor, ignored: Tensor) -> Tensor:
    kept = Tensor.empty(ignored.run, ignored.shape, DType.bool)
    count = _count(kept)
    return div(sum_all(smooth), count)


def dense_cross_entropy(logits: Tensor, target: Tensor, *, smoothed: bool) -> Tensor:
    """``F.cross_entropy`` with probabilities [B, K] for targets (``cross_entropy_loss_prob_target``) -> scalar.

    Label smoothing makes new targets from the given ones.
    """
    logits = cast_loss_to_float32(logits)
    log_probabilities = log_softmax(logits, logits.dtype)
    if smoothed:
        scaled = mul(target, 1.0)
        target = mul(scaled, 1.0)
        del scaled
    product = mul(log_probabilities, target)
    total = sum_all(product)
    negated = mul(total, -1.0)
    return mul(negated, 1.0)


def soft_target_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """timm's ``SoftTargetCrossEntropy`` (timm 1.0.31, loss/cross_entropy.py): [B, K], [B, K] -> scalar."""
    negated = mul(target, -1.0)
    log_probabilities = log_softmax(logits, DType.float32 if logits.run.autocasts_to_float32 else logits.dtype)
    loss = sum_(mul(negated, log_probabilities), 1)
    return mean(loss, 0)


def label_smoother(logits: Tensor, labels: Tensor, num_items: Tensor | None) -> Tensor:
    """transformers' ``LabelSmoother`` (5.24, trainer_pt_utils.py), outside autocast: [B, K], [B] -> scalar.

    Its names live to its end; without ``num_items`` it counts the labels itself.
    """
    batch, _ = logits.shape
    log_probs = mul(log_softmax(logits, logits.dtype), -1.0)
    padding_mask = _compared(labels.alias((batch, 1), (1, 1)))
    index = Tensor.empty(labels.run, (batch, 1), DType.int64)
    nll_loss = gather(log_probs, index, 1)
    smoothed_loss = _sum_of_rows(log_probs)
    nll_loss = _masked_fill_(nll_loss, padding_mask)
    smoothed_loss = _masked_fill_(smoothed_loss, padding_mask)
    denominator = num_items or _number_of_labels(padding_mask)
    nll_loss = div(sum_all(nll_loss), denominator)
    smoothed_loss = _divided(smoothed_loss, denominator)
    return _weighted_sum(nll_loss, smoothed_loss)


def _divided(smoothed_loss: Tensor, denominator: Tensor) -> Tensor:
    """``smoothed_loss.sum() / (denominator * classes)``."""
    total = sum_all(smoothed_loss)
    return div(total, like(denominator))


def _weighted_sum(nll_loss: Tensor, smoothed_loss: Tensor) -> Tensor:
    nll = mul(nll_loss, 1.0)
    return add(nll, mul(smoothed_loss, 1.0))


def _number_of_labels(padding_mask: Tensor) -> Tensor:
    """``padding_mask.numel() - padding_mask.long().sum()``."""
    wide = Tensor.empty(padding_mask.run, padding_mask.shape, DType.int64)
    padded = Tensor.empty(padding_mask.run, (), DType.int64)
    del wide
    return like(padded)


def _sum_of_rows(x: Tensor) -> Tensor:
    """``x.sum(-1, keepdim=True, dtype=torch.float32)`` of [B, K]: the kernel widens; the gradient is a view."""
    out = Tensor.empty(x.run, (x.shape[0], 1), DType.float32)
    scratch = x.run.workspace(*x.run.kernels.sum_scratch(x.shape, x.strides, out.shape))
    del scratch
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (grad.alias(shape, (grad.strides[0], 0)),)

    return record(out, (x,), backward)


def _compared(target: Tensor) -> Tensor:
    """``target == ignore_index``."""
    return Tensor.empty(target.run, target.shape, DType.bool)


def _count(mask: Tensor) -> Tensor:
    """``mask.sum()``: the kernel sums no bytes, a copy of eight bytes per element is made for it."""
    count = Tensor.empty(mask.run, (), DType.int64)
    widened = mask.run.scratch(8 * mask.numel)
    del widened
    return count


def _masked_fill_(x: Tensor, mask: Tensor) -> Tensor:
    """``x.masked_fill_(mask, 0.0)``: in place, saves the mask; backward fills a copy of the gradient."""
    filled = x.alias(x.shape, x.strides)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (elementwise(grad, grad),)

    return record(filled, (x,), backward, (mask,))
