"""Checkpointing on one small segment."""

from __future__ import annotations

from vitmem import ops
from vitmem.engine import Module, Tensor, backward
from vitmem.engine.autograd import ones_like

KIB = 1024


class Segment(Module):
    """gelu(gelu(x)) of 1 KiB each: without checkpointing both inputs stay."""

    def forward(self, x: Tensor) -> Tensor:
        x = ops.gelu(x)
        x = ops.gelu(x)
        return x


def test_only_the_arguments_stay_and_the_last_output_is_not_made_again(run, parameter, watch):
    x = parameter(256)
    segment = Segment(parameter.scope)
    segment.checkpointed = True
    h = ops.mul(x, 2.0)
    watch.reset()
    y = segment(h)
    # GIVEN the forward pass, THEN nothing but the output is left of the segment
    assert watch.living() == KIB
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    backward(y, gradient)
    # THEN the first gelu is recomputed and the second, whose output nobody saved, is not:
    # ones, recomputed gelu, (0 B), two gelu gradients, the scaling's gradient
    assert watch.sizes() == [KIB, KIB, 0, KIB, KIB, KIB]


def test_the_same_segment_unchecked_keeps_its_inner_tensor(run, parameter, watch):
    x = parameter(256)
    segment = Segment(parameter.scope)
    h = ops.mul(x, 2.0)
    watch.reset()
    y = segment(h)
    assert watch.living() == 2 * KIB
    assert y.requires_grad


class Chain(Module):
    """Segments one after the other."""

    def __init__(self, scope, segments):
        super().__init__(scope)
        self.segments = segments

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = segment(x)
        return x


def checkpointed(scope, *segments):
    """A chain that is checkpointed, of segments that are too."""
    chain = Chain(scope, segments)
    for module in (chain, *segments):
        module.checkpointed = True
    return chain


def test_a_segment_inside_another_keeps_its_argument_there(run, parameter, watch):
    x = parameter(256)
    chain = checkpointed(parameter.scope, Segment(parameter.scope), Segment(parameter.scope))
    h = ops.mul(x, 2.0)
    watch.reset()
    y = chain(h)
    # GIVEN the forward pass, THEN nothing but the output is left, not even the second segment's argument
    assert watch.living() == KIB
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    backward(y, gradient)
    ones = scaling = [KIB]
    outer = [KIB, KIB]  # the chain, up to the argument of its second segment
    segment = [KIB, 0, KIB, KIB]  # its first gelu, and two gradients
    assert watch.sizes() == ones + outer + segment + segment + scaling


class Frozen(Module):
    """gelu of something that needs no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class Trained(Module):
    """x * weight; notes what lives whenever it runs."""

    def __init__(self, scope, weight, watch):
        super().__init__(scope)
        self.weight, self.watch, self.living = weight, watch, []

    def forward(self, x: Tensor) -> Tensor:
        self.living.append(self.watch.living())
        return ops.mul(x, self.weight)


def test_what_no_node_wants_is_not_kept_while_the_outer_segment_is_recomputed(run, parameter, watch):
    scope = parameter.scope
    trained = Trained(scope, parameter(256), watch)
    chain = checkpointed(scope, Frozen(scope), Frozen(scope), trained)
    h = Tensor.empty(run, (256,), trained.weight.dtype)
    watch.reset()
    y = chain(h)
    run.start_phase("backward", kind="temporaries")
    watch.reset()
    gradient = ones_like(y)
    backward(y, gradient)
    # GIVEN it ran in the forward pass and once more, THEN ones and its own argument live, not its frozen source
    assert trained.living[1:] == [2 * KIB]
