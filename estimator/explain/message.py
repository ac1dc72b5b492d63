"""PyTorch's out-of-memory message as figures, in the three wordings that it has had.

- torch 1.0 to 1.4: ``... (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB
  cached)``, where cached is what is reserved and not allocated (pytorch/pytorch#16417);
- torch 1.5 to 2.0: ``... 1.24 GiB reserved in total by PyTorch)``, with ``X allowed;`` before it under
  ``set_per_process_memory_fraction`` (pytorch/pytorch#59778);
- since 2.1: ``GPU 0 has a total capacity of ... of which ... is free. ...`` ("capacty" at first), with a sentence per
  process (kerrj/lerf#73, FoundationVision/GenerateU#10, and the strings of libc10_cuda.so of torch 2.14).
"""

from __future__ import annotations

import dataclasses
import re

from ..units import GIB, MIB

__all__ = ["OutOfMemory", "find_messages"]

_UNITS = {"bytes": 1, "b": 1, "kib": 1024, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
#: A size as ``format_size`` writes it; so few digits that no size is too large for a float.
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?)\s{1,9}(bytes|[KMGT]iB)"
#: A message is one line of at most this many characters; terminals wrap it.
_LONGEST = 1500

_HEAD = re.compile(
    r"(?:CUDA|HIP|XPU) out\s{1,9}of\s{1,9}memory\.\s{1,9}(?:Tried to allocate|Allocation was preemptively)"
    r"|(?<=[\s(])Tried to allocate(?=\s{1,9}\d[^\n]{0,40}\(GPU)",
    re.IGNORECASE,
)
_TRIED = re.compile(rf"(?:Tried to allocate|Requested size:)\s{{1,9}}{_SIZE}", re.IGNORECASE)
_GPU = re.compile(r"\bGPU (\d{1,4})\b")
_FIGURES = {
    "total_bytes": (rf"total capaci?ty\s{{1,9}}of\s{{1,9}}{_SIZE}", rf"{_SIZE}\s{{1,9}}total capacity"),
    "free_bytes": (rf"{_SIZE}\s{{1,9}}is\s{{1,9}}free", rf"{_SIZE}\s{{1,9}}free;"),
    "allocated_bytes": (
        rf"{_SIZE}\s{{1,9}}is\s{{1,9}}allocated\s{{1,9}}by\s{{1,9}}PyTorch",
        rf"{_SIZE}\s{{1,9}}already\s{{1,9}}allocated",
    ),
    "unallocated_bytes": (
        rf"{_SIZE}\s{{1,9}}is\s{{1,9}}reserved\s{{1,9}}by\s{{1,9}}PyTorch\s{{1,9}}but",
        rf"{_SIZE}\s{{1,9}}cached",
    ),
    "reserved_bytes": (rf"{_SIZE}\s{{1,9}}reserved\s{{1,9}}in\s{{1,9}}total",),
    "allowed_bytes": (rf"{_SIZE}\s{{1,9}}allowed",),
    "private_bytes": (rf"{_SIZE}\s{{1,9}}allocated\s{{1,9}}in\s{{1,9}}private",),
    "process_bytes": (rf"this process\s{{1,9}}has\s{{1,9}}{_SIZE}",),
}
_PATTERNS = {name: [re.compile(pattern, re.IGNORECASE) for pattern in patterns] for name, patterns in _FIGURES.items()}
_PROCESS = re.compile(rf"Process (\d{{1,9}})\s{{1,9}}has\s{{1,9}}{_SIZE}", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One message; sizes in bytes, to the two decimals that it shows, and ``None`` where it does not say.

    ``others`` are (process id, bytes) of the processes that are not this one. ``reserved_bytes`` is what the caching
    allocator holds, ``unallocated_bytes`` the part of it that no tensor uses. ``start`` is its place in the text.
    """

    start: int
    requested_bytes: int | None
    gpu: int | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    unallocated_bytes: int | None
    allowed_bytes: int | None
    private_bytes: int | None
    process_bytes: int | None
    others: tuple[tuple[int, int], ...]
    is_preempted: bool

    @property
    def others_bytes(self) -> int:
        """What other processes hold, as far as the message names them."""
        return sum(size for _, size in self.others)

    @property
    def unexplained_bytes(self) -> int | None:
        """In use on the device, and neither PyTorch's here nor a named process's: contexts, and processes that the
        message does not name."""
        if self.total_bytes is None or self.free_bytes is None or self.reserved_bytes is None:
            return None
        own = max(self.reserved_bytes, self.process_bytes or 0)
        return max(self.total_bytes - self.free_bytes - own - self.others_bytes, 0)


def find_messages(text: str) -> list[OutOfMemory]:
    """Every out-of-memory message in ``text``, in order."""
    starts = [match.start() for match in _HEAD.finditer(text)]
    ends = [*starts[1:], len(text)]
    return [_message(text, start, min(end, start + _LONGEST)) for start, end in zip(starts, ends)]


def _message(text: str, start: int, end: int) -> OutOfMemory:
    body = text[start:end]
    found = {name: _first(patterns, body) for name, patterns in _PATTERNS.items()}
    allocated, reserved, unallocated = (found[f"{name}_bytes"] for name in ("allocated", "reserved", "unallocated"))
    if allocated is not None and reserved is not None:
        unallocated = max(reserved - allocated, 0)
    elif allocated is not None and unallocated is not None:
        reserved = allocated + unallocated + (found["private_bytes"] or 0)
    gpu = _GPU.search(body)
    named = tuple((int(pid), _bytes(number, unit)) for pid, number, unit in _PROCESS.findall(body))
    process, others = _told_apart(named, {**found, "reserved_bytes": reserved})
    return OutOfMemory(
        start=start,
        requested_bytes=_first([_TRIED], body),
        gpu=None if gpu is None else int(gpu[1]),
        others=others,
        is_preempted="preemptively" in body,
        **{**found, "reserved_bytes": reserved, "unallocated_bytes": unallocated, "process_bytes": process},
    )


def _told_apart(
    named: tuple[tuple[int, int], ...], found: dict[str, int | None]
) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """This process among the named ones.

    In a container the driver's process ids are not the process's own, so that it is named like any other: it is there
    where the named ones and what PyTorch holds would together be more than is in use.
    """
    process, reserved = found["process_bytes"], found["reserved_bytes"]
    total, free = found["total_bytes"], found["free_bytes"]
    if process is not None or None in (reserved, total, free):
        return process, named
    assert reserved is not None
    assert total is not None
    assert free is not None
    candidates = sorted((size, place) for place, (_, size) in enumerate(named) if size >= reserved)
    if not candidates or sum(size for _, size in named) + reserved <= total - free:
        return None, named
    size, place = candidates[0]
    return size, named[:place] + named[place + 1 :]


def _first(patterns: list[re.Pattern[str]], body: str) -> int | None:
    for pattern in patterns:
        if (match := pattern.search(body)) is not None:
            return _bytes(match[1], match[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.lower()])
