"""The layout that CUDA's layer normalisation gives its input's gradient, whatever the layout of what comes in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from vitmem.validate.tracker import Tracker


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["row-major", "channels-first in memory"])
def test_the_input_gradient_is_row_major(order):
    x = torch.empty(2, 5, 5, 8, device="meta").permute(order).contiguous().permute([order.index(i) for i in range(4)])
    x.requires_grad_()
    seen = []
    x.register_hook(seen.append)
    norm = nn.LayerNorm(8, device="meta")
    with Tracker():
        norm(x).permute(0, 3, 1, 2).backward(torch.empty(2, 8, 5, 5, device="meta"))
    assert seen[0].is_contiguous()
