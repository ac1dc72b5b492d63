"""Workspaces against what PyTorch's CUDA build asked its allocator for (torch 2.14.1)."""

from __future__ import annotations

import pytest
from vitmem.kernels import Gpu, Kernels


@pytest.mark.parametrize(
    ("count", "keys", "num_bytes"),
    [
        (64, 169, 1),
        (2304, 169, 1),
        (2305, 169, 3583),
        (4096, 169, 4607),
        (5000, 256, 4607),
        (5000, 257, 87039),
        (4096, 300, 72191),
        (20736, 529, 342527),
        (38809, 732, 636927),
        (65536, 2209, 1071615),
        (2401, 2209, 44543),
        (100000, 60, 30207),
    ],
)
def test_sorting_an_index_on_an_a100(count, keys, num_bytes):
    assert Kernels().sort_scratch(count, keys) == num_bytes


@pytest.mark.parametrize(
    ("capability", "num_bytes"), [((7, 5), 344575), ((8, 6), 342527), ((9, 0), 341503), ((12, 0), 341503)]
)
def test_the_tile_of_the_sort_is_the_generations(capability, num_bytes):
    kernels = Kernels(gpu=Gpu(capability=capability))
    assert kernels.sort_scratch(20736, 529) == num_bytes
