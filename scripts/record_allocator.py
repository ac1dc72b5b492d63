"""Record what PyTorch's caching allocator does with random requests: the witness of ``tests/test_allocator.py``.

    PYTORCH_CUDA_ALLOC_CONF=... python scripts/record_allocator.py SEED OPERATIONS FILE

Needs a CUDA build of torch and a device that nobody else uses. Each operation is ``[size, id]`` (``torch.empty``; id -1
where it ran out of memory), ``[-1 - id]`` (freed) or ``[0, 0]`` (``empty_cache``), followed by ``memory_allocated()``
and ``memory_reserved()``.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
COMMON = [25 * MIB, 3 * MIB, 50 * MIB, 2 * MIB, 20 * MIB + 512]


def request(rng: random.Random) -> int:
    """Bytes of a small, a medium, an often repeated, or a large tensor."""
    kind = rng.random()
    if kind < 0.4:
        return rng.randint(1, MIB)
    if kind < 0.7:
        return rng.randint(MIB, 12 * MIB)
    return rng.choice(COMMON) if kind < 0.9 else rng.randint(10 * MIB, 200 * MIB)


def operation(rng: random.Random, living: dict[int, Any], number: int) -> list[int]:
    """One operation, done and described."""
    if living and rng.random() < (0.5 if len(living) < 60 else 0.7):
        freed = rng.choice(list(living))
        del living[freed]
        return [-1 - freed]
    if rng.random() < 0.005:
        torch.cuda.empty_cache()
        return [0, 0]
    size = request(rng)
    try:
        living[number] = torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return [size, -1]
    return [size, number]


def main() -> None:
    seed, count, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    rng, living, trace = random.Random(seed), {}, []
    for number in range(count):
        done = operation(rng, living, number)
        trace.append([*done, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
    record = {
        "torch": torch.__version__,
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "device_bytes": torch.cuda.get_device_properties(0).total_memory,
        "num_alloc_retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "trace": trace,
    }
    path.write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
