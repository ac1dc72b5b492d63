"""GPUs by name: memory as the driver reports it, what kernels depend on, peak rates, and the CUDA context.

The rows are data (``data/gpus.toml``), each with its sources; the file is read when the first row is asked for.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from .data import __path__ as _data_path
from .errors import UnknownName, did_you_mean
from .units import MIB

if TYPE_CHECKING:
    from .kernels import Gpu

__all__ = ["Context", "GpuRow", "context_of", "find", "load", "names", "with_communicator"]

_GENERATIONS: Mapping[str, str] = {
    "6": "Pascal",
    "7.0": "Volta",
    "7.5": "Turing",
    "8": "Ampere",
    "8.9": "Ada Lovelace",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}
_TENSOR_DTYPES = ("bf16", "fp16")
_TEXT = ("name", "full_name", "compute_capability", "source_memory", "source_peak")
_COUNTS = ("memory_mib", "sold_as_gib", "num_sms", "max_threads_per_sm", "bandwidth_gb_per_s")
_WHOLE = (*_COUNTS, "nvlink_gb_per_s")
_LINK = frozenset({"nvlink_gb_per_s", "source_nvlink"})
_UNCONFIRMED = "not confirmed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One row of ``gpus.toml``; ``tensor_tflops`` is dense, in ``tensor_dtype``: bf16, or fp16 before Ampere."""

    name: str
    full_name: str
    memory_mib: int
    sold_as_gib: int
    capability: tuple[int, int]
    num_sms: int
    max_threads_per_sm: int
    fp32_tflops: float
    tensor_tflops: float
    tensor_dtype: str
    bandwidth_gb_per_s: int
    source_memory: str
    source_peak: str
    nvlink_gb_per_s: int | None = None
    source_nvlink: str | None = None

    @property
    def memory_bytes(self) -> int:
        """``torch.cuda.get_device_properties().total_memory``, to a MiB."""
        return self.memory_mib * MIB

    @property
    def memory_is_confirmed(self) -> bool:
        """Whether a public report of a recent driver backs the memory, or it was derived."""
        return not self.source_memory.startswith(_UNCONFIRMED)

    @property
    def generation(self) -> str:
        """The architecture's name."""
        major, minor = self.capability
        return _GENERATIONS.get(f"{major}.{minor}") or _GENERATIONS[str(major)]

    @property
    def pcie_gb_per_s(self) -> float:
        """To the host, in one direction."""
        rates: Mapping[str, float] = _file()["link"]["pcie_gb_per_s"]
        return rates[str(self.capability[0])]

    @property
    def reaches_peers(self) -> bool:
        """Whether one GPU may read another's memory; else what they exchange goes through the host's."""
        return not any(line in self.full_name for line in _file()["link"]["without_peers"])

    @property
    def link_gb_per_s(self) -> float:
        """To the other GPUs of its machine, in one direction: by NVLink where it joins all of them."""
        return self.pcie_gb_per_s if self.nvlink_gb_per_s is None else self.nvlink_gb_per_s / 2

    @property
    def kernel_view(self) -> Gpu:
        """What kernel choice and workspaces depend on."""
        from .kernels import Gpu

        return Gpu(capability=self.capability, num_sms=self.num_sms, threads_per_sm=self.max_threads_per_sm)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a training process on one GPU holds outside PyTorch's allocator, in bytes."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int


