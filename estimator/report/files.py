"""Reports into files: the format by suffix, nothing of the user's overwritten, never half a file."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import InvalidRequest, VitmemError, did_you_mean
from .formats import renderer, suffixes
from .tables import Report

__all__ = ["Target", "write_text"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file to write, checked before anything is computed."""

    path: Path
    force: bool

    def __post_init__(self) -> None:
        suffix = self.path.suffix.lower()
        if suffix not in suffixes():
            hint = did_you_mean(suffix, suffixes()) or f"; end it in {', '.join(suffixes())}"
            raise InvalidRequest(f"out {str(self.path)!r} has no known suffix{hint}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InvalidRequest(f"out {str(self.path)!r} is not a file in an existing folder")
        self._refuse_overwriting()

    def _refuse_overwriting(self) -> None:
        if not self.force and os.path.lexists(self.path):
            raise InvalidRequest(f"out {str(self.path)!r} exists; choose another name or add --force")

    def write(self, report: Report) -> None:
        """Write a temporary file next to the target and move it into place."""
        text = renderer(self.path.suffix.lower())(report)
        try:
            write_text(self.path, text, self._refuse_overwriting)
        except OSError as error:
            raise VitmemError(f"cannot write {str(self.path)!r}: {error.strerror}") from error


def write_text(path: Path, text: str, check: Callable[[], None] = lambda: None) -> None:
    """Write a temporary file next to ``path`` and move it into place, after ``check``."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        check()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
