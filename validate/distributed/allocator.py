"""The caching allocator as the witness of a rank on a GPU: what it handed out at most, by phase."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from vitmem.errors import NotModelled

from ..cuda import require_device
from ..cuda_run import context_bytes, limit_memory
from ..nvml import device_use, process_ids

__all__ = ["AllocatorPeaks"]


class AllocatorPeaks:
    """Answers as :class:`.storages.Storages` does, in allocated bytes; ``live`` is empty, as the allocator knows no
    operators. Raises NotModelled where torch sees no GPU for this rank."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._strangers = process_ids()
        require_device()
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise NotModelled(
                f"a rank for each GPU, and torch sees {count} here: give as many --gpus, or --backend cpu"
            )
        torch.cuda.set_device(local)
        self._uuid = str(torch.cuda.get_device_properties(local).uuid)
        if memory_bytes is not None:
            limit_memory(memory_bytes, context_bytes(device_use(self._uuid, self._strangers)))
        self.live: dict[int, tuple[int, str]] = {}
        self.phase = "setup"
        self._peaks: dict[str, int] = {}
        self._reserved = 0

    @property
    def total(self) -> int:
        """``torch.cuda.memory_allocated()``."""
        return torch.cuda.memory_allocated()

    @property
    def peaks(self) -> dict[str, int]:
        """By phase, up to now."""
        self._peaks[self.phase] = max(self._peaks.get(self.phase, 0), torch.cuda.max_memory_allocated())
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        return self._peaks

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """What was made before is allocated."""

    def start(self, phase: str) -> None:
        """A phase begins, or goes on; the one before is over."""
        assert self.peaks is not None
        self.phase = phase

    def alive(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        """Bytes of the distinct storages on the GPU behind ``tensors``, by address."""
        on_gpu = (tensor.untyped_storage() for tensor in tensors if tensor.is_cuda)
        return {storage._cdata: storage.nbytes() for storage in on_gpu}

    def aside(self) -> AbstractContextManager[None]:
        """What is made inside is the host's, and not the allocator's."""
        return nullcontext()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Count from here on."""
        torch.cuda.reset_peak_memory_stats()
        yield

    def document(self) -> dict[str, Any]:
        """What the device says besides."""
        use = device_use(self._uuid, self._strangers)
        return {
            "reserved_bytes": self._reserved,
            "device_bytes": None if use is None else use.own_bytes,
            "driver": None if use is None else use.driver,
            "device": torch.cuda.get_device_name(),
            "num_alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        }