def names(pattern: str | None = None) -> list[str]:
    """The known names, oldest generation first; ``pattern`` is a shell pattern or a part of a name or full name."""
    if pattern is None:
        return list(load())
    wanted = (pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*").casefold()
    return [
        row.name
        for row in load().values()
        if any(fnmatch.fnmatchcase(name.casefold(), wanted) for name in (row.name, row.full_name))
    ]


def find(name: str) -> GpuRow:
    """The row of a name or full name, however it is spelt: ``rtx3090``, ``RTX 3090``, ``NVIDIA GeForce RTX 3090``."""
    wanted = _folded(name)
    for row in load().values():
        if wanted in {_folded(row.name), _folded(row.full_name)}:
            return row
    begun = [row.name for row in load().values() if wanted and _folded(row.name).startswith(wanted)]
    hint = f"; did you mean {', '.join(begun)}?" if begun else did_you_mean(name, load())
    raise UnknownName(f"unknown gpu {name!r}{hint}; `vitmem gpus` lists what is known")


def _folded(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[\s_-]", "", name.casefold())


def context_of(gpu: GpuRow | None, *, lazy: bool = True) -> Context:
    """The context with its loaded kernels: by the threads the GPU can hold, a wide range where it is not known.

    Not ``lazy``: with every kernel of the libraries, as before torch 1.13.
    """
    table = _file()["context"]
    kernels = table if lazy else table["eager"]
    libraries = [kernels[f"libraries_{bound}_mib"] for bound in ("low", "expected", "high")]
    if gpu is None:
        unknown = [table["unknown_gpu"][f"{bound}_mib"] for bound in ("low", "expected", "high")]
        return _context(0, *(unknown if lazy else [sum(pair) for pair in zip(unknown, libraries)]))
    threads_bytes = table["bytes_per_thread"] * gpu.num_sms * gpu.max_threads_per_sm
    return _context(threads_bytes, *libraries)


def with_communicator(context: Context, num_gpus: int) -> Context:
    """The context with NCCL's communicator of so many GPUs; an engine on one GPU makes one as well."""
    table = _file()["context"]["nccl"]
    expected_mib = table[{1: "expected_one_mib", 2: "expected_two_mib"}.get(num_gpus, "expected_more_mib")]
    of_nccl = _context(0, table["low_mib"], expected_mib, table["high_mib"])
    return Context(
        low_bytes=context.low_bytes + of_nccl.low_bytes,
        expected_bytes=context.expected_bytes + of_nccl.expected_bytes,
        high_bytes=context.high_bytes + of_nccl.high_bytes,
    )


def _context(base_bytes: int, low_mib: int, expected_mib: int, high_mib: int) -> Context:
    return Context(
        low_bytes=base_bytes + low_mib * MIB,
        expected_bytes=base_bytes + expected_mib * MIB,
        high_bytes=base_bytes + high_mib * MIB,
    )


@cache
def load() -> Mapping[str, GpuRow]:
    """Every row by its name, checked."""
    rows: dict[str, GpuRow] = {}
    for place, entry in enumerate(_file()["gpu"], start=1):
        row = _row(entry, str(entry.get("name", f"number {place}")))
        if row.name in rows:
            raise ValueError(f"gpus.toml: {row.name} is there twice")
        rows[row.name] = row
    return rows


@cache
def _file() -> Mapping[str, Any]:
    import importlib
    import sys

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # the same code before 3.11
    with open(os.path.join(_data_path[0], "gpus.toml"), "rb") as file:
        loaded: Mapping[str, Any] = toml.load(file)
    return loaded


def _row(entry: Mapping[str, Any], name: str) -> GpuRow:
    """A row of the file; what is wrong with one is a ValueError that names it."""
    dtypes = [dtype for dtype in _TENSOR_DTYPES if f"tensor_{dtype}_tflops" in entry]
    if len(dtypes) != 1:
        raise ValueError(f"gpus.toml: {name} needs either tensor_bf16_tflops or tensor_fp16_tflops")
    rates = ("fp32_tflops", f"tensor_{dtypes[0]}_tflops")
    link = _LINK if _LINK & set(entry) else frozenset()
    if problems := set(entry) ^ {*_TEXT, *_COUNTS, *rates, *link}:
        raise ValueError(f"gpus.toml: {name} has or lacks {', '.join(sorted(problems))}")
    for field in entry:
        if not _is_valid(entry[field], text=field.startswith("source_") or field in _TEXT, count=field in _WHOLE):
            raise ValueError(f"gpus.toml: {name}: {field} is {entry[field]!r}")
    major, _, minor = entry["compute_capability"].partition(".")
    if not (major.isdecimal() and minor.isdecimal() and major in {key.partition(".")[0] for key in _GENERATIONS}):
        raise ValueError(f"gpus.toml: {name}: compute_capability is {entry['compute_capability']!r}")
    return GpuRow(
        name=entry["name"],
        full_name=entry["full_name"],
        capability=(int(major), int(minor)),
        fp32_tflops=float(entry[rates[0]]),
        tensor_tflops=float(entry[rates[1]]),
        tensor_dtype=dtypes[0],
        source_memory=entry["source_memory"],
        source_peak=entry["source_peak"],
        nvlink_gb_per_s=entry.get("nvlink_gb_per_s"),
        source_nvlink=entry.get("source_nvlink"),
        **{field: entry[field] for field in _COUNTS},
    )


def _is_valid(value: Any, *, text: bool, count: bool) -> bool:
    if text:
        return isinstance(value, str) and bool(value.strip())
    return isinstance(value, int if count else (int, float)) and not isinstance(value, bool) and value > 0
