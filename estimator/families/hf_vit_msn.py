"""transformers ``ViTMSNForImageClassification`` (transformers 5.24, models/vit_msn): ViT under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import TrainSettings
from . import hf_vit
from ._plan import Plan

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """As ViT; the mask token is left out by the classifier."""
    return hf_vit.plan(model, settings)
