"""Record what PyTorch's allocator sees of single attention calls: ``tests/data/attention_calls.json``.

    python scripts/record_attention.py GPU tests/data/attention_calls.json

Runs where torch sees a CUDA device, or believes that it does; the rows of other GPUs in the file stay. A row: the
kernel asked for, dtype, [B, H, N, D], dropout, the mask (``1``: one for all images, ``B``: one for each, ``g``: wants a
gradient), whether queries, keys and values do, whether they lie in one packed tensor; then the events of forward and
backward: bytes for an allocation, ``-1 - i`` for the end of the i-th; null where torch refuses.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from vitmem.validate.cuda import SDPA_KERNELS as KERNELS

SHAPES = [
    *[(2, 3, 50, 64), (64, 3, 49, 32), (1, 16, 577, 80), (3, 6, 65, 96), (2, 4, 197, 128), (2, 3, 50, 160)],
    *[(2, 12, 197, 12), (2, 12, 197, 15), (300, 4, 64, 32), (1, 3, 1025, 64), (2, 3, 145, 72), (2, 2, 37, 200)],
]


def drawn(rng: random.Random) -> list[Any]:
    """One case."""
    kernel = rng.choice(["auto", "auto", *KERNELS])
    dtype = rng.choice(["float16", "bfloat16", "float32"])
    dropout, mask = rng.choice([0.0, 0.0, 0.1, 0.125]), rng.choice([None, None, "1", "1g", "B", "Bg"])
    return [kernel, dtype, *rng.choice(SHAPES), dropout, mask, rng.random() < 0.8, rng.random() < 0.5]


def events_of(case: list[Any]) -> list[int] | None:
    """The call and its backward."""
    kernel, name, b, h, n, d, dropout, mask, trained, packed = case
    made = {"device": "cuda", "dtype": getattr(torch, name)}
    if packed:
        q, k, v = torch.empty(b, n, 3, h, d, **made, requires_grad=trained).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        leaves = [torch.empty(b, n, h * d, **made, requires_grad=trained) for _ in range(3)]
        q, k, v = [leaf.view(b, n, h, d).transpose(1, 2) for leaf in leaves]
    rows = b if mask and "B" in mask else 1
    bias = torch.empty(rows, h, n, n, **made, requires_grad="g" in mask) if mask else None
    torch.cuda.memory._record_memory_history(max_entries=10_000, context=None)
    forced = torch.nn.attention.sdpa_kernel(KERNELS[kernel]) if kernel in KERNELS else contextlib.nullcontext()
    try:
        with forced:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        if out.requires_grad:
            out.backward(torch.empty(b, n, h, d, **made).transpose(1, 2))
        return recorded()
    except RuntimeError:
        return None
    finally:
        torch.cuda.memory._record_memory_history(None)


def recorded() -> list[int]:
    """The events since recording began."""
    born: dict[int, int] = {}
    events, count = [], 0
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            born[event["addr"]], count = count, count + 1
            events.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in born:
            events.append(-1 - born[event["addr"]])
    return events


def main() -> None:
    gpu, path = sys.argv[1], Path(sys.argv[2])
    known = json.loads(path.read_text()) if path.exists() else {}
    leaf = torch.empty(8, 8, device="cuda", requires_grad=True)
    (leaf @ leaf).sum().backward()  # both threads have their cuBLAS workspace
    rng = random.Random(2026)
    cases = [drawn(rng) for _ in range(80)]
    known[gpu] = [[*case, events_of(case)] for case in cases]
    lines = ",\n".join(
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]" for name, rows in known.items()
    )
    path.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
