"""A measurement in a process of its own, bounded in time: what it does to itself does not reach us. Needs no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmem import errors
from vitmem.settings import TrainSettings

from .process import run

__all__ = ["measured_in_child"]

_ALLOCATOR_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_RESULTS = ("measured", "out_of_memory", "error")


def measured_in_child(
    what: str,
    backend: str,
    settings: TrainSettings,
    *,
    timeout_s: float,
    options: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The child's document, ``measured`` or ``out_of_memory`` and ``versions``.

    Raises what the child refuses, and NotModelled where it ends without an answer: ``what`` names it in the message.
    """
    environment = dict(os.environ if variables is None else variables)
    for name in _ALLOCATOR_CONF:
        environment.pop(name, None)
    if settings.alloc_conf is not None:
        environment[_ALLOCATOR_CONF[0]] = settings.alloc_conf
    request = {"backend": backend, "settings": settings.to_dict(), "options": dict(options or {})}
    with tempfile.TemporaryDirectory(prefix="vitmem-") as folder:
        result = Path(folder) / "result.json"
        code, complaint = run(
            [sys.executable, "-m", "vitmem.validate.child", str(result)],
            environment,
            timeout_s=timeout_s,
            input=json.dumps(request),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if code is None:
            raise errors.NotModelled(f"{what} took more than {timeout_s:g} s; give it a longer --timeout")
        return _read(what, result, _ended(code, complaint))


def _read(what: str, result: Path, ended: str) -> dict[str, Any]:
    """What the child has written, if that is an answer."""
    if not result.is_file():
        raise errors.NotModelled(f"{what} ended {ended}")
    try:
        document = json.loads(result.read_text(encoding="utf-8"))
        known = any(name in document for name in _RESULTS)
    except (ValueError, TypeError):
        known = False
    if not known:
        raise errors.NotModelled(f"{what} ended {ended}, and its answer cannot be read")
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"])
    answer: dict[str, Any] = document
    return answer


def _ended(code: int, complaint: str) -> str:
    """``with exit code 1: RuntimeError: ...``, or by which signal; the kernel kills what takes all host memory."""
    if code < 0:
        name = signal.Signals(-code).name
        also = " (the host may have run out of memory)" if -code == signal.SIGKILL else ""
        return f"by {name}{also}"
    lines = [line for line in complaint.strip().splitlines() if line.strip()]
    return f"with exit code {code}: {lines[-1] if lines else 'nothing said'}"
