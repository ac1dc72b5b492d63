"""transformers ``DeiTForImageClassification``: ViT with a distillation token (transformers 5.24, models/deit)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import TrainSettings
from . import hf_vit
from ._plan import Plan

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """As :func:`vitmem.families.hf_vit.plan`; the classifier reads the class token only."""
    return hf_vit.plan(model, settings, prefix="deit", tokens=("cls_token", "distillation_token"))
