"""Re-entrant checkpointing on one small segment."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Module, Tensor, backward
from vitmem.engine.autograd import ones_like
from vitmem.errors import InvalidRequest

KIB = 1024


class Segment(Module):
    """gelu(gelu(x)) of 1 KiB each."""

    def forward(self, x: Tensor, *others: object) -> Tensor:
        x = ops.gelu(x)
        x = ops.gelu(x)
        return x


@pytest.fixture
def segment(run, parameter):
    run.reentrant = True
    segment = Segment(parameter.scope)
    segment.checkpointed = True
    return segment


def test_only_the_arguments_stay_and_all_of_the_segment_is_made_again(run, parameter, watch, segment):
    h = ops.mul(parameter(256), 2.0)
    watch.reset()
    y = segment(h)
    assert watch.living() == KIB
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    backward(y, ones_like(y))
    # ones, both gelus, two gelu gradients, the scaling's gradient
    assert watch.sizes() == [KIB] * 6
    assert watch.sizes("activations") == [KIB] * 2


def test_the_gradient_of_an_argument_is_no_parameters(run, parameter, watch, segment):
    x = parameter(256)
    y = segment(x)
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    backward(y, ones_like(y))
    # THEN the parameter takes over what the argument's grad was
    assert watch.sizes("gradients") == [KIB]


def test_without_an_argument_that_requires_grad_nothing_behind_it_does(run, parameter, segment):
    y = segment(Tensor.empty(run, (256,), parameter(1).dtype))
    assert not y.requires_grad


class Pair(Module):
    """Two results, of which the caller uses the first."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return ops.gelu(x), ops.gelu(x)


def test_an_unused_result_has_a_gradient_of_zeros(run, parameter, watch):
    run.reentrant = True
    pair = Pair(parameter.scope)
    pair.checkpointed = True
    y, _ = pair(ops.mul(parameter(256), 2.0))
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    backward(y, ones_like(y))
    # ones, zeros, two gelus, two gelu gradients (summed in place), the scaling's gradient
    assert watch.sizes() == [KIB] * 7


def test_a_tuple_lives_as_long_as_the_graph(run, parameter, watch, segment):
    h = ops.mul(parameter(256), 2.0)
    watch.reset()
    y = segment(h, (Tensor.empty(run, (256,), h.dtype),))
    backward(y, ones_like(y))
    with_graph = watch.living()
    y = y.detach()
    assert with_graph - watch.living() == KIB


def test_keywords_that_torch_gets_are_refused(run, parameter, segment):
    segment.keywords = ("rope",)
    with pytest.raises(InvalidRequest, match=r"keywords \(rope\)"):
        segment(ops.mul(parameter(256), 2.0), None)


def test_a_graph_that_two_segments_run_into_is_gone_after_the_first(run, parameter):
    run.reentrant = True

    class Biased(Module):
        keywords, binds_keywords, checkpointed = ("bias",), True, True

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return ops.add(x, bias)

    block, bias = Biased(parameter.scope), ops.gelu(parameter(256))
    y = block(block(ops.mul(parameter(256), 2.0), bias), bias)
    with pytest.raises(InvalidRequest, match="cannot be trained"):
        backward(y, ones_like(y))
