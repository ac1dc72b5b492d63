"""The list of allocations that a play leaves behind: bytes, kind, layer, birth and death."""

from __future__ import annotations

import dataclasses

__all__ = ["Ledger"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Allocation ``i`` has ``bytes[i]``, ``kinds[i]``, ``layers[i]``.

    ``events`` is time: the number ``i`` where allocation ``i`` is born, ``~i`` where it dies. ``phases`` are
    (name, index of the first event).
    """

    bytes: tuple[int, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    events: tuple[int, ...]
    phases: tuple[tuple[str, int], ...]
