"""The processes behind ``vitmem validate --gpus``: what a dying rank leaves, and what is refused before a start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings
from vitmem.validate.distributed import launch
from vitmem.validate.distributed.backend import measure

SETTINGS = TrainSettings(gpus=2, parallel="ddp")
SLEEP = "import time; time.sleep(600)"


def started(monkeypatch, *programs):
    ranks = []

    def start(count, request, folder, variables):
        for rank, program in enumerate(programs):
            with (folder / f"rank{rank}.log").open("wb") as log:
                command = [sys.executable, "-c", program]
                ranks.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return ranks

    monkeypatch.setattr(launch, "_started", start)
    return ranks


def test_a_killed_rank_is_named_and_leaves_no_other(monkeypatch):
    ranks = started(monkeypatch, SLEEP, "import os; print('so far', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(launch.RankFailed, match="rank 1 of 2 was ended by SIGKILL: so far"):
        launch.measure_ranks(SETTINGS)
    assert [process.returncode for process in ranks] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("written", ["", "{", "[1]", "{}", '{"peaks": 1}', None])
def test_an_answer_that_cannot_be_read_is_named(monkeypatch, tmp_path, written):
    """A rank that ends well and wrote nothing, or something else."""

    def start(count, request, folder, variables):
        for rank in range(count):
            (folder / f"rank{rank}.log").write_text("[rank0]: its last words")
            if written is not None:
                (folder / f"rank{rank}.json").write_text(written)
        return [subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) for _ in range(count)]

    monkeypatch.setattr(launch, "_started", start)
    with pytest.raises(launch.RankFailed, match=r"rank 0 of 2 wrote no answer that can be read: its last words$"):
        launch.measure_ranks(SETTINGS)


def test_ranks_that_hang_are_ended_in_time(monkeypatch):
    ranks = started(monkeypatch, SLEEP, SLEEP)
    with pytest.raises(launch.RankFailed, match="ran out of time"):
        launch.measure_ranks(SETTINGS, timeout_s=0.3)
    assert all(process.returncode == -signal.SIGKILL for process in ranks)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"loop": "timm"}, "leave out --loop timm"), ({"parallel": "zero2", "offload": "optimizer"}, "--offload")],
)
def test_what_cannot_be_measured_is_refused_before_a_start(settings, message):
    with pytest.raises(NotModelled, match=message):
        measure(TrainSettings(**{"gpus": 2, **settings}), timeout_s=1.0)


def test_a_rank_does_not_outlive_what_started_it():
    rank = (
        "import os; parent = os.getppid(); from vitmem.validate.distributed.child import _end_with; "
        "print(flush=True); _end_with(parent)"
    )
    start = (
        "import os, subprocess, sys; "
        f"rank = subprocess.Popen([sys.executable, '-c', {rank!r}], stdout=subprocess.PIPE); "
        "rank.stdout.readline(); print(rank.pid, flush=True); os._exit(0)"
    )
    started = subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(started.stdout)
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(pid)


def is_alive(pid):
    """A process that ended and that nobody has waited for is none."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}
