"""A child that is killed, hangs or prints garbage: one clear line, exit 4, in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings
from vitmem.validate import in_child

CHILDREN = {
    "killed": ("import os; os.kill(os.getpid(), 9)", "the run ended by SIGKILL (the host may have run out of memory)"),
    "crashed": ("import os; os.kill(os.getpid(), 11)", "the run ended by SIGSEGV"),
    "raised": ("raise RuntimeError('no such kernel')", "ended with exit code 1: RuntimeError: no such kernel"),
    "silent": ("raise SystemExit(7)", "the run ended with exit code 7: nothing said"),
    "garbage": ("open(RESULT, 'w').write('{oops')", "exit code 0: nothing said, and its answer cannot be read"),
    "no answer": ("open(RESULT, 'w').write('[1]')", "its answer cannot be read"),
    "bytes": ("open(RESULT, 'wb').write(bytes([255, 254]))", "its answer cannot be read"),
    "hangs": ("import time; time.sleep(60)", "the run took more than 1 s; give it a longer --timeout"),
    "hangs on": ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", "took more than 1 s"),
}


@pytest.mark.parametrize(("code", "message"), CHILDREN.values(), ids=CHILDREN)
def test_a_child_without_an_answer_is_one_line(monkeypatch, code, message):
    right = in_child.run

    def instead(command, *args, **streams):
        return right([sys.executable, "-c", f"RESULT = {command[-1]!r}; {code}"], *args, **streams)

    monkeypatch.setattr(in_child, "run", instead)
    begins = time.monotonic()
    with pytest.raises(NotModelled) as refusal:
        in_child.measured_in_child("the run", "cpu", TrainSettings(), timeout_s=1 if "took" in message else 30)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert time.monotonic() - begins < 20


def test_settings_of_a_file_reach_the_child_as_they_are():
    settings = TrainSettings(training_args="args.json", lora_targets=("qkv",), train="lora", res=(224, 112))
    sent = json.loads(json.dumps(settings.to_dict()))
    assert TrainSettings.from_dict(sent) == settings


#: ``vitmem`` with a command that waits for a child. nohup and shells' background jobs ignore some of the signals.
WAITS = """
import os, signal, sys
from vitmem import cli
from vitmem.validate.process import run

signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
cli.main = lambda: run([sys.executable, "-c", child], os.environ, timeout_s=60)[0]
cli.program()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_command_that_is_ended_takes_its_child_along(name):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline())
        command.send_signal(getattr(signal, name))
        assert command.wait(20) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
