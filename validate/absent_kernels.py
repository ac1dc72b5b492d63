"""Triton on a CUDA device that is not there: inductor plans and allocates, its kernels are neither built nor launched.

For PyTorch's CUDA build where the driver and the CUDA libraries only account for memory. What inductor decides by the
device's properties (how a reduction is split) follows the device that it believes in.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

__all__ = ["is_absent", "kernels_of_absent_device"]


def is_absent() -> bool:
    """Whether the CUDA device computes nothing: what is copied back from it is zeros."""
    return bool(torch.ones(1, device="cuda").item() == 0)


@contextlib.contextmanager
def kernels_of_absent_device() -> Iterator[None]:
    """Inside, torch.compile gets along without a driver. Timing kernels against each other is left out with them, and
    so is what that borrows in the first step."""
    from torch._inductor import config
    from torch._inductor.runtime import triton_heuristics
    from triton.backends.nvidia import driver

    autotuners = [
        value
        for value in vars(triton_heuristics).values()
        if isinstance(value, type) and issubclass(value, triton_heuristics.CachingAutotuner)
    ]
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")  # as asked for below
        stack.enter_context(mock.patch.object(driver, "CudaUtils", _Driver))
        for autotuner in autotuners:
            for name in ("precompile", "run"):
                stack.enter_context(mock.patch.object(autotuner, name, _nothing))
        stack.enter_context(config.patch(compile_threads=1, force_disable_caches=True))
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A kernel that is not built, not timed and not launched."""


class _Driver:
    """What inductor asks Triton's driver (triton 3.8, backends/nvidia/driver.py)."""

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return torch.cuda.get_device_capability(device)
