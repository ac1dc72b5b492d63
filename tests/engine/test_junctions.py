"""Where gradients meet: what a view changes. Read from PyTorch's own CUDA build."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import backward
from vitmem.engine.autograd import ones_like

KIB = 1024


def test_gradients_meet_out_of_place_when_the_first_is_a_view(run, parameter, watch):
    # GIVEN a tensor that two branches view before they use it
    x = parameter(16, 16)
    h = ops.mul(x, 2.0)
    y = ops.add(ops.gelu(ops.view(h, 256)), ops.gelu(ops.view(h, 256)))
    del h
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    # WHEN their gradients are viewed back and meet
    backward(y, gradient)
    # THEN the base of the first keeps its memory: ones, two gelu gradients, their sum, and the scaling
    assert watch.sizes() == [KIB] * 5


def test_the_gradient_of_a_column_major_operand_is_column_major(run, parameter, watch):
    # GIVEN a matrix whose columns lie one after another
    x, weight = parameter(1, 3, 16), parameter(3, 3)
    columns = ops.view(ops.permute(x, 0, 2, 1), 16, 3)
    assert columns.strides == (1, 16)
    # WHEN a product of it runs backward
    y = ops.matmul(columns, weight)
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    # THEN both gradients are laid out like their parameters, and are kept without a copy
    assert watch.sizes() == [3 * 3 * 4, 16 * 3 * 4]
