"""What one GPU exchanges with others and with the host in an optimizer step, by the engine's own calls.

Volumes of collectives are those that a ring sends over each link (NVIDIA, nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OF_BACKWARD", "Traffic", "all_gather", "all_reduce", "reduce_scatter"]

#: The backward pass' share of a step's work: twice the products of the forward pass.
OF_BACKWARD = 2 / 3


class Traffic(NamedTuple):
    """Bytes of one rank in one optimizer step, all micro-steps together.

    Of ``link_bytes``, sent to other GPUs by all ``ranks`` at once, ``hideable_bytes`` run beside ``hiding_share`` of
    the step's own work. ``host_link_bytes`` go to the host and back; ``host_memory_bytes`` are what the update reads
    and writes there, those of all ranks of the machine together, which share its memory.
    """

    ranks: int = 1
    link_bytes: int = 0
    hideable_bytes: int = 0
    hiding_share: float = 0.0
    host_link_bytes: int = 0
    host_memory_bytes: int = 0


def all_reduce(num_bytes: int, ranks: int) -> int:
    """Sent by each rank for the sum of ``num_bytes`` that every rank has."""
    return 2 * num_bytes * (ranks - 1) // ranks


def all_gather(num_bytes: int, ranks: int) -> int:
    """Sent by each rank until all have ``num_bytes``, of which every rank had its part."""
    return num_bytes * (ranks - 1) // ranks


reduce_scatter = all_gather
