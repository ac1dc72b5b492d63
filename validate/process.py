"""A child process: bounded in time, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from vitmem.errors import NotModelled

__all__ = ["run"]

_GRACE_S = 5.0


def run(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, **streams: Any
) -> tuple[int | None, str]:
    """The exit code (None: it ran out of time; negative: the signal that ended it) and what a piped stderr got.

    ``streams`` are Popen's; ``input`` is written to stdin. The child leads a session of its own, so that loader workers
    and launched ranks end with it.
    """
    given = streams.pop("input", None)
    if given is not None:
        streams["stdin"] = subprocess.PIPE
    try:
        process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **streams)
    except OSError as error:
        raise NotModelled(f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        _, errors = process.communicate(given, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        _end(process)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with contextlib.suppress(OSError):
                pipe.close()
    return process.returncode, errors or ""


def _end(process: subprocess.Popen[str]) -> None:
    """Ask the session to end, then end it."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[str], which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)
