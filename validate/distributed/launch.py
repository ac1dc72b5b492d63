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

from vitmem import errors
from vitmem.settings import TrainSettings

from ..process import run
from .world import RankFailed, World

__all__ = ["RankFailed", "measure_own_rank", "measure_ranks"]

_POLL_S = 0.1
#: What torch.distributed puts before every line of a traceback.
_PREFIX = re.compile(r"^\[rank\d+\]: *")


def measure_ranks(
    settings: TrainSettings,
    *,
    deepspeed: Mapping[str, Any] | None = None,
    timeout_s: float = 300.0,
    on_gpu: bool = False,
    variables: Mapping[str, str] | None = None,
    **extra: Any,
) -> list[dict[str, Any]]:
    """What every rank of ``settings.gpus`` wrote, in order of rank; that of one alone where its memory ran out.

    Raises what a rank refuses, and RankFailed where one of them fails or dies. ``on_gpu``: each has a GPU of its own.
    ``variables`` are added to every rank's environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = _request(Path(folder), settings, deepspeed=deepspeed, on_gpu=on_gpu, **extra)
        ranks = _started(settings.gpus, request, Path(folder), {**_environment(on_gpu=on_gpu), **(variables or {})})
        try:
            _wait(ranks, Path(folder), time.monotonic() + timeout_s)
        finally:
            for process in ranks:
                _end(process)
        return _answers(Path(folder), settings.gpus)


def _answers(folder: Path, count: int) -> list[dict[str, Any]]:
    found = [_answer(_file(folder, rank, "json")) for rank in range(count)]
    answers = [answer for answer in found if answer is not None]
    if failed := [answer for answer in answers if "out_of_memory" in answer]:
        return failed[:1]
    if len(answers) < count:
        rank = found.index(None)
        raise RankFailed(f"rank {rank} of {count} wrote no answer that can be read: {_last_words(folder, rank)}")
    return answers


def measure_own_rank(
    settings: TrainSettings, world: World, *, timeout_s: float = 300.0, on_gpu: bool = False, **extra: Any
) -> list[dict[str, Any]]:
    """The same where somebody else has started the ranks: a child of this process takes its place among them."""
    with tempfile.TemporaryDirectory() as folder:
        request = _request(Path(folder), settings, on_gpu=on_gpu, gathers=True, **extra)
        out = _file(Path(folder), world.rank, "json")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_ACCELERATE)}
        code, complaint = run(
            [*_COMMAND, str(request), str(out)],
            {**inherited, **_environment(on_gpu=on_gpu)},
            timeout_s=timeout_s,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        who = f"rank {world.rank} of {world.size}"
        if code is None:
            raise RankFailed(f"{who} ran out of time; give it more with --timeout")
        answer = _answer(out)
        if answer is None:
            raise RankFailed(f"{who} {_ended(code)}: {_last(complaint)}")
        return [answer] if "out_of_memory" in answer else list(answer["ranks"])


#: What ``accelerate launch`` has settled: here the settings say it.
_OF_ACCELERATE = ("ACCELERATE_", "FSDP_")
_COMMAND = (sys.executable, "-m", "vitmem.validate.distributed.child")


def _request(folder: Path, settings: TrainSettings, **more: Any) -> Path:
    request = folder / "request.json"
    request.write_text(json.dumps({"settings": settings.to_dict(), **more}), encoding="utf-8")
    return request


def _environment(*, on_gpu: bool) -> dict[str, str]:
    no_gpu = {} if on_gpu else {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {"OMP_NUM_THREADS": "1", **no_gpu}


def _file(folder: Path, rank: int, suffix: str) -> Path:
    return folder / f"rank{rank}.{suffix}"


def _answer(out: Path) -> dict[str, Any] | None:
    """What a rank has written; raises what it refuses, None where there is nothing that can be read."""
    try:
        answer: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        is_known = "error" in answer or "out_of_memory" in answer or {"moments", "peaks"} <= answer.keys()
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    if "error" in answer:
        raise getattr(errors, answer["error"])(answer["message"])
    return answer if is_known else None


def _started(count: int, request: Path, folder: Path, variables: Mapping[str, str]) -> list[subprocess.Popen[bytes]]:
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
            **variables,
        }
        with _file(folder, rank, "log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [*_COMMAND, str(request), str(_file(folder, rank, "json"))],
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
    failed = [rank for rank, process in enumerate(ranks) if process.poll() not in {None, 0}]
    if any(_answer(_file(folder, rank, "json")) is not None for rank in failed):
        return  # out of memory: the others may have failed because this one did
    for rank in failed:
        code = ranks[rank].returncode
        raise RankFailed(f"rank {rank} of {len(ranks)} {_ended(code)}: {_last_words(folder, rank)}")
    if any(process.poll() is None for process in ranks):
        raise RankFailed(f"{len(ranks)} ranks ran out of time; give them more with --timeout")


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"


def _last_words(folder: Path, rank: int) -> str:
    lines = [line for line in _file(folder, rank, "log").read_text("utf-8", "replace").splitlines() if line.strip()]
    if os.environ.get("VITMEM_RANK_LOGS"):
        sys.stderr.write("\n".join(lines[-60:]))
    return _last("\n".join(lines))


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _PREFIX.sub("", lines[-1].strip())[:300] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The rank and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
