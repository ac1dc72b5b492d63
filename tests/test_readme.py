"""The README's commands work as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"<!-- run: (?P<name>[\w ]+) -->\n```(?P<language>\w+)\n(?P<body>.*?)```", re.DOTALL)
BLOCKS = {match["name"]: match["body"] for match in FENCE.finditer(README)}
COMMANDS = [line for name in ("the main job", "cheap") for line in BLOCKS[name].splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str, tmp_path: Path) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS["python"], "README.md", "exec"), {})
    assert re.fullmatch(r"\d+ \w+ \d+\n", capsys.readouterr().out)


def test_setting_up_takes_two_commands_and_testing_one() -> None:
    set_up = re.search(r"## Set up\n\n```console\n(.*?)```", README, re.DOTALL)
    assert set_up is not None
    assert len(set_up[1].splitlines()) == 2
    assert BLOCKS["the tests"].splitlines() == ["python -m pytest -n 2"]


def test_every_exit_code_is_explained() -> None:
    from vitmem.errors import VitmemError

    codes = {VitmemError.exit_code, *(error.exit_code for error in VitmemError.__subclasses__())}
    assert codes | {0} == {int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)}
