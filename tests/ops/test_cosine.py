"""The operators of cosine attention by hand: B = 2, H = 3 heads, N = 5 tokens, D = 8 channels."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

B, H, N, D = 2, 3, 5, 8
F16, F32 = DType.float16, DType.float32
ROWS = B * H * N
BYTES = ROWS * D * 4


def grads_of(run, watch, y):
    """Sizes of what the backward of ``y`` allocates, without the gradient that starts it."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    return watch.tensor_sizes()


def test_normalising_keeps_the_norm_before_and_after_its_clamp(run, parameter, watch):
    x = parameter(B, H, N, D)
    watch.reset()
    y = ops.normalize(x)
    assert watch.sizes() == [ROWS * 4, ROWS * 4, BYTES]
    assert watch.living() == 2 * ROWS * 4 + y.num_bytes


def test_the_gradient_of_a_normalised_vector(run, parameter, watch):
    y = ops.normalize(parameter(B, H, N, D))
    quotient = [BYTES] * 5  # x / norm, that / norm, the negated gradient, their product; gradient / norm
    clamped = [ROWS * 4, 4, ROWS, ROWS * 4]  # the sum over channels; zero, byte mask, selection
    norm = [BYTES, ROWS, BYTES]  # x / norm, where the norm is zero, their product with the gradient
    assert grads_of(run, watch, y) == [*quotient, *clamped, *norm]  # the sum of x's two gradients is in place


def test_under_autocast_the_norm_and_the_quotient_are_fp32(run, watch):
    x = Tensor.empty(run, (B, H, N, D), F16)
    run.autocast = Autocast(F16)
    watch.reset()
    assert ops.normalize(x).dtype is F32
    assert watch.sizes() == [ROWS * 4, ROWS * 4, BYTES]


def test_the_scale_of_the_logits(run, parameter, watch):
    scale = parameter(H, 1, 1)
    watch.reset()
    y = ops.exp(ops.clamp(scale))
    assert watch.sizes() == [H * 4, H * 4]
    assert watch.living() == y.num_bytes  # the exponential is saved, the clamped scale is not
    assert grads_of(run, watch, y) == [H * 4, 4, H, H * 4]  # product; zero, byte mask, selection


def test_relu_in_place_makes_nothing_forward_and_three_copies_backward(run, parameter, watch):
    hidden = ops.linear(parameter(1, N, 2), parameter(D, 2), parameter(D))
    watch.reset()
    y = ops.relu_(hidden)
    assert watch.sizes() == []
    assert y.storage is hidden.storage
    # zeros of the base; its copy, the clone of the written part, relu's gradient; then those of the linear layer
    assert grads_of(run, watch, y) == [*[N * D * 4] * 4, N * 2 * 4, D * 2 * 4, D * 4]


def test_relu_in_place_without_a_gradient_is_nothing(run, watch):
    hidden = ops.view(Tensor.empty(run, (N, D), F32), 1, N, D)
    watch.reset()
    assert not ops.relu_(hidden).requires_grad
    assert watch.sizes() == []


@pytest.mark.parametrize("channels_last", [True, False])
def test_pooling_a_channels_last_grid_makes_new_zeros_backward(run, parameter, watch, channels_last):
    x = ops.permute(parameter(B, 4, 4, D), 0, 3, 1, 2) if channels_last else ops.mul(parameter(B, D, 4, 4), 1.0)
    watch.reset()
    y = ops.adaptive_avg_pool2d(x)
    assert y.shape == (B, D, 1, 1)
    assert watch.sizes() == [B * D * 4]
    # the zeros; the gradient by pixel; its copy in the parameter's order, or the gradient of the product
    zeros = [B * D * 4] if channels_last else []
    assert grads_of(run, watch, y) == [*zeros, B * D * 16 * 4, B * D * 16 * 4]


def test_padding_by_nothing_keeps_the_order_of_the_gradient(run, parameter, watch):
    x = parameter(1, 2, 3, D)
    y = ops.permute(ops.pad_grid(x, 2, 3), 0, 2, 1, 3)
    # the gradient arrives with height and width swapped in memory, is cloned so, and copied into the parameter's order
    assert grads_of(run, watch, y) == [6 * D * 4, 6 * D * 4]
