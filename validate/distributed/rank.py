"""What a rank answers: its measurement, that memory ran out, or what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from vitmem.errors import DoesNotFit, VitmemError

from ..cuda import asked_for
from .storages import Storages

__all__ = ["answered", "gathered", "witness"]

_OF_THE_WORLD = (
    "rank", "peaks", "first_step_bytes", "reserved_bytes", "device_bytes", "num_alloc_retries", "device", "driver"
)  # fmt: skip


class Phased(Protocol):
    phase: str


def witness(request: Mapping[str, Any]) -> Any:
    """Follows the storages of a rank on the CPU, or asks the allocator of its GPU."""
    if not request.get("on_gpu"):
        return Storages()
    from .allocator import AllocatorPeaks

    return AllocatorPeaks(request.get("memory_bytes"))


def answered(out: Path, measured: Callable[[], dict[str, Any]], seen: Callable[[], Phased | None]) -> int:
    """Writes what ``measured`` returns, or why there is none, and returns the exit code.

    Out of memory is an answer; the other ranks wait for this one, and whoever started them ends them.
    """
    try:
        document, code = measured(), 0
    except torch.OutOfMemoryError as error:
        document, code = {"out_of_memory": _out_of_memory(str(error), seen())}, DoesNotFit.exit_code
    except VitmemError as error:
        document, code = {"error": type(error).__name__, "message": str(error)}, error.exit_code
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(document), encoding="utf-8")
    partial.replace(out)
    return code


def _out_of_memory(message: str, seen: Phased | None) -> dict[str, Any]:
    return {
        "message": message,
        "phase": "setup" if seen is None else seen.phase,
        "step": None,
        "needed_bytes": torch.cuda.memory_allocated() + asked_for(message),
        "num_alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        "rank": int(os.environ.get("RANK", "0")),
    }


def gathered(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of every rank, in order, on each of them; through gloo, which takes nothing of a GPU."""
    group: Any = torch.distributed.new_group(backend="gloo")
    found: list[Any] = [None] * torch.distributed.get_world_size()
    own = {name: document[name] for name in _OF_THE_WORLD if name in document}
    torch.distributed.all_gather_object(found, own, group=group)
    return found
