"""vitmem: what a training step of a vision transformer needs on a GPU, computed without running it."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from .errors import DoesNotFit, InvalidRequest, NotModelled, UnknownName, VitmemError
from .result import Estimate
from .settings import TrainSettings

if TYPE_CHECKING:
    from .advice import Plan
    from .solver import Solution

__version__ = "0.1.0"

__all__ = [
    "DoesNotFit",
    "Estimate",
    "InvalidRequest",
    "NotModelled",
    "TrainSettings",
    "UnknownName",
    "VitmemError",
    "__version__",
    "estimate",
    "recommend",
    "solve",
]


def estimate(model: str | PathLike[str] | None = None, **settings: Any) -> Estimate:
    """The memory of one training step of ``model`` under ``settings`` (the fields of :class:`TrainSettings`).

    Raises ``InvalidRequest`` for what the library would refuse and ``NotModelled`` for what this version cannot say.
    """
    from .pipeline import estimate_settings

    return estimate_settings(TrainSettings.of(model, **settings))


def solve(what: str, model: str | PathLike[str] | None = None, **settings: Any) -> Solution:
    """The largest ``bs``, the largest ``res`` or the smallest ``gpu`` that fits, all else as ``settings`` say.

    Raises ``DoesNotFit`` where nothing fits, else as :func:`estimate`.
    """
    from .solver import solve_settings

    return solve_settings(what, TrainSettings.of(model, **settings))


def recommend(model: str | PathLike[str] | None = None, **settings: Any) -> list[Plan]:
    """The plans for ``model`` that fit ``gpu`` or ``memory``, ranked; none where nothing fits.

    ``effective_batch``, ``allow``, ``forbid`` and ``num_plans`` beside the fields of :class:`TrainSettings`; raises as
    :func:`estimate`.
    """
    from .advice import recommend_settings

    names = ("effective_batch", "allow", "forbid", "num_plans")
    options = {name: settings.pop(name) for name in names if name in settings}
    return list(recommend_settings(TrainSettings.of(model, **settings), **options).plans)
