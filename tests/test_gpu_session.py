"""``scripts/gpu_session.py``: what it would run on a GPU, and the script itself on a null device."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import vitmem
from vitmem.cli import main
from vitmem.errors import NotModelled
from vitmem.validate.null import torch_build

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "gpu_session.py"


@pytest.fixture
def session(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_session

    return gpu_session


def test_it_covers_what_it_is_for(session):
    asked = list(session.configurations())
    assert len(asked) >= 40
    assert len({json.dumps(row, sort_keys=True) for row in asked}) == len(asked)
    assert {row["precision"] for row in asked} == {"fp32", "bf16", "fp16", "pure-bf16"}
    assert {row.get("attn") for row in asked} >= {"eager", "sdpa"}
    assert {row.get("optim") for row in asked} >= {"adamw_torch", "adamw_torch_fused", "sgd"}
    assert {row.get("loop") for row in asked} >= {"plain", "timm"}
    assert any(row.get("grad_checkpointing") for row in asked)


@pytest.mark.slow
def test_every_configuration_has_an_estimate(session):
    for settings in session.configurations():
        assert vitmem.estimate(**settings, gpu="h200").verdict["fits"] == "yes", settings


@pytest.mark.parametrize(
    ("code", "error"),
    [("raise SystemExit(1)", "the worker died"), ("import time; time.sleep(60)", "took more than 1 s")],
)
def test_a_worker_that_dies_or_hangs_is_an_error(session, monkeypatch, tmp_path, code, error):
    script = tmp_path / "worker.py"
    script.write_text(code)
    monkeypatch.setattr(session, "__file__", str(script))
    worker = session.Worker()
    assert worker.ask({}, 1.0 if "sleep" in code else 30.0) == {"error": error}
    worker.stop()


WORKER = """
import json, pathlib, sys
asked = pathlib.Path(__file__).with_name("asked")
for line in sys.stdin:
    with asked.open("a") as file:
        file.write(line)
    failed = json.loads(line)["bs"] == 2 and asked.read_text().count('"bs": 2') <= 2  # and once more on its own
    print("ROW " + json.dumps({"error": "once"} if failed else {"allocated_bytes": 512}), flush=True)
"""


def test_a_session_goes_on_where_it_was_cut_off(session, monkeypatch, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(session, "__file__", str(tmp_path / "worker.py"))
    path, head = tmp_path / "steps.json", {"gpu": "t4", "driver": "580.1", "versions": {"torch": "2.14.1"}}
    asked, ends = [{"bs": 1}, {"bs": 2}, {"bs": 3}], time.monotonic() + 60
    assert session.rows_before(path, head) == []
    session.measure_all(asked[:2], path, head, [], ends)
    before = session.rows_before(path, head)
    assert [row["settings"] for row in before] == [{"bs": 1}]  # the other has no figure
    rows = session.measure_all(asked, path, head, before, ends)
    assert [row["settings"]["bs"] for row in rows] == [1, 2, 3]
    assert json.loads(path.read_text())["rows"] == rows
    assert (tmp_path / "asked").read_text().count('{"bs": 1}') == 1
    with pytest.raises(ValueError, match="another GPU, driver or versions; give another folder"):
        session.rows_before(path, {**head, "gpu": "l4"})


def test_without_a_device_it_is_exit_4(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "no session: NotModelled: torch sees no CUDA device here" in done.stderr


@pytest.mark.slow
def test_the_session_on_a_null_device(capfd, tmp_path):
    try:
        torch_build.installed()
    except NotModelled as reason:
        pytest.skip(str(reason))
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--quick"]
    assert main(["null", "--gpu", "rtx4090", "--json", "--", *command]) == 0
    captured = capfd.readouterr()
    assert "3 configurations, the last after" in captured.err
    steps = json.loads((tmp_path / "steps.json").read_text())
    assert steps["gpu"] == "rtx4090"
    assert ["error" in row for row in steps["rows"]] == [False, False, True]
    probes = json.loads((tmp_path / "probes" / "rtx4090.json").read_text())
    off = {row["borrowed_bytes"] - row["derived_bytes"] for row in probes["column_sums"]}
    assert off <= {0, 917504}  # the rest of a segment of 20 MiB, less than the MiB that is split off
    assert len(probes["convolutions"]) == 18
    assert probes["context"]["before_allocation"]["reserved_bytes"] == 0
    # THEN what it measured is replayed to the byte
    assert main(["validate", "--corpus", str(tmp_path), "--json"]) == 0
    replayed = json.loads(capfd.readouterr().out)
    assert {row["relative_error"] for row in replayed["rows"]} == {0}
    assert replayed["unsupported"][0]["reason"] == "UnknownName: unknown model 'no_such_model'"
