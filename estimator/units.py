"""Element types with their sizes, and the only place that divides by 2**30."""

from __future__ import annotations

import enum
import re

from .errors import InvalidRequest

__all__ = ["GIB", "MIB", "DType", "format_bytes", "parse_bytes"]

MIB = 2**20
GIB = 2**30


class DType(enum.Enum):
    """A tensor's element type, named as torch names it; ``size`` is in bytes per element."""

    float64 = ("float64", 8)
    float32 = ("float32", 4)
    float16 = ("float16", 2)
    bfloat16 = ("bfloat16", 2)
    int64 = ("int64", 8)
    int32 = ("int32", 4)
    uint8 = ("uint8", 1)
    bool = ("bool", 1)

    def __init__(self, label: str, size: int) -> None:
        self.label = label
        self.size = size

    @property
    def is_floating(self) -> bool:  # type: ignore[valid-type]
        return self.label.startswith(("float", "bfloat"))


def format_bytes(num_bytes: int) -> str:
    """Bytes as a person reads them: powers of two, three significant places above a MiB."""
    magnitude = abs(num_bytes)
    if magnitude >= GIB:
        return f"{num_bytes / GIB:.2f} GiB"
    if magnitude >= MIB:
        return f"{num_bytes / MIB:.1f} MiB"
    if magnitude >= 1024:
        return f"{num_bytes / 1024:.1f} KiB"
    return f"{num_bytes} B"


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(i?)b\s*", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """``24GiB`` or ``24GB`` (powers of two and of ten) as bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise InvalidRequest(f"memory {text!r} is not a positive size; write it as 24GiB or 24000MB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWER[match[2].lower()])
