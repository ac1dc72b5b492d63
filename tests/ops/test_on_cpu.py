"""Operators by the CPU's rules where they are not CUDA's: B = 2, H = 3 heads, N = 5 tokens, D = 8 channels."""

from __future__ import annotations

import pytest
from vitmem import ops
from vitmem.device import CPU
from vitmem.engine import Run
from vitmem.engine.autocast import to
from vitmem.kernels import Kernels
from vitmem.units import DType

B, H, N, D = 2, 3, 5, 8


@pytest.fixture
def run():
    run = Run(kernels=Kernels(gpu=CPU.gpu), parameter_dtype=DType.float32)
    run.start_phase("forward", kind="activations")
    return run


def test_flash_attention_lays_its_output_out_as_its_queries_are(parameter):
    """torch 2.14.1: strides (120, 40, 8, 1) of queries made head by head, (120, 8, 24, 1) of those made by token."""
    by_head, packed = parameter(B, H, N, D), ops.transpose(parameter(B, N, H, D), 1, 2)
    assert ops.scaled_dot_product_attention(by_head, packed, packed).strides == (120, 40, 8, 1)
    assert ops.scaled_dot_product_attention(packed, by_head, by_head).strides == (120, 8, 24, 1)


def test_operands_of_two_types_are_cast_before_the_result_is_made(parameter, watch):
    wide, narrow = parameter(N, D), to(parameter(B, N, D), DType.bfloat16)
    watch.reset()
    ops.add(wide, narrow)
    assert watch.sizes() == [B * N * D * 4] * 2
    watch.reset()
    ops.add(wide, wide)
    assert watch.sizes() == [N * D * 4]
