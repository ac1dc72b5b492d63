"""The table of GPUs as a report: one table per generation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..result import SCHEMA_VERSION
from .tables import Cell, Column, Notes, Report, Table

__all__ = ["gpus_report"]

_SUBTITLE = (
    "Memory as the CUDA driver reports it on Linux, less than the card is sold with. TFLOP/s are dense, 16-bit in and "
    "32-bit accumulation."
)


class Known(Protocol):
    """What a row shows of a GPU."""

    @property
    def name(self) -> str: ...
    @property
    def full_name(self) -> str: ...
    @property
    def generation(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def memory_is_confirmed(self) -> bool: ...
    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def num_sms(self) -> int: ...
    @property
    def max_threads_per_sm(self) -> int: ...
    @property
    def fp32_tflops(self) -> float: ...
    @property
    def tensor_tflops(self) -> float: ...
    @property
    def tensor_dtype(self) -> str: ...
    @property
    def bandwidth_gb_per_s(self) -> int: ...
    @property
    def nvlink_gb_per_s(self) -> int | None: ...
    @property
    def source_memory(self) -> str: ...
    @property
    def source_peak(self) -> str: ...

    @property
    def source_nvlink(self) -> str | None: ...


class Held(Protocol):
    """What a process holds outside PyTorch's allocator."""

    @property
    def low_bytes(self) -> int: ...
    @property
    def expected_bytes(self) -> int: ...
    @property
    def high_bytes(self) -> int: ...


def gpus_report(rows: Iterable[tuple[Known, Held]], *, version: str) -> Report:
    """``rows`` are GPUs with what the CUDA context takes of each; ``version`` is vitmem's."""
    found = list(rows)
    by_generation: dict[str, list[tuple[Cell, ...]]] = {}
    for gpu, _ in found:
        by_generation.setdefault(gpu.generation, []).append(_row(gpu))
    derived = tuple(f"{gpu.name}: {gpu.source_memory}" for gpu, _ in found if not gpu.memory_is_confirmed)
    return Report(
        headline=f"{len(found)} GPU{'' if len(found) == 1 else 's'}.",
        subtitle=(_SUBTITLE,),
        tables=tuple(_table(generation, cells) for generation, cells in by_generation.items()),
        notes=(Notes(title="Memory without a public report of a recent driver", lines=derived),),
        document={
            "schema_version": SCHEMA_VERSION,
            "vitmem_version": version,
            "gpus": [_document(gpu, context) for gpu, context in found],
        },
    )


def _table(generation: str, rows: list[tuple[Cell, ...]]) -> Table:
    columns = (
        Column(name="name"),
        Column(name="memory", kind="bytes"),
        Column(name="compute", kind="count"),
        Column(name="SMs", kind="count"),
        Column(name="TFLOP/s", kind="count"),
        Column(name="GB/s", kind="count"),
    )
    return Table(name=generation, title=generation, columns=columns, rows=tuple(rows))


def _row(gpu: Known) -> tuple[Cell, ...]:
    rate = f"{gpu.tensor_tflops:,g} {gpu.tensor_dtype}"
    return gpu.name, gpu.memory_bytes, _dotted(gpu), gpu.num_sms, rate, gpu.bandwidth_gb_per_s


def _dotted(gpu: Known) -> str:
    return "{}.{}".format(*gpu.capability)


def _document(gpu: Known, context: Held) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "full_name": gpu.full_name,
        "generation": gpu.generation,
        "memory_bytes": gpu.memory_bytes,
        "memory_confirmed": gpu.memory_is_confirmed,
        "compute_capability": _dotted(gpu),
        "num_sms": gpu.num_sms,
        "max_threads_per_sm": gpu.max_threads_per_sm,
        "fp32_tflops": gpu.fp32_tflops,
        "tensor_tflops": gpu.tensor_tflops,
        "tensor_dtype": gpu.tensor_dtype,
        "bandwidth_gb_per_s": gpu.bandwidth_gb_per_s,
        "nvlink_gb_per_s": gpu.nvlink_gb_per_s,
        "context_low_bytes": context.low_bytes,
        "context_expected_bytes": context.expected_bytes,
        "context_high_bytes": context.high_bytes,
        "source_memory": gpu.source_memory,
        "source_peak": gpu.source_peak,
        "source_nvlink": gpu.source_nvlink,
    }
