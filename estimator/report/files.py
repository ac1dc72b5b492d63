"""Reports into files: the format by suffix, nothing of the user's overwritten, never half a file."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InvalidRequest, VitmemError, did_you_mean
from .formats import renderer, suffixes
from .tables import Report

__all__ = ["Target", "refuse_unwritable", "write_bytes", "write_text"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file to write, checked before anything is computed; ``more`` are suffixes that a command draws by itself."""

    path: Path
    force: bool
    more: Sequence[str] = ()

    def __post_init__(self) -> None:
        known = (*suffixes(), *self.more)
        if self.suffix not in known:
            hint = did_you_mean(self.suffix, known) or f"; end it in {', '.join(known)}"
            raise InvalidRequest(f"out {str(self.path)!r} has no known suffix{hint}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InvalidRequest(f"out {str(self.path)!r} is not a file in an existing folder")
        self._refuse_overwriting()
        refuse_unwritable("out", self.path, self.path.parent)

    @property
    def suffix(self) -> str:
        """``.png``, whatever its case."""
        return self.path.suffix.lower()

    def _refuse_overwriting(self) -> None:
        if not self.force and os.path.lexists(self.path):
            raise InvalidRequest(f"out {str(self.path)!r} exists; choose another name or add --force")

    def save(self, content: bytes) -> None:
        """Write a temporary file next to the target and move it into place."""
        try:
            write_bytes(self.path, content, self._refuse_overwriting)
        except OSError as error:
            raise VitmemError(f"cannot write {str(self.path)!r}: {error.strerror}") from error

    def write(self, report: Report) -> None:
        """The report in the format of the suffix."""
        self.save(renderer(self.suffix)(report).encode("utf-8"))


def refuse_unwritable(what: str, path: Path, folder: Path) -> None:
    """Whether ``folder`` takes a file is tried, with one that has no name: permissions alone do not say it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror if isinstance(error, PermissionError) else "it takes no files"
        raise InvalidRequest(
            f"{what} {str(path)!r} cannot be written ({reason}); name one in a folder of your own"
        ) from error


def write_text(path: Path, text: str, check: Callable[[], None] = lambda: None) -> None:
    """Write a temporary file next to ``path`` and move it into place, after ``check``."""
    write_bytes(path, text.encode("utf-8"), check)


def write_bytes(path: Path, content: bytes, check: Callable[[], None] = lambda: None) -> None:
    """Write a temporary file next to ``path`` and move it into place, after ``check``."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
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
