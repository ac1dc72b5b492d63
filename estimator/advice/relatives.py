"""Models of the catalogue that stand near another one: of about its size with windowed attention, or smaller."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from re import split

from .. import catalog
from ..catalog import ModelConfig

__all__ = ["is_windowed", "smaller_than", "windowed_like"]

#: A relative has at most so many times the parameters, or as many times fewer; a smaller one at most this part.
_NEAR = 1.7
_SMALLER = 0.8


def is_windowed(model: ModelConfig) -> bool:
    """Whether its blocks attend within windows."""
    return "swin" in model.family


def windowed_like(model: ModelConfig) -> list[str]:
    """Those of the same library with windowed attention and about as many parameters, the nearest first."""
    near = [row for row in _of_library(model) if is_windowed(row) and _distance(row, model) < log(_NEAR)]
    return [row.name for row in sorted(near, key=lambda row: _distance(row, model))]


def smaller_than(model: ModelConfig) -> list[str]:
    """Those of the same family with clearly fewer parameters: those first whose names share most with the model's own
    (patch, size, way of training), of these the largest."""
    own = _SMALLER * (model.num_parameters or 0)
    smaller = [row for row in _of_library(model) if row.family == model.family and (row.num_parameters or own) < own]
    ranked = sorted(smaller, key=lambda row: (-_likeness(row.name, model.name), -(row.num_parameters or 0)))
    return [row.name for row in ranked]


def _likeness(one: str, other: str) -> float:
    """The share of the words of both names that stand in either."""
    words, others = (set(split(r"[-_/.]", name)) for name in (one, other))
    return len(words & others) / len(words | others)


def _of_library(model: ModelConfig) -> Iterator[ModelConfig]:
    rows = map(catalog.resolve, catalog.names())
    return (row for row in rows if row.library == model.library and row.num_parameters and row.name != model.name)


def _distance(one: ModelConfig, other: ModelConfig) -> float:
    if not (one.num_parameters and other.num_parameters):
        return float("inf")
    return abs(log(one.num_parameters / other.num_parameters))
