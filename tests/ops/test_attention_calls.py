"""One attention call after the other, against what PyTorch's allocator recorded of it on GPUs of eight generations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vitmem import gpus, ops
from vitmem.engine import Tensor
from vitmem.engine.autograd import AccumulateGrad, backward
from vitmem.errors import InvalidRequest
from vitmem.kernels import Kernels
from vitmem.units import DType

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "attention_calls.json").read_text())


def leaf(run, dtype, *shape, trained):
    tensor = Tensor.empty(run, shape, dtype)
    tensor.requires_grad = trained
    tensor.accumulator = AccumulateGrad(tensor)
    return tensor


def play(run, dtype, shape, dropout, mask, trained, packed):
    """The events of the call and its backward, as the recording has them."""
    b, h, n, d = shape
    run.use_cublas()
    run.in_backward = True
    run.use_cublas()
    run.in_backward = False
    if packed:
        leaves = leaf(run, dtype, b, n, 3, h, d, trained=trained)
        q, k, v = ops.unbind(ops.permute(leaves, 2, 0, 3, 1, 4), 0)
    else:
        leaves = [leaf(run, dtype, b, n, h * d, trained=trained) for _ in range(3)]
        q, k, v = [ops.transpose(ops.view(x, b, n, h, d), 1, 2) for x in leaves]
    rows = b if mask and "B" in mask else 1
    bias = leaf(run, dtype, rows, h, n, n, trained="g" in mask) if mask else None
    first, start = len(run.allocations), len(run.events)
    out = ops.scaled_dot_product_attention(q, k, v, dropout, bias)
    if out.requires_grad:
        gradient = Tensor.empty(run, (b, n, h, d), dtype)
        run.in_backward = True
        backward(out, gradient.alias((b, h, n, d), (n * h * d, d, h * d, 1)))
        del gradient
    events, number = [], {}
    for event in run.events[start:]:
        i = event if event >= 0 else ~event
        if i < first or run.allocations[i][0] == 0:
            continue
        if event >= 0:
            number[i] = len(number)
        events.append(run.allocations[i][0] if event >= 0 else ~number[i])
    return events


def settled(events):
    """Rounded to blocks; what ends between two allocations ends in no order; the end of all is not looked at."""
    result, ended = [], []
    for event in events:
        if event < 0:
            ended.append(event)
        else:
            result += [*sorted(ended), -(-event // 512)]
            ended = []
    return result


@pytest.mark.parametrize("gpu", RECORDED)
def test_calls_allocate_what_pytorch_does(gpu, run):
    wrong = []
    for kernel, name, b, h, n, d, *rest, recorded in RECORDED[gpu]:
        run.allocations.clear(), run.events.clear(), run.handles.clear()
        run.in_backward = False
        run.kernels = Kernels(gpu=gpus.find(gpu).kernel_view, sdpa_kernel=kernel)
        try:
            played = settled(play(run, DType[name], (b, h, n, d), *rest))
        except InvalidRequest:
            played = None
        if played != (None if recorded is None else settled(recorded)):
            wrong.append((kernel, name, (b, h, n, d), *rest))
    assert not wrong


def test_every_kernel_is_among_them_and_every_generation_refuses_something():
    assert set(RECORDED) == {"t4", "v100-16g", "a100-40g", "rtx3090", "l4", "h100-80g", "b200", "rtx5090"}
    for rows in RECORDED.values():
        assert {row[0] for row in rows} == {"auto", "flash", "efficient", "cudnn", "math"}
        assert 5 < sum(row[-1] is None for row in rows) < len(rows) - 30
