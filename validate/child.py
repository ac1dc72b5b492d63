"""The child of :mod:`.in_child`: what to measure as JSON on stdin, the measurement or the refusal as JSON into a file.

python -m vitmem.validate.child RESULT.json < REQUEST.json
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmem.errors import VitmemError
from vitmem.settings import TrainSettings


def _cpu(settings: TrainSettings, options: Mapping[str, Any]) -> dict[str, Any]:
    from vitmem.validate.cpu import measure

    return {"measured": measure(settings, **options).to_dict()}


def _cuda(settings: TrainSettings, options: Mapping[str, Any]) -> dict[str, Any]:
    from vitmem.validate.cuda import OutOfMemory, measure

    try:
        return {"measured": measure(settings, **options).to_dict()}
    except OutOfMemory as error:
        return {"out_of_memory": error.to_dict()}


def _cuda_run(settings: TrainSettings, options: Mapping[str, Any]) -> dict[str, Any]:
    from vitmem.validate.cuda_run import measure_all

    return measure_all(settings, **options)


MEASURES = {"cpu": _cpu, "cuda": _cuda, "cuda-run": _cuda_run}


def main(result: Path, request: Mapping[str, Any]) -> None:
    """Every VitmemError travels by its class's name; anything else is a traceback on stderr and no result."""
    from vitmem.validate.versions import versions

    settings = TrainSettings.of(**request["settings"])
    try:
        document = MEASURES[request["backend"]](settings, request["options"])
    except VitmemError as error:
        document = {"error": type(error).__name__, "message": str(error)}
    result.write_text(json.dumps({**document, "versions": versions(settings.train)}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
    os._exit(0)  # autograd's threads may still ask for an interpreter that would be gone
