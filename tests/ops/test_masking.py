"""What masked pre-training and tables of positions add: B = 2 images, N = 5 tokens, C = 8 channels."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

B, N, C = 2, 5, 8
F32, F16, I64 = DType.float32, DType.float16, DType.int64


def play_backward(run, watch, y):
    """``y.backward()`` with a gradient of ones; its allocations are what ``watch`` sees."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)


def test_an_embedding_saves_its_index_and_adds_into_a_table_of_zeros(run, parameter, watch):
    table, index = parameter(9, C), Tensor.empty(run, (1, N), I64)
    watch.reset()
    y = ops.embedding(table, index)
    assert y.shape == (1, N, C)
    assert watch.sizes() == [N * C * 4]
    play_backward(run, watch, y)
    assert watch.sizes() == [9 * C * 4]


@pytest.mark.parametrize(("count", "borrowed"), [(3072, []), (3073, [8 * 3073] * 6 + [4 * 3073 * C])])
def test_many_indices_are_sorted_first(run, parameter, watch, count, borrowed):
    y = ops.embedding(parameter(count, C), Tensor.empty(run, (1, count), I64))
    play_backward(run, watch, y)
    assert watch.sizes("workspaces") == borrowed
    assert watch.tensor_sizes() == [count * C * 4]


def test_argsort_drops_the_sorted_values(run, watch):
    noise = Tensor.empty(run, (B, N), F32)
    watch.reset()
    order = ops.argsort(noise)
    assert (order.shape, order.dtype) == ((B, N), I64)
    assert watch.tensor_sizes() == [B * N * 4, B * N * 8]
    assert watch.living() == B * N * 8


def test_repeating_is_a_copy_whose_gradient_is_summed(run, parameter, watch):
    token = parameter(1, 1, C)
    watch.reset()
    y = ops.repeat(token, B, N, 1)
    assert y.shape == (B, N, C)
    assert watch.sizes() == [B * N * C * 4]
    play_backward(run, watch, y)
    assert watch.tensor_sizes() == [C * 4]


def test_an_index_is_repeated_in_memory(run, watch):
    ids = Tensor.empty(run, (B, N), I64)
    watch.reset()
    y = ops.repeat(ops.view(ids, B, N, 1), 1, 1, C)
    assert (y.shape, y.requires_grad) == ((B, N, C), False)
    assert watch.sizes() == [B * N * C * 8]


def test_a_square_keeps_its_input_and_makes_two_temporaries_in_its_backward(run, parameter, watch):
    x = ops.mul(parameter(B, N), 1.0)
    watch.reset()
    y = ops.power(x)
    del x
    assert watch.sizes() == [B * N * 4]
    assert watch.living() == B * N * 4
    play_backward(run, watch, y)
    # x ** 1, twice that, the gradient; then the gradient of the product before
    assert watch.sizes() == [B * N * 4] * 4


def test_a_square_is_fp32_under_autocast(run, watch):
    x = Tensor.empty(run, (B, N), F16)
    run.autocast = Autocast(F16)
    watch.reset()
    assert ops.power(x).dtype is F32
    assert watch.sizes() == [B * N * 4] * 2


def test_a_whole_sums_gradient_is_a_view(run, parameter, watch):
    x = parameter(B, N)
    watch.reset()
    y = ops.sum_all(ops.mul(x, 1.0))
    assert y.shape == ()
    assert watch.tensor_sizes() == [B * N * 4, 4]
    play_backward(run, watch, y)
    assert watch.sizes() == [B * N * 4]  # of the product


def test_a_vector_is_expanded_to_new_dimensions(run, parameter, watch):
    vector = parameter(C)
    y = ops.expand(vector, B, 1, -1)
    assert (y.shape, y.strides) == ((B, 1, C), (0, 0, 1))
    play_backward(run, watch, y)
    assert watch.sizes() == [C * 4]
