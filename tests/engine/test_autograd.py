"""The engine's rules, on graphs of a few nodes. Sizes are chosen so that every tensor has its own number of bytes."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import Autocast, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.units import DType

KIB = 1024


def start_backward(run, loss):
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(loss)
    backward(loss, gradient)


def test_a_temporary_dies_when_its_last_name_goes(run, watch):
    # GIVEN a tensor of 4 KiB under one name
    x = Tensor.empty(run, (1024,), DType.float32)
    # WHEN it is viewed and the first name goes, THEN the view keeps its storage
    y = ops.view(x, 32, 32)
    del x
    assert watch.living() == 4 * KIB
    # WHEN the view goes too, THEN so does the storage
    del y
    assert watch.living() == 0


def test_a_saved_tensor_outlives_its_name_until_its_node_has_run(run, parameter, watch):
    x = parameter(256)
    watch.reset()
    hidden = ops.mul(x, 2.0)
    y = ops.gelu(hidden)  # saves its input
    del hidden
    assert watch.living() == 2 * KIB
    start_backward(run, y)
    del y
    assert watch.living() == KIB  # the gradient alone


def test_gradients_meet_in_place_when_the_first_is_solely_owned(run, parameter, watch):
    # x feeds two branches; both gradients are new tensors, so their sum reuses the first
    x = parameter(256)
    h = ops.mul(x, 2.0)
    y = ops.add(ops.gelu(h), ops.gelu(h))
    del h
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    backward(y, gradient)
    # ones 1 KiB, two gelu gradients, and one for the scaling; no fifth tensor for the sum
    assert watch.sizes() == [KIB, KIB, KIB, KIB]


def test_gradients_meet_out_of_place_when_the_first_is_shared(run, parameter, watch):
    # y = h + gelu(h): the gradient of y goes to both, so h's skip gradient is shared with the caller's
    x = parameter(256)
    h = ops.mul(x, 2.0)
    y = ops.add(h, ops.gelu(h))
    del h
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    backward(y, gradient)
    # ones, gelu's gradient, the out-of-place sum, the scaling's gradient
    assert watch.sizes() == [KIB, KIB, KIB, KIB]


def test_a_parameter_steals_a_gradient_that_nobody_else_holds(run, parameter, watch):
    x = parameter(256)
    y = ops.mul(x, 2.0)
    watch.reset()
    start_backward(run, y)
    assert watch.sizes("gradients") == [KIB]
    assert watch.sizes() == [KIB, KIB]  # ones, and the stolen gradient


def test_a_parameter_copies_a_gradient_that_is_shared(run, parameter, watch):
    # batch of one: the position embedding's gradient is the very tensor that flows on to the other addend
    x, position = parameter(256), parameter(256)
    y = ops.add(ops.mul(x, 2.0), position)
    watch.reset()
    start_backward(run, y)
    assert watch.sizes("gradients") == [KIB, KIB]
    assert len(watch.sizes()) == 3  # ones, the copy, the scaling's gradient (stolen)


def test_a_second_gradient_is_added_in_place(run, parameter, watch):
    x = parameter(256)
    for _ in range(2):
        y = ops.mul(x, 2.0)
        start_backward(run, y)
        del y
    assert watch.sizes("gradients") == [KIB]
    assert watch.living() == 2 * KIB  # the parameter and its one gradient


def test_broadcast_gradients_are_summed_then_cast(run, parameter, watch):
    # fp32 grad [8, 256] -> bias [256] in half: sum first (1 KiB), cast after (512 B)
    x, bias = parameter(8, 256), parameter(256)
    half = ops.to(bias, DType.float16)
    y = ops.add(x, half)
    watch.reset()
    start_backward(run, y)
    # ones; sum and cast for the bias; x's copy of the shared gradient; the bias's fp32 gradient
    assert watch.sizes() == [8 * KIB, KIB, 512, 8 * KIB, KIB]


def test_autocast_casts_a_weight_once_and_keeps_it_for_the_backward(run, parameter, watch):
    weight, x = parameter(16, 16), parameter(4, 16)
    watch.reset()
    run.autocast = Autocast(DType.float16)
    first = ops.linear(x, weight)
    second = ops.linear(x, weight)
    assert watch.sizes("autocast_weights") == [2 * 16 * 16, 2 * 4 * 16]
    run.autocast.weights.clear()
    run.autocast = None
    assert watch.living() == 2 * 16 * 16 + 2 * 4 * 16 + first.num_bytes + second.num_bytes


def test_no_grad_saves_nothing(run, parameter, watch):
    x = parameter(256)
    watch.reset()
    with run.no_grad():
        y = ops.gelu(ops.mul(x, 2.0))
    assert watch.living() == KIB
    assert not y.requires_grad
