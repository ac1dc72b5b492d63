"""A measurement as a file of the kind that ``data/measurements`` holds: rows of settings, replayed by ``--corpus``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmem.errors import InvalidRequest
from vitmem.settings import TrainSettings

__all__ = ["append_row", "row_of", "write_rows"]

#: Where a setting says what was estimated and not what ran.
_NOT_OF_THE_RUN = {"gpu", "training_args", "torch"}


def row_of(settings: TrainSettings, measurement: Mapping[str, Any]) -> dict[str, Any]:
    """``measurement`` is the contract's object; settings are those that differ from the defaults."""
    defaults = TrainSettings().to_dict()
    given = {
        name: value
        for name, value in settings.to_dict().items()
        if value != defaults[name] and name not in _NOT_OF_THE_RUN
    }
    peak, failed = measurement["peak"], measurement.get("out_of_memory")
    row: dict[str, Any] = {"settings": {"model": settings.model, **given}}
    if failed is not None:
        return {**row, "error": f"OutOfMemory: {failed['message']}"}
    phases = {name: phase["allocated_bytes"] for name, phase in measurement["phases"].items()}
    return {
        **row,
        "allocated_bytes": peak["allocated_bytes"],
        "phases": {name: size for name, size in phases.items() if name != "first_step"},
        "first_step_bytes": phases["first_step"],
        "reserved_bytes": peak["reserved_bytes"],
        "device_bytes": peak["device_bytes"],
        "num_alloc_retries": measurement["num_alloc_retries"],
        "left_bytes": 0,
    }


def append_row(path: Path, gpu: str, measurement: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Into a new file, or behind the rows of one that was measured with the same GPU and versions."""
    head = {"gpu": gpu, "driver": measurement.get("driver"), "versions": measurement["versions"]}
    rows = []
    if path.exists():
        known = _read(path)
        if {name: known.get(name) for name in head} != head:
            raise InvalidRequest(f"{path} was measured with another GPU, driver or versions; give another --save")
        rows = known["rows"]
    write_rows(path, head, [*rows, row])


def write_rows(path: Path, head: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> None:
    """One row per line; whole or not at all."""
    text = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    document = f'{{{json.dumps(head)[1:-1]}, "rows": [\n{text}\n]}}\n'
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(document)
        os.replace(file.name, path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = document["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        rows = None
    if not isinstance(rows, list):
        raise InvalidRequest(f"{path} is no file of measurements; give another --save")
    known: dict[str, Any] = document
    return known
