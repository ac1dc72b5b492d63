"""Torch's CPU in the place of a GPU: for a validation that needs no more than the machine at hand (torch 2.14).

No cuBLAS, no rounding, an autocast list of its own, updates one parameter after the other. What oneDNN keeps for itself
does not come from torch's allocator and is no part of any figure.
"""

from __future__ import annotations

from .errors import InvalidRequest

__all__ = ["ASSUMPTIONS", "NOT_MODELLED", "attention"]

ASSUMPTIONS = (
    "kernels, autocast and optimizer as torch 2.14 picks them on the CPU: no workspaces, no rounding",
    "a steady-state step (the third): optimizer state exists",
)
NOT_MODELLED = (
    "what kernels borrow by instruction set and number of threads (oneDNN, MKL, tiles of attention)",
    "the host's random state that a checkpoint saves, 5056 bytes each, and indices that a library caches",
)


def attention(asked: str, dropout: float, *, mask: bool | None, dense: bool) -> str:
    """The kernel behind ``scaled_dot_product_attention``: cpu-flash, or math where there is dropout, a mask that is
    learnt, or a last dimension that is not dense (ATen/native/transformers/sdp_utils_cpp.cpp)."""
    possible = dropout == 0 and mask is not True and dense
    if asked in {"auto", "flash"} and possible:
        return "cpu-flash"
    if asked in {"auto", "math"}:
        return "math"
    why = (
        "flash attention takes no dropout and no learnt mask there"
        if asked == "flash"
        else "the CPU has no such kernel"
    )
    raise InvalidRequest(f"sdpa_kernel {asked!r} cannot run on the CPU: {why}; leave it out")
