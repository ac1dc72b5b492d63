"""A parameter divided by itself, and gathers of several on their way (deepspeed 0.19.8, partition_parameters.py)."""

from __future__ import annotations

from ..engine import Tensor
from ..engine.autograd import AccumulateGrad

__all__ = ["Gathered", "Sharded", "sub_groups"]


class Gathered:
    """A gather on its way: the flat buffer goes when the last of its parameters was used."""

    def __init__(self, flat: Tensor | None, waiting: list[Sharded]) -> None:
        self.flat, self.waiting, self.arrived = flat, waiting, False


class Sharded:
    """A parameter, its share on each rank, and where the whole of it is."""

    def __init__(self, parameter: Tensor, ranks: int, *, persists: bool) -> None:
        assert parameter.accumulator is not None
        self.parameter, self.persists = parameter, persists
        self.leaf: AccumulateGrad = parameter.accumulator
        self.numel = parameter.numel
        self.share = -(-parameter.numel // ranks)
        self.padded = self.share * ranks
        self.trains = parameter.requires_grad
        self.shard = parameter
        self.is_available = False
        self.on_its_way: Gathered | None = None


def sub_groups(group: list[Sharded], size: int) -> list[list[Sharded]]:
    """``_create_fp16_sub_groups``: what the optimizer updates at a time, of so many elements of a rank."""
    parts: list[list[Sharded]] = [[]]
    for s in group:
        if sum(other.share for other in parts[-1]) >= size:
            parts.append([])
        parts[-1].append(s)
    return parts
