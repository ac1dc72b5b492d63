"""Starts the ranks of a measurement, waits for them, and leaves none behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmem.errors import VitmemError
from vitmem.settings import TrainSettings

__all__ = ["RankFailed", "measure_ranks"]

_POLL_S = 0.1
#: What torch.distributed puts before every line of a traceback.
_PREFIX = re.compile(r"^\[rank\d+\]: *")


class RankFailed(VitmemError):
    """A rank died, failed or ran out of time: there is no measurement."""


def measure_ranks(
    settings: TrainSettings, *, deepspeed: Mapping[str, Any] | None = None, timeout_s: float = 300.0, **extra: Any
) -> list[dict[str, Any]]:
    """What every rank of ``settings.gpus`` wrote, in order of rank; raises where one of them fails or dies."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        document = {"settings": settings.to_dict(), "deepspeed": deepspeed, **extra}
        request.write_text(json.dumps(document), encoding="utf-8")
        ranks = _started(settings.gpus, request, Path(folder))
        try:
            _wait(ranks, Path(folder), time.monotonic() + timeout_s)
        finally:
            for process in ranks:
                _end(process)
        return [_answer(Path(folder), rank, settings.gpus) for rank in range(settings.gpus)]


def _answer(folder: Path, rank: int, count: int) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(_file(folder, rank, "json").read_text("utf-8"))
        answer["moments"], answer["peaks"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"rank {rank} of {count} wrote no answer that can be read: {_last_words(folder, rank)}"
        raise RankFailed(message) from error
    return answer


def _file(folder: Path, rank: int, suffix: str) -> Path:
    return folder / f"rank{rank}.{suffix}"


def _started(count: int, request: Path, folder: Path) -> list[subprocess.Popen[bytes]]:
    port = _free_port()
    ranks = []
    for rank in range(count):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, "-m", "vitmem.validate.distributed.child", str(request)]
        with _file(folder, rank, "log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [*command, str(_file(folder, rank, "json"))],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
    return ranks


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path, deadline: float) -> None:
    while any(process.poll() is None for process in ranks):
        failed = [rank for rank, process in enumerate(ranks) if process.poll() not in {None, 0}]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    for rank, process in enumerate(ranks):
        code = process.poll()
        if code not in {None, 0}:
            raise RankFailed(f"rank {rank} of {len(ranks)} {_ended(code or 0)}: {_last_words(folder, rank)}")
    if any(process.poll() is None for process in ranks):
        raise RankFailed(f"{len(ranks)} ranks ran out of time; give them more with --timeout")


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"


def _last_words(folder: Path, rank: int) -> str:
    lines = [line for line in _file(folder, rank, "log").read_text("utf-8", "replace").splitlines() if line.strip()]
    if os.environ.get("VITMEM_RANK_LOGS"):
        sys.stderr.write("\n".join(lines[-60:]))
    return _PREFIX.sub("", lines[-1].strip())[:300] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The rank and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
