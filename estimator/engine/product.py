"""What matrix products, convolutions and attention kernels compute."""

from __future__ import annotations

from typing import NamedTuple

from ..units import DType

__all__ = ["Product"]


class Product(NamedTuple):
    """A matrix product, convolution or attention kernel: a multiply and an add are two floating-point operations.

    ``phase`` is an index into the run's phases, ``born`` the allocation of the result.
    """

    flops: int
    dtype: DType
    layer: str
    recomputed: bool
    phase: int
    born: int
