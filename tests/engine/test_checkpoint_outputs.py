"""Where the recomputation of a checkpointed segment stops: before the last operator's output, or after it."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.engine import Module, Tensor, backward
from vitmem.engine.autograd import ones_like

KIB = 1024
ROWS, WIDTH = 4, 64


class Segment(Module):
    """An activation, then an operator that saves what its own kernel makes."""

    def __init__(self, parameter, name: str) -> None:
        super().__init__(parameter.scope)
        self.name, self.weight, self.bias = name, parameter(WIDTH), parameter(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.gelu(x)
        return ops.layer_norm(x, self.weight, self.bias) if self.name == "layer_norm" else ops.dropout(x, 0.1)


@pytest.mark.parametrize(
    ("name", "made"),
    [("layer_norm", [KIB, ROWS * 4, ROWS * 4]), ("dropout", [ROWS * WIDTH, KIB])],
    ids=["mean behind the output", "mask before it"],
)
def test_the_output_is_made_again_with_what_the_kernel_saves(run, parameter, watch, name, made):
    segment = Segment(parameter, name)
    segment.checkpointed = True
    y = segment(ops.mul(parameter(ROWS, WIDTH), 2.0))
    run.start_phase("backward", kind="temporaries")
    gradient = ones_like(y)
    watch.reset()
    backward(y, gradient)
    assert watch.tensor_sizes()[: 1 + len(made)] == [KIB, *made]  # gelu, then the output and what is saved of it
