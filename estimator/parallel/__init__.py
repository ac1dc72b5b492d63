"""Data parallelism: what each engine keeps and borrows on the most loaded of its GPUs. One row per engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import NotModelled
from .strategy import Strategy

if TYPE_CHECKING:
    from ..settings import TrainSettings

__all__ = ["STRATEGIES", "Strategy", "casts_model", "engine_of", "strategy_of"]


class _Rows(Mapping[str, "type[Strategy]"]):
    """Engines by name, each given by its module and class: most estimates need none of the modules."""

    def __init__(self, rows: Mapping[str, tuple[str, str]]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> type[Strategy]:
        module, strategy = self._rows[name]
        found: type[Strategy] = getattr(import_module(f".{module}", __name__), strategy)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


STRATEGIES: Mapping[str, type[Strategy]] = _Rows(
    {
        "none": ("strategy", "Strategy"),
        "ddp": ("ddp", "DDP"),
        "zero1": ("zero", "Zero1"),
        "zero2": ("zero", "Zero2"),
        "zero3": ("zero3", "Zero3"),
        "fsdp": ("fsdp", "FSDP"),
    }
)


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
