"""What a family hands to the step: how to build the model, and what can be said of it before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine import Module, Scope
from ..errors import InvalidRequest
from ..settings import TrainSettings

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["Plan", "apply_overrides", "linear_rates", "require_divisible"]

ConfigT = TypeVar("ConfigT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model ready to be built: ``build(scope)`` makes its parameters and returns its ``forward``.

    ``blocks`` are the paths of what ``--freeze-layers`` and ``--checkpoint-layers`` count, in order.
    ``head`` and ``stem`` are the rows of the classifier and of all that comes before the blocks.
    ``attn`` is what really runs, ``auto`` where eager and fused attention are mixed.
    ``fused_evaluation``: without gradients and autocast, another kernel runs than in training, which is not modelled.
    A remainder of pixels over ``patch_size`` is ignored, or with ``pads_images`` filled up with zeros.
    """

    model: ModelConfig
    build: Callable[[Scope], Module]
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_tokens: int
    blocks: tuple[str, ...]
    head: tuple[str, ...]
    stem: tuple[str, ...]
    attn: str
    resolved: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    pads_images: bool = False
    fused_evaluation: bool = False


def apply_overrides(config: ConfigT, settings: TrainSettings, fields: Mapping[str, str]) -> ConfigT:
    """``config`` with the settings that the user gave; ``fields`` maps a setting to the library's name for it."""
    given = {field: getattr(settings, name) for name, field in fields.items() if getattr(settings, name) is not None}
    return dataclasses.replace(config, **given)  # type: ignore[type-var]


def linear_rates(rate: float, depth: int) -> tuple[float, ...]:
    """Stochastic depth growing linearly from 0 at the first block to ``rate`` at the last (``torch.linspace``)."""
    return tuple(rate * i / max(depth - 1, 1) for i in range(depth))


def require_divisible(what: str, value: int, by_what: str, by: int) -> None:
    """The libraries' assertion that heads divide the width."""
    if value % by:
        raise InvalidRequest(f"{what} {value} is not divisible by {by_what} {by}; the library refuses it")
