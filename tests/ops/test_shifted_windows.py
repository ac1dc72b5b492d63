"""torchvision's shifted windows by hand: bytes are written as products of a 4 x 6 grid and windows of 2 x 2."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

HEIGHT, WIDTH, SIDE = 4, 6, 2
PIXELS, AREA = HEIGHT * WIDTH, SIDE * SIDE
WINDOWS = PIXELS // AREA


def test_a_clone_with_zeros_copies_its_gradient_and_writes_zeros_into_it(run, parameter, watch):
    bias = parameter(3 * 8)
    watch.reset()
    zeroed = ops.clone_with_zeros(bias, 8)
    assert watch.living() == 3 * 8 * 4  # the clone; nothing is saved
    y = ops.mul(zeroed, 2.0)
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    # the product's gradient; the whole bias's, a clone of the keys' part of it, and zeros for that part
    assert watch.tensor_sizes() == [3 * 8 * 4, 3 * 8 * 4, 8 * 4, 8 * 4]
    assert bias.accumulator.grad.storage.num_bytes == 3 * 8 * 4


def test_a_clone_with_zeros_of_a_frozen_bias_has_no_graph(parameter):
    bias = parameter(3 * 8)
    bias.requires_grad = False
    assert ops.clone_with_zeros(bias, 8).node is None


def test_a_window_mask_is_made_anew_and_alone_survives(run, watch):
    x = Tensor.empty(run, (2 * WINDOWS, AREA, 8), DType.float32)
    watch.reset()
    mask = ops.window_mask(x, (HEIGHT, WIDTH), (SIDE, SIDE))
    assert mask.shape == (WINDOWS, AREA, AREA)
    assert mask.node is None
    pairs = WINDOWS * AREA * AREA
    # the regions' numbers, the windows' copy, the differences, and twice a byte mask with its result
    assert watch.sizes() == [PIXELS * 4, PIXELS * 4, pairs * 4, pairs, pairs * 4, pairs, pairs * 4]
    assert watch.living() == pairs * 4


def test_a_window_mask_has_the_type_of_its_tensor(run):
    x = Tensor.empty(run, (WINDOWS, AREA, 8), DType.bfloat16)
    mask = ops.window_mask(x, (HEIGHT, WIDTH), (SIDE, SIDE))
    assert mask.storage.num_bytes == WINDOWS * AREA * AREA * 2
