"""The mask of shifted windows by hand, and a padded image."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import Tensor
from vitmem.units import DType

F16, I64 = DType.float16, DType.int64


def test_the_mask_of_shifted_windows_is_made_step_by_step(run, watch):
    height, width, window = 4, 6, 2
    x = Tensor.empty(run, (1, height, width, 8), F16)
    watch.reset()
    mask = ops.shift_mask(x, height, width, window)
    windows, tokens, pixels = 6, 4, height * width
    regions = [side * size for side in (height, width) for size in (1, 8, 1, 8, 8)]  # byte masks, casts, their sum
    fills = [2 * windows * tokens**2, windows * tokens**2, 2 * windows * tokens**2, windows * tokens**2]
    assert watch.tensor_sizes() == [
        8 * height, 8 * width,  # row and column numbers
        *regions,
        8 * height, 8 * pixels, 2 * pixels,  # three times the row, plus the column, in the type of x
        2 * pixels,  # window by window
        *fills, 2 * windows * tokens**2,
    ]  # fmt: skip
    assert mask.shape == (windows, tokens, tokens)
    assert mask.dtype is F16
    assert not mask.requires_grad
    assert watch.living() == mask.num_bytes


def test_one_column_of_windows_is_in_their_order_already(run, watch):
    counts = []
    for width in (4, 2):
        watch.reset()
        ops.shift_mask(Tensor.empty(run, (1, 4, width, 8), F16), 4, width, 2)
        counts.append(len(watch.tensor_sizes()))
    assert counts[0] == counts[1] + 1


def test_a_padded_image_is_a_copy(run, watch):
    x = Tensor.empty(run, (2, 3, 5, 6), F16)
    watch.reset()
    padded = ops.pad_image(x, 8, 8)
    assert padded.shape == (2, 3, 8, 8)
    assert watch.tensor_sizes() == [2 * 2 * 3 * 8 * 8]


def test_unsqueeze_steps_over_the_dimension_it_stands_before(run, parameter, watch):
    x = parameter(3, 4)
    watch.reset()
    assert ops.unsqueeze(x, 0).strides == (12, 4, 1)
    assert ops.unsqueeze(x, 1).strides == (4, 4, 1)
    assert ops.unsqueeze(x, 2).strides == (4, 1, 1)
    assert watch.sizes() == []
