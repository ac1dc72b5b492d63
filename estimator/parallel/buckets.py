"""Sizes of ZeRO's buckets that suit a model: DeepSpeed's own suit models of many billions of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidRequest
from .zero_config import AUTO, STAGES, ZeroConfig, hidden_size

if TYPE_CHECKING:
    from ..families import Plan
    from ..settings import TrainSettings

__all__ = ["Options", "bucket_options"]

Options = tuple[tuple[str, int | str], ...]

_LIMITS = ("stage3_max_live_parameters", "stage3_max_reuse_distance")
_STEP = 100_000_000
_OF_STAGE_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


def bucket_options(engine: str, settings: TrainSettings, plan: Plan, largest: int) -> Options:
    """The options of ``zero_optimization`` for a stage of ZeRO; none for another engine.

    ``auto`` where Trainer fills it in. For a model without a ``hidden_size`` buckets hold the ``largest`` parameter, in
    elements, and what is gathered ahead nine tenths of that, as Trainer has it; DeepSpeed decides what persists. Of a
    model of more than half a billion parameters ZeRO-3's limits are raised above two passes over it: what DeepSpeed's
    own make it let go and gather again is not modelled.
    """
    if engine not in STAGES:
        return ()
    limits = _limits(plan) if STAGES[engine] == 3 else ()
    try:
        hidden_size(settings, plan)
    except InvalidRequest:
        ahead = (("stage3_prefetch_bucket_size", largest * 9 // 10),)
        return (("reduce_bucket_size", largest), *(ahead if STAGES[engine] == 3 else ()), *limits)
    names = ("reduce_bucket_size", *(_OF_STAGE_3 if STAGES[engine] == 3 else ()))
    return (*((name, AUTO) for name in names), *limits)


def _limits(plan: Plan) -> Options:
    """A quarter more than two passes, for what settings add to the catalogue's count."""
    needed = (plan.model.num_parameters or 0) * 5 // 2
    if needed < ZeroConfig(stage=3).stage3_max_reuse_distance:
        return ()
    return tuple((name, -(-needed // _STEP) * _STEP) for name in _LIMITS)
