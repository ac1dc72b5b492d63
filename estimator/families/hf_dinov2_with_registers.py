"""transformers ``Dinov2WithRegistersForImageClassification`` (transformers 5.24, models/dinov2_with_registers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import TrainSettings
from . import hf_dinov2
from ._plan import Plan

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """As :func:`vitmem.families.hf_dinov2.plan`, with register tokens."""
    return hf_dinov2.plan(model, settings, prefix="dinov2_with_registers")
