"""What ``data/measurements`` holds: figures and rungs of a batch ladder to replay, and reasons. Needs no torch."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitmem import data

__all__ = ["Figure", "Reason", "Rung", "figures", "reasons", "rungs"]

FOLDER = Path(data.__path__[0]) / "measurements"
_MIB = 2**20
Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. ``base`` None: ``measured`` is bytes of ``metric``; with a ``base`` it is bytes of the
    difference, or, with a ``low`` and a ``high``, a ratio that the source's rounding leaves between them.

    ``left_bytes`` is what an earlier configuration left in the measuring process.
    """

    id: str
    source: str
    metric: str
    gpu: str
    settings: Settings
    base: Settings | None = None
    measured: float
    low: float | None = None
    high: float | None = None
    left_bytes: int = 0
    cause: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A batch that a training was seen to fit into a GPU with, or not."""

    id: str
    source: str
    gpu: str
    settings: Settings
    image_size: int
    num_parameters_millions: float
    fitted: bool
    cause: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a row cannot be replayed."""

    ids: tuple[str, ...]
    source: str
    reason: str


def figures() -> Iterator[Figure]:
    """Every measured number: those without a GPU, then the public ones."""
    for path in sorted(FOLDER.glob("null_*.json")):
        measured = json.loads(path.read_text(encoding="utf-8"))
        for number, row in enumerate(measured["rows"]):
            if "error" not in row:
                yield from _null_figures(f"{path.stem}-{number}", measured["gpu"], row)
    yield from _public_figures()


#: The field of a row behind a metric. Where more was run than training, ``reserved_bytes`` is that of all of it.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "allocated": ("allocated_bytes",),
    "reserved": ("steady_reserved_bytes", "reserved_bytes"),
    "evaluation": ("evaluation_bytes",),
    "last_batch": ("last_batch_bytes",),
    "resume": ("resume_bytes",),
}


def _null_figures(id_: str, gpu: str, row: Mapping[str, Any]) -> Iterator[Figure]:
    for metric, fields in _FIELDS.items():
        measured = next((row[field] for field in fields if row.get(field) is not None), None)
        if measured is not None:
            yield Figure(
                id=id_,
                source="null device",
                metric=metric,
                gpu=gpu,
                settings=row["settings"],
                measured=measured,
                left_bytes=0 if metric == "reserved" else row["left_bytes"],
            )


def _public_figures() -> Iterator[Figure]:
    sources = _csv("public_measurements")
    file = _toml("public_measurements")
    for kind in ("value", "difference", "ratio"):
        for row in file.get(kind, ()):
            known = {"source", "metric", "gpu", "settings", "base", "low", "high", "cause"} & set(row)
            fields = {name: row[name] for name in known}
            if row["id"] in sources:
                fields.setdefault("source", sources[row["id"]]["source"])
            value = row["low"] if kind == "ratio" else row.get("value_mib") or sources[row["id"]]["value_mib"]
            measured = (row["low"] + row["high"]) / 2 if kind == "ratio" else round(float(value) * _MIB)
            yield Figure(id=row["id"], measured=measured, **fields)


def rungs() -> Iterator[Rung]:
    """timm's ladder: the batch that fitted and, where the first did not fit, the one above it."""
    file = _toml("timm_train_bounds")
    refused = {name for row in file["unsupported"] for name in row["models"]}
    for row in _csv_rows("timm_train_bounds"):
        if row["model"] in refused:
            continue
        renamed = file["renamed"].get(row["model"], {"model": row["model"]})
        for column, fitted in (("batch_fits", True), ("batch_oom_next", False)):
            if row[column]:
                yield Rung(
                    id=f"{row['model']} torch {row['torch']} bs {row[column]}",
                    source=row["source_file"],
                    gpu=file["gpu"],
                    settings={**file["settings"], **renamed, "bs": int(row[column]), "torch": row["torch"]},
                    image_size=int(row["img_size"]),
                    num_parameters_millions=float(row["params_m"]),
                    fitted=fitted,
                    cause=_cause_of(file["cause"], row),
                )


def _cause_of(causes: list[Mapping[str, Any]], row: Mapping[str, str]) -> str | None:
    for known in causes:
        if row["model"] in known["models"] and known.get("torch", row["torch"]) == row["torch"]:
            cause: str = known["cause"]
            return cause
    return None


def reasons() -> Iterator[Reason]:
    """What cannot be replayed, and why."""
    for row in _toml("public_measurements")["unsupported"]:
        yield Reason(ids=tuple(row["ids"]), source="public_measurements.csv", reason=row["reason"])
    rows = _csv_rows("timm_train_bounds")
    for row in _toml("timm_train_bounds")["unsupported"]:
        ids = tuple(f"{r['model']} {r['source_file']}" for r in rows if r["model"] in row["models"])
        yield Reason(ids=ids, source="timm_train_bounds.csv", reason=row["reason"])


def _csv_rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _csv(name: str) -> dict[str, dict[str, str]]:
    return {row["id"]: row for row in _csv_rows(name)}


def _toml(name: str) -> Any:
    import importlib

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # the same code before 3.11
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return toml.load(file)
