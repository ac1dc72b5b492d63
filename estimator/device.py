"""The GPU that a training must fit into: its memory, what the CUDA context takes of it, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .allocator import AllocatorConfig
from .errors import InvalidRequest
from .kernels import Gpu
from .replay import Replay, replay
from .units import parse_bytes

if TYPE_CHECKING:
    from .gpus import Context, GpuRow
    from .ledger import Ledger
    from .settings import TrainSettings

__all__ = ["Device", "device_of", "verdict"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``total_bytes`` and ``context`` are None where neither a GPU nor a memory was named."""

    name: str | None
    gpu: Gpu
    total_bytes: int | None
    context: Context | None
    allocator: AllocatorConfig

    def within(self, context_bytes: int) -> AllocatorConfig:
        """The allocator with what a context of this size leaves."""
        assert self.total_bytes is not None
        return dataclasses.replace(self.allocator, capacity=self.total_bytes - context_bytes)


def device_of(settings: TrainSettings) -> Device:
    """The device behind ``--gpu``, ``--memory`` (which may make the named GPU smaller) and ``--alloc-conf``."""
    allocator = AllocatorConfig.parse(settings.alloc_conf or "")
    if settings.gpu is None and settings.memory is None:
        return Device(name=None, gpu=Gpu(), total_bytes=None, context=None, allocator=allocator)
    from .gpus import context_of, find, with_communicator  # reads the table of GPUs

    row = None if settings.gpu is None else find(settings.gpu)
    total = _total(row, settings.memory)
    context = context_of(row)
    if settings.parallel not in {None, "none"}:
        context = with_communicator(context, settings.gpus)
    return Device(
        name=settings.memory if row is None else row.name,
        gpu=Gpu() if row is None else row.kernel_view,
        total_bytes=total,
        context=context,
        allocator=dataclasses.replace(allocator, device_bytes=total),
    )


def _total(row: GpuRow | None, memory: str | None) -> int:
    if memory is None:
        assert row is not None
        return row.memory_bytes
    total = parse_bytes(memory)
    if row is not None and total > row.memory_bytes:
        raise InvalidRequest(f"memory {memory} is more than a {row.name} has; leave out --memory or --gpu")
    return total


def verdict(device: Device, ledger: Ledger, unlimited: Replay) -> tuple[Mapping[str, Any] | None, int]:
    """Whether the run fits, and what is reserved on this device.

    The allocator is replayed within what the context leaves: it fits where the replay gets through with the largest
    context, does not where it fails with the smallest, and is borderline in between.
    """
    context = device.context
    if device.total_bytes is None or context is None:
        return None, unlimited.reserved_bytes
    usable = device.total_bytes - context.expected_bytes
    fits, run = "yes", unlimited
    if unlimited.reserved_bytes + context.high_bytes > device.total_bytes:
        run = replay(ledger, device.within(context.high_bytes))
        if run.failed is not None:
            run = replay(ledger, device.within(context.low_bytes))
            fits = "borderline" if run.failed is None else "no"
    reserved = run.reserved_bytes if fits != "no" else unlimited.reserved_bytes
    document = {
        "gpu": device.name,
        "usable_bytes": usable,
        "fits": fits,
        "headroom_bytes": usable - reserved,
        "num_alloc_retries": run.num_retries,
    }
    return document, reserved
