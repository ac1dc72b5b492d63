"""Element types with their sizes, and the only place that divides by 2**30."""

from __future__ import annotations

import enum
import re

from .errors import InvalidRequest

__all__ = ["GIB", "MIB", "DType", "format_bytes", "parse_bytes", "parse_number"]

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

    __hash__ = object.__hash__  # each exists once, and types are looked up often

    def __init__(self, label: str, size: int) -> None:
        self.label = label
        self.size = size
        self.is_floating = label.startswith(("float", "bfloat"))


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


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(i?)b\s*", re.IGNORECASE | re.ASCII)
#: Python takes more: 1_000, and the digits of any script.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE | re.ASCII)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """``24GiB`` or ``24GB`` (powers of two and of ten) as bytes."""
    match = _SIZE.fullmatch(text)
    if isinstance(parse_number(text.strip()), (int, float)):
        raise InvalidRequest(f"memory {text!r} has no unit; write it as 24GiB or 24000MB")
    if match is None or float(match[1]) <= 0:
        raise InvalidRequest(f"memory {text!r} is not a positive size; write it as 24GiB or 24000MB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWER[match[2].lower()])


def parse_number(text: str) -> int | float | str:
    """A number where ``text`` is one in digits from 0 to 9, a whole one where it can be; else the text as it is."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return float(text) if match[2] or match[3] or match[4] or "." in text else int(text)
