"""What ``PYTORCH_CUDA_ALLOC_CONF`` says (c10/core/AllocatorConfig.h of torch 2.14)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import InvalidRequest, NotModelled
from ..units import MIB

__all__ = ["AllocatorConfig"]

_OPTIONS = ("expandable_segments", "max_split_size_mb")
_OTHER_OPTIONS = (
    "backend",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` sets, and the device: all its memory, and what of it segments may take.

    ``capacity`` None is no limit.
    """

    expandable_segments: bool = False
    max_split_size: int | None = None
    device_bytes: int = 80 * 2**30
    capacity: int | None = None

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """``PYTORCH_CUDA_ALLOC_CONF``'s spelling; raises InvalidRequest or NotModelled for another option."""
        fields: dict[str, Any] = {}
        for option in text.replace(" ", "").split(","):
            key, _, value = option.partition(":")
            if key == "expandable_segments" and value.lower() in {"true", "false"}:
                fields[key] = value.lower() == "true"
            elif key == "max_split_size_mb" and value.isdecimal() and int(value) > 20:
                fields["max_split_size"] = int(value) * MIB
            elif key in _OTHER_OPTIONS:
                raise NotModelled(f"alloc_conf {key} is not modelled; modelled are {', '.join(_OPTIONS)}")
            elif option:
                raise InvalidRequest(
                    f"alloc_conf {option!r} is not valid; write it as expandable_segments:True or "
                    "max_split_size_mb:128 (more than 20)"
                )
        return cls(**fields)
