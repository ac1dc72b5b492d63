"""Attention with a mask that is trained, and the position bias that makes one, by hand: B = 2, H = 2, N = 5, D = 4."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.errors import InvalidRequest
from vitmem.kernels import Kernels
from vitmem.units import DType

B, H, N, D = 2, 2, 5, 4
HEADS, SCORES, MASK = B * H * N * D * 4, B * H * N * N * 4, H * N * N * 4


def queries_keys_values(parameter):
    """Token by token in memory, as a fused kernel writes their gradients."""
    return [ops.transpose(parameter(B, N, H, D), 1, 2) for _ in range(3)]


def grads_of(run, watch, y):
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    return watch.tensor_sizes()


def test_the_efficient_kernel_pads_the_mask_and_makes_its_gradient_per_image(run, parameter, watch):
    q, k, v = queries_keys_values(parameter)
    mask = parameter(1, H, N, N)
    watch.reset()
    y = ops.scaled_dot_product_attention(q, k, v, 0.0, mask)
    # rows of 8, seed and offset, the result, a log-sum-exp for 32 rows
    assert watch.sizes() == [H * N * 8 * 4, 8, 8, HEADS, B * H * 32 * 4]
    # q, k, v, the mask's for every image with rows of 16, their sum, and back through slice and padding
    expected = [HEADS] * 3 + [B * H * N * 16 * 4, MASK, H * N * 8 * 4, MASK]
    assert grads_of(run, watch, y) == expected


def test_the_math_kernel_adds_the_mask_in_place_and_sums_its_gradient(run, parameter, watch):
    q, k, v = queries_keys_values(parameter)
    mask = parameter(1, H, N, N)
    run.kernels = Kernels(sdpa_kernel="math")
    watch.reset()
    y = ops.scaled_dot_product_attention(q, k, v, 0.0, mask)
    # scaled q and k, both copied for bmm, the scores, their softmax, v copied for bmm, the result
    assert watch.tensor_sizes() == [HEADS, HEADS, HEADS, HEADS, SCORES, SCORES, HEADS, HEADS]
    # softmax's guard: a byte per score and per row, a scalar
    assert watch.sizes("workspaces") == [B * H * N * N, B * H * N, 4]
    # d v, d weights, d scores, the mask's sum, d k and d q, their scaling, and all three in the order of the leaves
    assert grads_of(run, watch, y) == [HEADS, SCORES, SCORES, MASK] + [HEADS] * 7


def test_a_head_that_the_efficient_kernel_cannot_read_leaves_math():
    kernels = Kernels()
    assert kernels.attention(DType.float16, 64, 0.0, mask=True) == "efficient"
    assert kernels.attention(DType.float16, 12, 0.0, mask=True) == "math"
    assert kernels.attention(DType.float32, 12, 0.0, mask=True) == "efficient"
    assert kernels.attention(DType.float32, 15, 0.0, mask=True) == "math"
    with pytest.raises(InvalidRequest, match="takes no mask"):
        Kernels(sdpa_kernel="flash").attention(DType.float16, 64, 0.0, mask=True)
    with pytest.raises(InvalidRequest, match="cannot run"):
        Kernels(sdpa_kernel="efficient").attention(DType.float16, 12, 0.0, mask=True)


def test_padding_at_the_start_is_a_copy_both_ways(run, parameter, watch):
    x = parameter(H, N, N)
    watch.reset()
    y = ops.pad_start(x, 1)
    assert y.shape == (H, N + 1, N + 1)
    assert watch.sizes() == [H * (N + 1) * (N + 1) * 4]
    assert grads_of(run, watch, y) == [MASK]


def test_bmm_repeats_a_frozen_weight_where_the_layout_does_not_fold(run, parameter, watch):
    weight = parameter(3, D)
    x = ops.transpose(parameter(B, D, N), 1, 2)  # [B, N, D], channel by channel in memory
    watch.reset()
    ops.linear(x, weight)
    assert watch.sizes() == [B * N * D * 4, B * N * 3 * 4]  # the rows are copied for one product
    weight.requires_grad = False
    watch.reset()
    y = ops.linear(x, weight)
    assert watch.sizes() == [B * N * 3 * 4]  # no copy
    assert grads_of(run, watch, y) == [B * N * D * 4] * 2  # and its copy in the order of the leaf


def test_rows_of_a_table_that_is_an_activation(run, parameter, watch):
    table = ops.mul(parameter(9, H), 1.0)
    index = Tensor.empty(run, (N * N,), DType.int64)
    watch.reset()
    y = ops.rows_of(table, index)
    assert watch.sizes() == [N * N * H * 4]
    assert grads_of(run, watch, y) == [9 * H * 4, 9 * H * 4]  # zeros to add into, then the product's gradient
    # the wrapped index, the linear one, the same sorted, an arange, the order, and next to nothing to sort so few
    assert watch.sizes("workspaces") == [N * N * 8] * 5 + [1]


@pytest.mark.parametrize(("side", "sort"), [(8, 4607), (9, 74751)])
def test_many_offsets_are_sorted_in_two_passes(run, parameter, watch, side, sort):
    rows = (2 * side - 1) ** 2  # 225 rows take 8 bits, 289 take 9
    index = Tensor.empty(run, (65 * 65,), DType.int64)
    bias = ops.view(ops.rows_of(parameter(rows, H), index), 65, 65, H)
    y = ops.contiguous(ops.permute(bias, 2, 0, 1))
    grads_of(run, watch, y)
    # the gradient arrives head by head and is copied
    index_bytes = 65 * 65 * 8
    assert watch.sizes("workspaces") == [index_bytes] * 2 + [65 * 65 * H * 4] + [index_bytes] * 3 + [sort]
