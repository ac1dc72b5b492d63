"""Losses of softened targets by hand: [B, K] logits, B = 4 images, K = 10 classes, in bytes."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

B, K = 4, 10
F16, F32, BF16, I64 = DType.float16, DType.float32, DType.bfloat16, DType.int64
WIDE, HALF = B * K * 4, B * K * 2


@pytest.fixture
def logits(run, parameter):
    """fp32, with a graph behind them."""
    return ops.mul(parameter(B, K), 1.0)


def labels(run):
    return Tensor.empty(run, (B,), I64)


def dense(run):
    return Tensor.empty(run, (B, K), F32)


def grads_of(run, watch, loss):
    gradient = ones_like(loss)
    watch.reset()
    backward(loss, gradient)
    return watch.tensor_sizes()


def test_smoothed_class_indices(run, watch, logits):
    target = labels(run)
    watch.reset()
    loss = ops.smoothed_cross_entropy(logits, target)
    # log-softmax; the loss of the labels and the total weight; sums of the rows and their negative; two masks of a
    # byte per image, a count and the 64-bit copy it is made from, the sum, the mean; both scaled, and added
    assert watch.sizes() == [WIDE, 4, 4, 4 * B, 4 * B, B, B, 8, 8 * B, 4, 4, 4, 4, 4]
    # to the labels' loss and the mean a scalar each, the sum's; the mask fills a row, negated; the gradient of the
    # picked labels, its sum with the expanded row's, and the logits' (twice: through the scaling)
    assert grads_of(run, watch, loss) == [4, 4, 4, 4 * B, 4 * B, WIDE, WIDE, WIDE, WIDE]


def test_under_autocast_only_the_picked_labels_are_widened(run, watch, logits):
    run.autocast = Autocast(F16)
    half, target = ops.to(logits, F16), labels(run)
    watch.reset()
    ops.smoothed_cross_entropy(half, target)
    # log-softmax in half, its fp32 copy for the labels, then the rows' sums in fp32
    assert watch.sizes()[:6] == [HALF, WIDE, 4, 4, 4 * B, 4 * B]


def test_probabilities_for_targets(run, watch, logits):
    target = dense(run)
    watch.reset()
    loss = ops.dense_cross_entropy(logits, target, smoothed=False)
    assert watch.sizes() == [WIDE, WIDE, 4, 4, 4]  # log-softmax, the product, its sum, negated, divided
    assert watch.living() == WIDE + 4  # log-softmax is saved, the product is not
    # scalars divided and negated; the target times the gradient; the logits', through the scaling
    assert grads_of(run, watch, loss) == [4, 4, WIDE, WIDE, WIDE]


def test_smoothing_makes_new_probabilities(run, watch, logits):
    target = dense(run)
    watch.reset()
    ops.dense_cross_entropy(logits, target, smoothed=True)
    assert watch.sizes() == [WIDE, WIDE, WIDE, WIDE, 4, 4, 4]


def test_a_half_log_softmax_meets_fp32_targets(run, watch, logits):
    run.autocast = Autocast(F16)
    half, target = ops.to(logits, F16), dense(run)
    watch.reset()
    ops.dense_cross_entropy(half, target, smoothed=False)
    assert watch.sizes() == [HALF, WIDE, 4, 4, 4]


def test_timms_soft_targets(run, watch, logits):
    run.autocast = Autocast(BF16)
    lower, target = ops.to(logits, BF16), dense(run)
    watch.reset()
    loss = ops.soft_target_cross_entropy(lower, target)
    # the target negated, the logits widened, log-softmax, the product, its sums, their mean
    assert watch.sizes() == [WIDE, WIDE, WIDE, WIDE, 4 * B, 4]
    assert watch.living() == 2 * WIDE + 4  # the negated target and log-softmax are saved
    # the mean's; the target times it; log-softmax's, in bf16, then in fp32 and scaled
    assert grads_of(run, watch, loss) == [4 * B, WIDE, WIDE, HALF, WIDE, WIDE]


def test_transformers_label_smoother(run, watch, logits):
    target, num_items = labels(run), Tensor.empty(run, (), I64)
    watch.reset()
    ops.label_smoother(logits, target, num_items)
    # log-softmax and its negative; a mask and the clamped labels; the picked and the summed; sum and quotient of the
    # first; sum, denominator and quotient of the second; both scaled, and added
    assert watch.sizes() == [WIDE, WIDE, B, 8 * B, 4 * B, 4 * B, 4, 4, 4, 8, 4, 4, 4, 4]


def test_the_smoother_counts_labels_that_nobody_counted(run, watch, logits):
    target = labels(run)
    watch.reset()
    ops.label_smoother(logits, target, None)
    counted = [8 * B, 8, 8]  # the mask as integers, their sum, the rest
    assert watch.sizes() == [WIDE, WIDE, B, 8 * B, 4 * B, 4 * B, *counted, 4, 4, 4, 8, 4, 4, 4, 4]


def test_the_smoothers_backward(run, watch, logits):
    target, num_items = labels(run), Tensor.empty(run, (), I64)
    loss = ops.label_smoother(logits, target, num_items)
    # scalars of both terms and their quotients; both masks; zeros to scatter into; the sum with the expanded rows;
    # negated; log-softmax's; scaled
    made = grads_of(run, watch, loss)
    assert sorted(made) == sorted([4, 4, 4, 4, 4 * B, 4 * B, WIDE, WIDE, WIDE, WIDE, WIDE])
