"""Every storage of the CPU from birth to death, as the program's own thread makes them.

Communication libraries' own buffers are no tensors of the program, and are not seen.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Storages", "loading"]

#: What was sent may live a moment longer in gloo's threads than in the program: waited for before a new peak counts.
LATE_S = 0.005


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes that live now, and the most that lived since :meth:`start`, in each phase."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, tuple[int, str]] = {}  # by address of the storage: bytes, and the operator that made it
        self.total = 0
        self.phase = "setup"
        self.peaks: dict[str, int] = {}
        self.follows = True
        self._sent = False

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Counts what was made before."""
        for tensor in tensors:
            self._see(tensor, "(built)")

    def start(self, phase: str) -> None:
        """A phase begins, or goes on."""
        self.phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.total)

    def alive(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        """Bytes of the distinct storages behind ``tensors``, by address."""
        found: dict[int, int] = {}
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self.live:
                found[key] = self.live[key][0]
        return found

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is made inside is the host's: a loader's batch, which accelerate copies to its device."""
        self.follows = False
        yield
        self.follows = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Follow everything that runs inside; FSDP empties storages that live on."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage)
            return result

        with mock.patch.object(torch.UntypedStorage, "resize_", resized), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, for what the rank has of it
        result = func(*args, **(kwargs or {}))
        self._sent = self._sent or func.namespace == "c10d"
        if not self.follows or func is torch.ops.aten.split.Tensor:  # of a buffer that gloo made for its reduce_scatter
            return result
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu":
                self._see(leaf, str(func))
        return result

    def _see(self, tensor: Tensor, op: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.live:
            self.live[storage._cdata] = storage.nbytes(), op
            self._grow(storage.nbytes())
            weakref.finalize(storage, self._died, storage._cdata).atexit = False

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self.live:
            before, op = self.live[storage._cdata]
            self.live[storage._cdata] = storage.nbytes(), op
            self._grow(storage.nbytes() - before)

    def _died(self, key: int) -> None:
        num_bytes, _ = self.live.pop(key)
        self.total -= num_bytes

    def _grow(self, num_bytes: int) -> None:
        self.total += num_bytes
        if self._sent and self.total > self.peaks.get(self.phase, 0):
            self._sent = False
            time.sleep(LATE_S)
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.total)


@contextmanager
def loading(storages: Any) -> Iterator[None]:
    """What is read from a file is the host's until the optimizer has it."""
    load = torch.load

    def loaded(*args: Any, **kwargs: Any) -> Any:
        with storages.aside():
            return load(*args, **kwargs)

    with mock.patch.object(torch, "load", loaded):
        yield
