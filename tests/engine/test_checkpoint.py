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
