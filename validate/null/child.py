"""The child of :mod:`.backend`: settings as JSON on stdin, the measurement or the refusal as JSON into a file.

python -m vitmem.validate.null.child RESULT.json < SETTINGS.json
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vitmem.errors import VitmemError
from vitmem.settings import TrainSettings


def main(result: Path, settings: dict[str, Any]) -> None:
    """Every VitmemError travels by its class's name; anything else is a traceback on stderr and no result."""
    from vitmem.validate.cuda import OutOfMemory, measure
    from vitmem.validate.versions import versions

    try:
        document: dict[str, Any] = {"measured": measure(TrainSettings.of(**settings)).to_dict()}
    except OutOfMemory as error:
        document = {"out_of_memory": error.to_dict()}
    except VitmemError as error:
        document = {"error": type(error).__name__, "message": str(error)}
    result.write_text(json.dumps({**document, "versions": versions(settings.get("train", "full"))}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
    os._exit(0)  # autograd's threads may still ask for an interpreter that would be gone
