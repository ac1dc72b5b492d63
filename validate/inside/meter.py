"""How memory is read within a training: CUDA's allocator, or every storage that operators make on the CPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CpuMeter", "CudaMeter", "Meter", "meter_for"]


class Meter(Protocol):
    """Bytes now, and the peak since it was last asked."""

    figure: str

    def start(self, model: nn.Module) -> None: ...
    def stop(self) -> None: ...
    def now(self) -> int: ...
    def take_peak(self) -> tuple[int, int | None]: ...


def meter_for(device: torch.device) -> Meter:
    """The meter of a training on ``device``."""
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


class CudaMeter:
    """The caching allocator's own counters; asking for the peak resets it (``reset_peak_memory_stats``)."""

    figure = "allocated"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self, model: nn.Module) -> None:
        """Forget the peaks of before."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def stop(self) -> None:
        """Nothing was switched on."""

    def now(self) -> int:
        """``torch.cuda.memory_allocated()``."""
        return torch.cuda.memory_allocated(self._device)

    def take_peak(self) -> tuple[int, int | None]:
        """The largest allocated and reserved bytes since the last call."""
        peak = torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return peak


class CpuMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storages on the CPU that operators of this thread made since :meth:`start`, and the model's; unrounded.

    What is made in C++ without a dispatched operator, or on another thread, is not seen.
    """

    figure = "tensors"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = self._peak = 0
        self._live: set[int] = set()
        self._is_on = False

    def start(self, model: nn.Module) -> None:
        """Count the model, and follow what this thread makes from here on."""
        self._see([*model.parameters(), *model.buffers()])
        self.take_peak()
        if not self._is_on:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_on = True

    def stop(self) -> None:
        """Follow no more."""
        if self._is_on:
            self._is_on = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def now(self) -> int:
        """Bytes of the storages that live."""
        return self._bytes

    def take_peak(self) -> tuple[int, int | None]:
        """The largest total since the last call; nothing is reserved on the CPU."""
        peak, self._peak = max(self._peak, self._bytes), self._bytes
        return peak, None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see(pytree.tree_leaves(result))
        return result

    def _see(self, leaves: Iterable[Any]) -> None:
        for leaf in leaves:
            if not isinstance(leaf, Tensor) or leaf.device.type != "cpu" or leaf.layout is not torch.strided:
                continue
            storage = leaf.untyped_storage()
            if storage._cdata in self._live:
                continue
            size = storage.nbytes()
            self._live.add(storage._cdata)
            self._bytes += size
            self._peak = max(self._peak, self._bytes)
            weakref.finalize(storage, self._died, storage._cdata, size).atexit = False

    def _died(self, key: int, size: int) -> None:
        self._live.discard(key)
        self._bytes -= size
