"""The folder that a plan is written into: refused early, and nothing of the user's is replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import InvalidRequest, VitmemError
from ...report.files import refuse_unwritable, write_text

__all__ = ["Folder"]

#: Every file that a plan may have.
NAMES = (
    "train.py",
    "training_args.json",
    "model_config.json",
    "ds_config.json",
    "accelerate.yaml",
    "args.yaml",
    "launch.sh",
    "env.sh",
    "README.md",
)


class Folder:
    """Where the files go, refused before anything is computed."""

    def __init__(self, path: Path, *, force: bool) -> None:
        self.path, self.force = path, force
        if path.exists() and not path.is_dir():
            raise InvalidRequest(f"write {str(path)!r} is a file; name a folder")
        if not path.parent.is_dir():
            raise InvalidRequest(f"write {str(path)!r} is not in an existing folder")
        self.refuse_overwriting()
        refuse_unwritable("write", path, path if path.is_dir() else path.parent)

    def refuse_overwriting(self) -> None:
        """Without ``force``, nothing of the user's is replaced."""
        there = [name for name in NAMES if os.path.lexists(self.path / name)]
        if there and not self.force:
            verb = "exists" if len(there) == 1 else "exist"
            raise InvalidRequest(
                f"{', '.join(there)} {verb} in {str(self.path)!r}; choose another folder or add --force"
            )

    def write(self, texts: Mapping[str, str]) -> list[Path]:
        """Each file appears whole or not at all."""
        self.refuse_overwriting()
        try:
            self.path.mkdir(exist_ok=True)
            for name, text in texts.items():
                write_text(self.path / name, text)
        except OSError as error:
            raise VitmemError(f"cannot write into {str(self.path)!r}: {error.strerror}") from error
        return [self.path / name for name in texts]
