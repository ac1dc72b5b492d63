"""Recommendations: configurations that fit, ranked, with what each changes, saves and costs.

The estimate's own play decides what fits; nothing here computes a byte.
"""

from .plan import Change, LighterModel, Nearest, Plan, Recommendation, Rung
from .recommender import recommend_settings

__all__ = ["Change", "LighterModel", "Nearest", "Plan", "Recommendation", "Rung", "recommend_settings"]
