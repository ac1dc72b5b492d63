"""Convolution and batch normalisation by hand: formats, what is saved, what the backward makes and borrows.

B = 2 images, C = 8 channels, S = 6 pixels a side. Sizes and strides were read from PyTorch's own CUDA build.
"""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.kernels import Kernels
from vitmem.ops.memory_format import is_channels_last
from vitmem.units import DType

B, C, S = 2, 8, 6
F32, F16, BF16 = DType.float32, DType.float16, DType.bfloat16
IMAGE = B * C * S * S


def tokens_as_image(x):
    """[B, S * S, C] seen as [B, C, S, S]: channels-last."""
    return ops.reshape(ops.permute(x, 0, 2, 1), B, C, S, S)


def play_backward(run, watch, y, gradient=None):
    """Start the backward of ``y``; its allocations are what ``watch`` sees."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y) if gradient is None else gradient
    watch.reset()
    backward(y, gradient)


@pytest.mark.parametrize(
    ("stride", "padding", "side"), [((2, 2), (1, 1), 3), ((1, 1), (1, 1), 6), ((3, 3), (0, 0), 2), ((2, 1), (0, 1), 2)]
)
def test_a_convolutions_size(run, parameter, stride, padding, side):
    y = ops.conv2d(Tensor.empty(run, (B, C, S, S), F32), parameter(16, C, 3, 3), None, stride, padding)
    assert y.shape[:3] == (B, 16, side)
    assert not is_channels_last(y)


def test_what_a_convolution_may_borrow_is_bounded(run):
    x, weight = Tensor.empty(run, (B, 3, S, S), F16), Tensor.empty(run, (16, 3, 2, 2), F16)
    y = ops.conv2d(x, weight, None, (2, 2))
    assert run.unknown[-1][0] == len(run.events)
    # 2 x 9 positions of 3 x 2 x 2, the image and the fp32 weight with 8 channels, and the result
    assert run.unknown[-1][1] == 18 * 12 * 2 + B * 8 * S * S * 2 + 4 * 16 * 8 * 4 + y.num_bytes


def test_a_depthwise_convolution_over_tokens_stays_channels_last(run, parameter, watch):
    x, weight, bias = parameter(B, S * S, C), parameter(C, 1, 3, 3), parameter(C)
    y = ops.conv2d(tokens_as_image(x), weight, bias, (1, 1), (1, 1))
    assert is_channels_last(y)
    play_backward(run, watch, y, y.detach())
    # d input, d weight, d bias: nothing is copied
    assert watch.sizes() == [IMAGE * 4, C * 9 * 4, C * 4]
    assert x.accumulator.grad.is_contiguous


def test_an_output_gradient_in_another_format_is_copied_for_the_kernel(run, parameter, watch):
    x, weight = parameter(B, C, S, S), parameter(C, C, 3, 3)
    y = ops.conv2d(x, weight, None, (1, 1), (1, 1))
    play_backward(run, watch, y, tokens_as_image(Tensor.empty(run, (B, S * S, C), F32)))
    assert watch.sizes("workspaces") == [IMAGE * 4]
    assert watch.tensor_sizes() == [IMAGE * 4, C * C * 9 * 4]


def test_batch_norm_saves_its_input_and_two_fp32_numbers_per_channel(run, parameter, watch):
    x, weight, bias = parameter(B, C, S, S), parameter(C), parameter(C)
    watch.reset()
    y = ops.batch_norm(ops.mul(x, 1.0), weight, bias)
    assert watch.sizes() == [IMAGE * 4, IMAGE * 4, C * 4, C * 4]
    assert watch.living() == 2 * IMAGE * 4 + 2 * C * 4
    play_backward(run, watch, y)
    assert watch.sizes()[:3] == [IMAGE * 4, C * 4, C * 4]


def test_cudnn_copies_a_gradient_in_another_format_and_the_native_kernel_does_not(run, parameter, watch):
    # GIVEN gradients that come from tokens, and so are channels-last, for row-major inputs
    for dtype, copies in ((F16, 1), (BF16, 0)):
        run.autocast = Autocast(dtype)
        x = ops.to(parameter(B, C, S, S), dtype)
        y = ops.batch_norm(x, parameter(C), parameter(C))
        run.autocast = None
        # WHEN batch norm runs backward, THEN cuDNN (fp16) first makes a tensor of the input's format
        play_backward(run, watch, y, tokens_as_image(Tensor.empty(run, (B, S * S, C), dtype)))
        assert watch.sizes()[: copies + 3] == [IMAGE * 2] * (copies + 1) + [C * 4] * 2
        assert "workspaces" not in [kind for _, kind, _ in watch._new()]


def test_native_batch_norm_borrows_sums_where_channels_are_last(run, parameter, watch):
    x = ops.to(tokens_as_image(parameter(B, S * S, C)), BF16)
    y = ops.batch_norm(x, parameter(C), parameter(C))
    assert is_channels_last(y)
    play_backward(run, watch, y, y.detach())
    assert watch.sizes("workspaces") == [C * 4, C * 4]


@pytest.mark.parametrize(
    ("rows", "channels", "blocks"),
    [(392, 128, 1), (3136, 128, 13), (2352, 192, 10), (1792, 192, 1), (200_000, 128, 128)],
)
def test_a_channels_last_reduction_spans_blocks_from_eight_on(rows, channels, blocks):
    # 16 rows per thread, 16 threads high
    expected = (4 * 4 * channels * blocks, 4 * channels // 32) if blocks > 1 else ()
    assert Kernels().batch_norm_staging(rows, channels, 4) == expected


def test_a_repeated_tensors_gradient_is_summed(run, parameter, watch):
    x = parameter(1, C, S, S)
    y = ops.repeat(x, B, 1, 1, 1)
    assert y.num_bytes == IMAGE * 4
    play_backward(run, watch, y)
    assert watch.tensor_sizes() == [IMAGE // B * 4]


def test_softmax_copies_what_is_not_row_major_for_the_kernel_only(run, parameter, watch):
    scores = ops.permute(parameter(B, 5, 5, 2), 0, 3, 1, 2)
    watch.reset()
    y = ops.softmax(scores)
    assert y.is_contiguous
    assert watch.sizes("workspaces") == [y.num_bytes]
