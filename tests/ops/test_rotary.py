"""The operators of rotary position embeddings by hand: B = 2, H = 3 heads, N = 5 tokens, D = 8 channels."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

B, H, N, D = 2, 3, 5, 8
F32 = DType.float32
BYTES = B * H * N * D * 4


def grads_of(run, watch, y):
    """Sizes of what the backward of ``y`` allocates, without the gradient that starts it."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    return watch.tensor_sizes()


@pytest.mark.parametrize(("operator", "extra"), [(ops.sin, 1), (ops.cos, 2)])
def test_sine_and_cosine_save_their_input_and_make_each_other(run, parameter, watch, operator, extra):
    x = ops.mul(parameter(N, D), 1.0)
    watch.reset()
    y = operator(x)
    assert watch.sizes() == [N * D * 4]
    del x
    assert watch.living() == y.num_bytes  # the input was made before; it is alive
    # cos (and for cos its negative of sin), the product, then the gradient of the product with a number
    assert grads_of(run, watch, y) == [N * D * 4] * (extra + 2)


def test_the_input_of_a_sine_is_alive_until_its_backward(run, parameter, watch):
    weight = parameter(N, D)
    watch.reset()
    y = ops.sin(ops.mul(weight, 1.0))
    assert watch.living() == 2 * N * D * 4
    del y
    assert watch.living() == 0


def test_a_change_of_sign_saves_nothing(run, parameter, watch):
    weight = parameter(B, H, N, D)
    watch.reset()
    y = ops.neg(ops.mul(weight, 1.0))
    assert watch.living() == BYTES  # the input went
    assert grads_of(run, watch, y) == [BYTES, BYTES]


def test_every_other_channel_is_a_view_with_a_whole_gradient(run, parameter, watch):
    x = parameter(B, H, N, D)
    watch.reset()
    y = ops.narrow(x, 3, 1, D, 2)
    assert (y.shape, y.strides[3], watch.sizes()) == ((B, H, N, D // 2), 2, [])
    # both ends of an odd width: 0, 2, 4 and 1, 3
    assert [ops.narrow(parameter(5), 0, start, 5, 2).shape for start in (0, 1)] == [(3,), (2,)]
    assert grads_of(run, watch, y) == [BYTES]


def test_a_stack_of_last_dimensions_returns_views(run, parameter, watch):
    x, z = parameter(N, D), parameter(N, D)
    watch.reset()
    y = ops.stack([x, z], 2)
    assert (y.shape, watch.sizes()) == ((N, D, 2), [N * D * 2 * 4])
    # parameters get their gradients in their own layout: a copy of each view with a step of 2
    assert grads_of(run, watch, y) == [N * D * 4] * 2


def test_repeated_heads_are_a_copy_whose_gradient_is_summed(run, parameter, watch):
    x = parameter(B, H, N, D)
    watch.reset()
    y = ops.repeat_interleave(x, 2, 1)
    assert (y.shape, watch.sizes()) == ((B, 2 * H, N, D), [2 * BYTES])
    assert grads_of(run, watch, y) == [BYTES]


def test_repeated_channels_are_a_copy(run, watch):
    x = Tensor.empty(run, (N, D), F32)
    watch.reset()
    assert ops.repeat_interleave(x, 2, 1).shape == (N, 2 * D)
    assert watch.sizes() == [N * 2 * D * 4]


def test_each_image_keeps_its_own_rows_of_a_table(run, watch):
    tokens, table = Tensor.empty(run, (B, N, D), F32), Tensor.empty(run, (H, N, 2 * D), F32)
    watch.reset()
    kept = ops.random_tokens(tokens, 3)
    # noise, its sorted copy, the order, and what the sort borrows
    assert (kept.shape, watch.sizes()) == ((B, 3), [B * N * 4, B * N * 4, B * N * 8, N * 8])
    watch.reset()
    rows = ops.gather_tokens(ops.expand(ops.view(table, 1, *table.shape), B, *table.shape), kept)
    assert (rows.shape, watch.sizes()) == ((B, H, 3, 2 * D), [B * H * 3 * 2 * D * 4])


def test_a_learnt_table_is_scattered_for_every_image_and_then_summed(run, parameter, watch):
    table = parameter(H, N, D)
    kept = ops.random_tokens(Tensor.empty(run, (B, N, D), F32), 3)
    y = ops.gather_tokens(ops.expand(ops.view(table, 1, *table.shape), B, *table.shape), kept)
    assert grads_of(run, watch, y) == [BYTES, H * N * D * 4]
