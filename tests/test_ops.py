"""Every operator by hand: what it allocates and leaves saved, and what its backward makes and borrows.

B = 2 images, N = 5 tokens, C = 8 channels, H = 2 heads, D = 4: bytes are written as products.
"""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

B, N, C, H, D = 2, 5, 8, 2, 4
F32, F16, BF16 = DType.float32, DType.float16, DType.bfloat16
ROWS = B * N


def grads_of(run, watch, y, *, workspaces=False):
    """Sizes of what the backward of ``y`` allocates, without the gradient that starts it."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    return watch.sizes("workspaces") if workspaces else watch.tensor_sizes()


def saved_by(run, watch, make):
    """Bytes that stay after ``make()`` besides its outputs."""
    watch.reset()
    out = make()
    outs = out if isinstance(out, tuple) else (out,)
    return watch.living() - sum({id(o.storage): o.storage.num_bytes for o in outs}.values()), out


def test_linear_with_bias_is_one_addmm(run, parameter, watch):
    x, weight, bias = parameter(B, N, C), parameter(3 * C, C), parameter(3 * C)
    saved, y = saved_by(run, watch, lambda: ops.linear(x, weight, bias))
    assert saved == 0  # input and weight are saved, both are parameters here
    assert y.shape == (B, N, 3 * C)
    # d input, d weight, d bias (a column sum of the gradient)
    assert grads_of(run, watch, y) == [ROWS * C * 4, 3 * C * C * 4, 3 * C * 4]


def test_linear_without_bias_makes_the_weights_gradient_first(run, parameter, watch):
    x, weight = parameter(B, N, C), parameter(3 * C, C)
    y = ops.linear(x, weight)
    assert grads_of(run, watch, y) == [3 * C * C * 4, ROWS * C * 4]


def test_linear_under_autocast_keeps_half_copies(run, parameter, watch):
    x, weight, bias = parameter(B, N, C), parameter(C, C), parameter(C)
    run.autocast = Autocast(F16)
    watch.reset()
    y = ops.linear(ops.mul(x, 1.0), weight, bias)
    # fp32 product, then bias, weight, input in half, then the result
    assert watch.sizes() == [ROWS * C * 4, C * 2, C * C * 2, ROWS * C * 2, ROWS * C * 2]
    run.autocast.weights.clear()
    run.autocast = None
    # the fp32 input is gone, its half copy and the weight's are saved; the bias is not
    assert watch.living() == ROWS * C * 2 + C * C * 2 + y.num_bytes


def test_a_frozen_weight_does_not_need_the_input(run, parameter, watch):
    x, weight, bias = parameter(B, N, C), parameter(C, C), parameter(C)
    weight.requires_grad = False
    watch.reset()
    y = ops.linear(ops.mul(x, 1.0), weight, bias)
    assert watch.living() == y.num_bytes  # the input went


def test_cublas_gets_a_copy_of_rows_that_are_not_apart(run, parameter, watch):
    # one latent query, expanded to every image: rows with a step of 0
    latent, weight = parameter(1, 1, C), parameter(3 * C, C)
    watch.reset()
    y = ops.linear(ops.expand(latent, B, -1, -1), weight)
    assert watch.sizes() == [B * 3 * C * 4, B * C * 4]  # the result, then the borrowed copy
    # the weight's gradient needs the rows once more, the latent's does not
    assert grads_of(run, watch, y, workspaces=True) == [B * C * 4]


def test_batched_matmul_copies_what_it_cannot_fold(run, parameter, watch):
    # heads behind a transpose: [B, H, N, D] of a [B, N, H, D] in memory
    q = ops.transpose(parameter(B, N, H, D), 1, 2)
    k = ops.transpose(parameter(B, N, H, D), 1, 2)
    watch.reset()
    scores = ops.matmul(q, ops.transpose(k, 2, 3))
    assert scores.shape == (B, H, N, N)
    assert watch.sizes() == [B * H * N * D * 4, B * H * N * D * 4, B * H * N * N * 4]


def test_layer_norm_saves_its_input_and_two_fp32_numbers_per_row(run, parameter, watch):
    weight, bias = parameter(C), parameter(C)
    weight.dtype = bias.dtype = BF16
    x = Tensor.empty(run, (B, N, C), BF16)
    x.requires_grad, x.accumulator = True, parameter(B, N, C).accumulator
    saved, y = saved_by(run, watch, lambda: ops.layer_norm(x, weight, bias))
    assert saved == 2 * ROWS * 4
    assert grads_of(run, watch, y)[:3] == [ROWS * C * 2, C * 2, C * 2]


def test_rms_norm_saves_one_fp32_number_per_row(run, parameter, watch):
    x, weight = parameter(B, N, C), parameter(C)
    saved, y = saved_by(run, watch, lambda: ops.rms_norm(x, weight))
    assert saved == ROWS * 4
    assert grads_of(run, watch, y) == [ROWS * C * 4, C * 4]


def test_normalisations_of_tall_inputs_sum_the_gradients_of_their_weights_in_two_steps(run, parameter, watch):
    """What torch 2.14.1 allocated on an A100 that was not there, in order."""
    summed = [384, 417_792, 8]  # the sum of 2,049 rows of partial sums, its staging and semaphores
    for rows, steps in ((65_536, 0), (65_537, 1)):
        for norm, num_weights in ((ops.rms_norm, 1), (ops.layer_norm, 2)):
            y = norm(parameter(rows, 96), *(parameter(96) for _ in range(num_weights)))
            gradient = ones_like(y)
            watch.reset()
            backward(y, gradient)
            partial = [786_816] * num_weights + summed * num_weights
            assert watch.sizes() == [rows * 384, *[384] * num_weights, *(partial * steps)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (F16, [B * H * N * N * 4]),  # half goes to float inside one kernel
        (BF16, [B * H * N * N * 4, B * H * N * N * 4]),  # bfloat16 is copied to float first
        (F32, [B * H * N * N * 4]),
    ],
)
def test_softmax_under_autocast_is_fp32(run, watch, source, expected):
    x = Tensor.empty(run, (B, H, N, N), source)
    run.autocast = Autocast(F16)
    watch.reset()
    ops.softmax(x)
    assert watch.sizes() == expected


def test_softmax_backward_borrows_the_product_of_gradient_and_output(run, parameter, watch):
    x = parameter(B, H, N, N)
    y = ops.softmax(x)
    assert grads_of(run, watch, y, workspaces=True) == [B * H * N * N * 4]


def test_gelu_saves_its_input_only(run, parameter, watch):
    h = ops.mul(parameter(ROWS, C), 1.0)
    watch.reset()
    y = ops.gelu(h)
    del h
    assert watch.living() == y.num_bytes  # h was made before: it stays, nothing else was added


def test_dropout_keeps_a_byte_per_element(run, parameter, watch):
    x = parameter(B, N, C)
    saved, _ = saved_by(run, watch, lambda: ops.dropout(x, 0.1))
    assert saved == B * N * C
    watch.reset()
    assert ops.dropout(x, 0.0) is x
    assert watch.sizes() == []


def test_stochastic_depth_keeps_one_number_per_image(run, parameter, watch):
    x = parameter(B, N, C)
    saved, _ = saved_by(run, watch, lambda: ops.bernoulli_scale(x))
    assert saved == B * 4


def test_convolution_keeps_half_copies_of_image_and_kernel(run, parameter, watch):
    image, kernel, bias = Tensor.empty(run, (B, 3, 8, 8), F32), parameter(C, 3, 4, 4), parameter(C)
    run.autocast = Autocast(F16)
    watch.reset()
    y = ops.conv2d(image, kernel, bias, (4, 4))
    run.autocast.weights.clear()
    run.autocast = None
    assert y.shape == (B, C, 2, 2)
    assert watch.living() - y.num_bytes == B * 3 * 64 * 2 + C * 3 * 16 * 2
    # no gradient of the image; kernel and bias in half, then in fp32
    assert grads_of(run, watch, y) == [C * 48 * 2, C * 2, C * 48 * 4, C * 4]


def test_a_remainder_of_pixels_is_dropped(run):
    y = ops.conv2d(Tensor.empty(run, (1, 3, 9, 11), F32), Tensor.empty(run, (C, 3, 4, 4), F32), None, (4, 4))
    assert y.shape == (1, C, 2, 2)


def test_packed_attention_stacks_and_copies_three_gradients(run, parameter, watch):
    # timm's packed qkv: dq, dk, dv, their stack, and its copy back to [B, N, 3C]
    u = B * N * C * 4
    qkv = ops.permute(ops.view(ops.mul(parameter(B, N, 3 * C), 1.0), B, N, 3, H, D), 2, 0, 3, 1, 4)
    q, k, v = ops.unbind(qkv, 0)
    watch.reset()
    y = ops.scaled_dot_product_attention(q, k, v)
    # seed, offset, output, log-sum-exp over tokens rounded up to 32
    assert watch.sizes() == [8, 8, u, B * H * 32 * 4]
    out = ops.reshape(ops.transpose(y, 1, 2), B, N, C)
    assert out.storage is y.storage  # the fused kernels write token-major: no copy
    assert grads_of(run, watch, out)[:5] == [u, u, u, 3 * u, 3 * u]


def test_flash_attention_of_half_inputs(run, parameter, watch):
    q = ops.transpose(Tensor.empty(run, (B, 300, 12, 64), F16), 1, 2)
    watch.reset()
    ops.scaled_dot_product_attention(q, q, q)
    # output, fp32 log-sum-exp unpadded, two uint64 of random state and one unused
    assert watch.sizes() == [B * 300 * 12 * 64 * 2, B * 12 * 300 * 4, 16, 8]


def test_flash_attention_splits_the_keys_of_few_rows(run, watch):
    # 1 x 2 heads x 10 blocks of 64 queries on 216 half SMs: 3 blocks of 256 keys are shared out to 3 splits
    q = ops.transpose(Tensor.empty(run, (1, 640, H, 64), F16), 1, 2)
    watch.reset()
    ops.scaled_dot_product_attention(q, q, q)
    assert watch.sizes("workspaces") == [4 * 3 * H * 640, 4 * 3 * H * 640 * 64]


def test_cat_gradients_are_views(run, parameter, watch):
    token, x = parameter(1, 1, C), parameter(B, N, C)
    y = ops.cat([ops.expand(token, B, -1, -1), x], 1)
    # the token's gradient is summed over the batch; x's view is not laid out like x, so it is copied
    assert grads_of(run, watch, y) == [B * N * C * 4, C * 4]


def test_selecting_the_class_token_makes_a_full_gradient(run, parameter, watch):
    x = parameter(B, N, C)
    assert grads_of(run, watch, ops.select(x, 1, 0)) == [B * N * C * 4]


def test_cross_entropy_under_autocast(run, parameter, watch):
    logits, target = parameter(B, 10), Tensor.empty(run, (B,), DType.int64)
    run.autocast = Autocast(F16)
    half = ops.to(logits, F16)
    watch.reset()
    ops.cross_entropy(half, target)
    # log-softmax in half, its fp32 copy, the loss, the total weight
    assert watch.sizes() == [B * 10 * 2, B * 10 * 4, 4, 4]


def test_patch_dropout_keeps_the_whole_order(run, parameter, watch):
    x = ops.mul(parameter(B, N, C), 1.0)
    saved, y = saved_by(run, watch, lambda: ops.keep_random_tokens(x, 2))
    assert y.shape == (B, 2, C)
    assert saved == B * N * 8


def test_column_sum_scratch_of_an_a100():
    """facts of aten/src/ATen/native/cuda/Reduce.cuh: [M, C] -> [C] needs 512 * C * blocks bytes."""
    from vitmem.kernels import Kernels

    kernels = Kernels()
    mib = [
        kernels.sum_scratch((25216, width), (width, 1), (1, width))[0] / 2**20 for width in (96, 192, 384, 768, 1024)
    ]
    assert mib == pytest.approx([4.6, 18.5 * 2 - 0.06, 73.9, 108, 108], abs=0.06)
    assert kernels.sum_scratch((197, 768), (768, 1), (1, 768)) == ()
