"""The rehearsal's operators where meta, or a mode that watches, would run another than CUDA does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from vitmem.validate.attention import SdpaChoice
from vitmem.validate.autocast import CudaSemantics
from vitmem.validate.tracker import Tracker


@pytest.fixture
def run_on_meta():
    """Runs a function under the tracker and CUDA's rules; names the operators that made a storage."""

    def run(function, *existing):
        tracker = Tracker()
        for tensor in existing:
            tracker.adopt(tensor, kind="inputs", layer="model")
        with tracker, CudaSemantics(tracker, SdpaChoice()).active():
            function()
        return [event.op.removeprefix("aten.") for event in tracker.events if event.op != "(built)"]

    return run


def test_a_bias_behind_a_strided_input_is_added_in_place(run_on_meta):
    linear = nn.Linear(8, 24, device="meta")
    tokens = torch.empty(2, 5, 8, device="meta")
    existing = (tokens, *linear.parameters())
    assert run_on_meta(lambda: linear(tokens.transpose(0, 1)), *existing) == ["clone.default", "mm.default"]
    assert run_on_meta(lambda: linear(tokens), *existing) == ["addmm.default"]


def test_a_number_that_is_assigned_stays_on_the_host(run_on_meta):
    def number_a_region():
        mask = torch.zeros(4, 6, device="meta")
        mask[0:2, -4:-2] = 3

    assert run_on_meta(number_a_region) == ["zeros.default"]


def test_autocast_reaches_the_inside_of_multi_head_attention(run_on_meta):
    attention = nn.MultiheadAttention(16, 2, batch_first=True, device="meta")
    tokens = torch.empty(2, 5, 16, device="meta")

    def attend():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, _ = attention(tokens, tokens, tokens, need_weights=False)
        assert out.dtype == torch.bfloat16

    made = run_on_meta(attend, tokens, *attention.parameters())
    # both projections' biases and weights, and the tokens; then one fused kernel
    assert made.count("_to_copy.default") == 5
    assert "_scaled_dot_product_flash_attention.default" in made


def test_a_method_that_ends_in_super_is_not_followed_for_ever(run_on_meta):
    made = run_on_meta(lambda: F.relu(torch.empty(2, 12, device="meta").unflatten(-1, (3, 4))))
    assert made == ["empty.memory_format", "relu.default"]
