"""The catalogue as a report: one table per family."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..result import SCHEMA_VERSION
from .tables import Cell, Column, Report, Table

__all__ = ["models_report"]

_MILLION = 1_000_000


class Known(Protocol):
    """What a row shows of a catalogued model."""

    @property
    def name(self) -> str: ...
    @property
    def library(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def num_parameters(self) -> int | None: ...
    @property
    def native_size(self) -> tuple[int, int] | None: ...


def models_report(rows: Iterable[tuple[Known, int | None]], *, version: str) -> Report:
    """``rows`` are models with the bytes that one more image costs in training; ``version`` is vitmem's."""
    by_family: dict[str, list[tuple[Cell, ...]]] = {}
    documents = []
    for model, per_image in rows:
        by_family.setdefault(model.family, []).append(_row(model, per_image))
        documents.append(_document(model, per_image))
    return Report(
        headline=f"{len(documents)} model{'' if len(documents) == 1 else 's'}.",
        subtitle=("Parameters at 1000 classes; per image: what one more image costs in training at the defaults.",),
        tables=tuple(_table(family, found) for family, found in by_family.items()),
        notes=(),
        document={"schema_version": SCHEMA_VERSION, "vitmem_version": version, "models": documents},
    )


def _table(family: str, rows: list[tuple[Cell, ...]]) -> Table:
    columns = (
        Column(name="name"),
        Column(name="params", kind="count"),
        Column(name="pixels", kind="count"),
        Column(name="per image", kind="bytes"),
    )
    return Table(name=family, title=family, columns=columns, rows=tuple(rows))


def _row(model: Known, per_image: int | None) -> tuple[Cell, ...]:
    millions = None if model.num_parameters is None else f"{model.num_parameters / _MILLION:,.1f} M"
    size = None if model.native_size is None else "x".join(map(str, dict.fromkeys(model.native_size)))
    return model.name, millions, size, per_image


def _document(model: Known, per_image: int | None) -> dict[str, Any]:
    return {
        "name": model.name,
        "library": model.library,
        "family": model.family,
        "num_parameters": model.num_parameters,
        "native_size": None if model.native_size is None else list(model.native_size),
        "bytes_per_image": per_image,
    }
