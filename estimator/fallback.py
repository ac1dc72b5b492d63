"""A model without a family file: its library builds it, and the step is rehearsed on the meta device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .device import device_of
from .errors import NoFamily, NotModelled
from .extra import real_libraries
from .generations import Torch
from .loops import with_defaults
from .parallel import engine_of
from .result import Estimate
from .settings import TrainSettings
from .units import format_bytes

__all__ = ["rehearsed"]


def rehearsed(settings: TrainSettings, reason: NoFamily) -> Estimate:
    """The estimate that the real model gives; ``reason`` says why it was needed. Seconds, not milliseconds.

    Raises NotModelled with the install hint where the libraries are missing, and what the libraries refuse.
    """
    torch = Torch.parse(settings.torch)
    if not torch.is_newest:
        raise NotModelled(f"{reason}; a rehearsal runs the torch that is installed; leave out --torch {torch.label}")
    if (engine := engine_of(settings)) != "none":
        raise NotModelled(
            f"{reason}; a rehearsal is of a GPU that trains alone; leave out --gpus, or --parallel {engine}"
        )
    with real_libraries(f"{reason}; its real model can be rehearsed instead, which takes the libraries"):
        from .validate.rehearsed import estimate

        answer = estimate(with_defaults(settings), str(reason))
    return dataclasses.replace(answer, verdict=_verdict(settings, answer))


def _verdict(settings: TrainSettings, answer: Estimate) -> Mapping[str, Any] | None:
    """Tensors that are too many do not fit; whether others do is not known, and then there is no answer."""
    device = device_of(settings)
    if device.total_bytes is None or device.context is None:
        return None
    usable = device.total_bytes - device.context.expected_bytes
    if answer.peak.tensor_bytes <= device.total_bytes - device.context.low_bytes:
        raise NotModelled(
            f"{settings.model}: its tensors alone take {format_bytes(answer.peak.tensor_bytes)}; whether all of it "
            f"fits {device.name} is not known for a rehearsed model; leave out --gpu and --memory"
        )
    return {
        "gpu": device.name,
        "usable_bytes": usable,
        "fits": "no",
        "headroom_bytes": usable - answer.peak.tensor_bytes,
    }
