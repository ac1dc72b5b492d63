"""Data parallelism: what each engine keeps and borrows on the most loaded of its GPUs. One row per engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import NotModelled
from .ddp import DDP
from .fsdp import FSDP
from .strategy import Strategy
from .zero import Zero1, Zero2
from .zero3 import Zero3

if TYPE_CHECKING:
    from ..settings import TrainSettings

__all__ = ["STRATEGIES", "Strategy", "casts_model", "engine_of", "strategy_of"]

STRATEGIES: Mapping[str, type[Strategy]] = {
    "none": Strategy,
    "ddp": DDP,
    "zero1": Zero1,
    "zero2": Zero2,
    "zero3": Zero3,
    "fsdp": FSDP,
}


def engine_of(settings: TrainSettings) -> str:
    """The name of the engine: DDP unless it is given."""
    return settings.parallel or ("ddp" if settings.gpus > 1 else "none")


def casts_model(settings: TrainSettings) -> bool:
    """Whether the engine trains a 16-bit model where others have autocast; raises as ``strategy_of`` does."""
    return settings.precision in {"bf16", "fp16"} and strategy_of(settings).casts_model


def strategy_of(settings: TrainSettings) -> type[Strategy]:
    """The engine that the settings name, or DDP for several GPUs; raises ``NotModelled`` for one without a row."""
    name = engine_of(settings)
    if name not in STRATEGIES:
        raise NotModelled(
            f"--parallel {name} is not modelled yet: what its gathers and prefetches hold was not checked against real "
            "processes; use ddp, zero1, zero2 or zero3"
        )
    return STRATEGIES[name]
