"""Files that ``--save`` and ``scripts/gpu_session.py`` wrote, as rows to replay. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitmem.errors import InvalidRequest
from vitmem.settings import TrainSettings, torch_setting

from .measured_rows import Figure, Reason

__all__ = ["MEASURED_HERE", "figures_of", "reasons_of"]

#: The source of these rows.
MEASURED_HERE = "measured here"
_METRICS = ("allocated", "reserved", "device")


def figures_of(source: Path) -> Iterator[Figure]:
    """What each row of a file, or of each file of a folder, measured, with the torch that it was measured with; NVML's
    figure only where there was one."""
    for path, file in _files(source):
        torch = torch_setting(file.get("versions", {}).get("torch") or TrainSettings().torch)
        for number, row in enumerate(file["rows"]):
            if "error" in row:
                continue
            for metric in _METRICS:
                if row.get(f"{metric}_bytes") is not None:
                    yield Figure(
                        id=f"{path.stem}-{number}",
                        source=MEASURED_HERE,
                        metric=metric,
                        gpu=file["gpu"],
                        settings={**row["settings"], "torch": torch},
                        measured=row[f"{metric}_bytes"],
                        left_bytes=row.get("left_bytes", 0) if metric == "allocated" else 0,
                    )


def reasons_of(source: Path) -> Iterator[Reason]:
    """Rows that have no figure, and why."""
    for path, file in _files(source):
        for number, row in enumerate(file["rows"]):
            if "error" in row:
                yield Reason(ids=(f"{path.stem}-{number}",), source=path.name, reason=row["error"])


def _files(source: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    paths = [source] if source.is_file() else sorted(source.glob("*.json"))
    if not source.exists():
        raise InvalidRequest(f"{source} is not there; `vitmem validate --save FILE` writes a file of measurements")
    if not paths:
        raise InvalidRequest(f"{source} has no *.json with measurements; `vitmem validate --save FILE` writes one")
    for path in paths:
        try:
            file = json.loads(path.read_text(encoding="utf-8"))
            is_whole = isinstance(file["gpu"], str) and all("settings" in row for row in file["rows"])
        except (OSError, ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise InvalidRequest(f"{path} is no file of measurements; `vitmem validate --save FILE` writes one")
        yield path, file
