"""Rows of a table by an index in host memory, and a sum in place through a view: T = 7 rows of H = 2, 9 indices."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import backward
from vitmem.engine.autograd import ones_like

T, H, COUNT = 7, 2, 9


def grads_of(run, watch, y):
    """Sizes of what the backward of ``y`` allocates, without the gradient that starts it."""
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)


def test_an_index_on_the_host_is_borrowed_and_not_saved(run, parameter, watch):
    table = parameter(T, H)
    watch.reset()
    y = ops.rows_of_host_index(table, COUNT)
    assert y.shape == (COUNT, H)
    assert watch.sizes("workspaces") == [8 * COUNT]
    assert watch.living() == y.num_bytes == COUNT * H * 4
    grads_of(run, watch, y)
    # zeros like the table, which become its gradient; the index on the device once more, and what sorts it
    assert watch.tensor_sizes() == [T * H * 4]
    assert watch.sizes("workspaces") == [8 * COUNT] * 4 + [1]


def test_a_sum_into_a_view_copies_the_gradient_twice_and_clones_it(run, parameter, watch):
    x, other = parameter(T, H), parameter(T, H)
    view = ops.view(ops.mul(x, 1.0), 1, T, H)
    addend = ops.view(ops.mul(other, 1.0), 1, T, H)
    watch.reset()
    y = ops.add_to_view_(view, addend)
    assert watch.sizes() == []
    assert y.storage is view.storage
    grads_of(run, watch, y)
    # the view's gradient made whole, the copy for what is viewed, the clone for the addend, then the two products
    assert watch.tensor_sizes() == [T * H * 4] * 5
