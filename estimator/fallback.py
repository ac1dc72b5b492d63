"""A model without a family file: its library builds it, and the step is rehearsed on the meta device."""

from __future__ import annotations

from .errors import NoFamily
from .extra import real_libraries
from .loops import with_defaults
from .result import Estimate
from .settings import TrainSettings

__all__ = ["rehearsed"]


def rehearsed(settings: TrainSettings, reason: NoFamily) -> Estimate:
    """The estimate that the real model gives; ``reason`` says why it was needed. Seconds, not milliseconds.

    Raises NotModelled with the install hint where the libraries are missing, and what the libraries refuse.
    """
    with real_libraries(f"{reason}; its real model can be rehearsed instead, which takes the libraries"):
        from .validate.rehearsed import estimate

        return estimate(with_defaults(settings), str(reason))
