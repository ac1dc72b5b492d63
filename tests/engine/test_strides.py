"""Strides of element-wise results against PyTorch's own iterator, and by hand where a dimension of one decides."""

from __future__ import annotations

import random

import pytest
from vitmem.engine.tensor import Tensor, pointwise_strides
from vitmem.units import DType


def seen(run, shape, strides):
    """A tensor of that geometry; its storage does not matter."""
    return Tensor.empty(run, (1,), DType.float32).alias(shape, strides)


@pytest.mark.parametrize(
    ("operands", "strides"),
    [
        # all row-major, whatever a dimension of one says
        ([((4, 1, 3), (3, 3, 1)), ((4, 1, 3), (3, 1, 1))], (3, 3, 1)),
        # the first operand orders the dimensions it has, the second the rest
        ([((1, 4, 3), (1, 1, 4)), ((2, 4, 3), (12, 3, 1))], (12, 1, 4)),
        # one head's bias, permuted out of a table, puts its dimension of one innermost
        ([((1, 1, 4, 4), (1, 1, 4, 1)), ((6, 1, 4, 4), (16, 16, 4, 1))], (16, 1, 4, 1)),
        # nobody knows: the order stays
        ([((1, 3, 1), (3, 1, 1)), ((2, 1, 1), (1, 1, 1))], (3, 1, 1)),
    ],
)
def test_strides_of_a_result(run, operands, strides):
    tensors = tuple(seen(run, *operand) for operand in operands)
    shape = tuple(max(sides) for sides in zip(*(tensor.shape for tensor in tensors)))
    assert pointwise_strides(shape, tensors) == strides


def random_operand(torch, rng, shape):
    own = [1 if rng.random() < 0.3 else side for side in shape]
    order = rng.sample(range(len(shape)), len(shape)) if rng.random() < 0.6 else list(range(len(shape)))
    tensor = torch.empty([own[dim] for dim in order]).permute([order.index(dim) for dim in range(len(shape))])
    return tensor.expand(shape) if rng.random() < 0.2 else tensor


def test_strides_are_pytorchs_wherever_a_dimension_is_larger_than_one(run):
    torch = pytest.importorskip("torch")
    rng = random.Random(0)
    for _ in range(2000):
        shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 5))]
        a, b = (random_operand(torch, rng, shape) for _ in range(2))
        result = a + b
        ours = pointwise_strides(tuple(result.shape), tuple(seen(run, tuple(t.shape), t.stride()) for t in (a, b)))
        steps = [(want, have) for side, want, have in zip(result.shape, result.stride(), ours) if side > 1]
        assert all(want == have for want, have in steps), (a.shape, a.stride(), b.shape, b.stride())
