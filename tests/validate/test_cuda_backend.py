"""``vitmem validate --backend cuda`` for real: PyTorch's CUDA build with a null device in the child's environment."""

from __future__ import annotations

import json
import os

import pytest
from vitmem.cli import main
from vitmem.cli.null_device import null_device
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings
from vitmem.validate import in_child
from vitmem.validate.in_child import measured_in_child
from vitmem.validate.null import torch_build
from vitmem.validate.null.build import libraries
from vitmem.validate.null.device import environment
from vitmem.validate.saved import append_row

pytest.importorskip("torch")
try:
    BUILD = torch_build.installed()
except NotModelled as reason:
    pytest.skip(str(reason), allow_module_level=True)

VIT = ["validate", "--backend", "cuda", "vit_tiny_patch16_224", "--depth", "2", "--bs", "2", "--precision", "fp32"]


@pytest.fixture
def on_a_4090(monkeypatch):
    """Children of this process see a GPU."""
    right = in_child.run
    device = null_device("rtx4090", None, "0")

    def with_device(command, variables, **streams):
        kept = {name: value for name, value in variables.items() if name.startswith("PYTORCH")}
        return right(command, {**environment(device, libraries(BUILD)), **kept}, **streams)

    monkeypatch.setattr(in_child, "run", with_device)


def document(capfd):
    return json.loads(capfd.readouterr().out)


def test_the_estimate_on_this_very_gpu_equals_the_measurement(capfd, on_a_4090, tmp_path):
    history, saved = tmp_path / "history.pickle", tmp_path / "own" / "rows.json"
    saved.parent.mkdir()
    assert main([*VIT, "--json", "--history", str(history), "--save", str(saved)]) == 0
    found = document(capfd)
    assert found["estimate"]["request"]["gpu"] == "rtx4090"
    errors = found["relative_error"]
    assert (errors["allocated_bytes"], errors["reserved_bytes"], errors["device_bytes"]) == (0, 0, 0)
    for table in ("kinds", "phases", "parameters", "saved_activations"):
        assert [row for row in found["differences"][table] if row["relative_error"] != 0] == [], table
    layers = {row["name"]: row for row in found["measurement"]["layers"]}
    assert layers["blocks.1"]["peak_bytes"] > layers["blocks.0"]["peak_bytes"] > 0
    assert found["measurement"]["growth_bytes_per_step"] == 0
    notes = found["measurement"]["notes"]
    assert any("CUDA context took" in note for note in notes)
    assert not any("was on the GPU as well" in note for note in notes)
    assert history.stat().st_size > 1000
    # THEN the file is replayed without running anything, to the byte
    assert main(["validate", "--corpus", str(saved.parent), "--json"]) == 0
    rows = document(capfd)["rows"]
    assert [(row["metric"], row["relative_error"], row["gpu"]) for row in rows] == [
        ("allocated", 0, "rtx4090"),
        ("reserved", 0, "rtx4090"),
        ("device", 0, "rtx4090"),
    ]


def test_a_smaller_card_runs_out_of_memory_which_is_a_result(capfd, on_a_4090, tmp_path):
    written = tmp_path / "result.json"
    assert main([*VIT, "--memory", "510MiB", "--out", str(written)]) == 3
    out = " ".join(capfd.readouterr().out.split())
    assert "out of memory on the cuda backend" in out
    assert "needed at least" in out
    assert "the estimate said" in out
    found = json.loads(written.read_text())
    failed = found["measurement"]["out_of_memory"]
    assert failed["needed_bytes"] > 2**20
    assert found["measurement"]["peak"]["allocated_bytes"] is None
    assert (found["estimate"]["verdict"]["fits"], found["passed"]) == ("borderline", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "code", "message"),
    [
        ("2GiB", 0, "the process was limited to 2.00 GiB, context included"),
        ("25GiB", 2, "less than --memory asks for; leave it out"),
        ("100MiB", 2, "the CUDA context alone takes"),
    ],
)
def test_a_limit_is_noted_or_refused(capfd, on_a_4090, memory, code, message):
    assert main([*VIT, "--memory", memory]) == code
    assert message in " ".join("".join(capfd.readouterr()).split())


PLANTED = """
import os, types
import pynvml, vitmem.validate.build as build

right, kept = build.build_model, []
def leaking(*args):
    built = right(*args)
    built.model.register_forward_hook(lambda module, args, out: kept.append(out.logits.detach()))
    return built
build.build_model = leaking

running = pynvml.nvmlDeviceGetComputeRunningProcesses
def with_another(handle):
    return [*running(handle), types.SimpleNamespace(pid=77, usedGpuMemory=3 << 20)]
pynvml.nvmlDeviceGetComputeRunningProcesses = with_another
pynvml.nvmlSystemGetProcessName = lambda pid: "/usr/bin/jupyter"
"""


def test_a_leak_is_told_in_bytes_per_step_and_another_process_by_name(on_a_4090, tmp_path, monkeypatch):
    # GIVEN a loop that keeps what each step's model returns, 2 x 1000 logits in a block of its own
    (tmp_path / "sitecustomize.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    settings = TrainSettings(model="vit_tiny_patch16_224", depth=2, bs=2, precision="fp32")
    options = {"num_steps": 6}
    found = measured_in_child("the run", "cuda-run", settings, timeout_s=300, options=options)["measured"]
    assert found["growth_bytes_per_step"] == 8192  # 8000 bytes in blocks of 512
    assert "memory grows by 8192 bytes per step: something keeps what a step makes" in found["notes"]
    assert "jupyter (pid 77) was on the GPU as well and held 3.0 MiB" in found["notes"]
    assert found["device_bytes"] > found["reserved_bytes"]


def test_without_a_device_it_says_what_to_use_instead(capfd):
    assert main(VIT) == 4
    err = capfd.readouterr().err
    assert "torch sees no CUDA device here; use --backend meta" in err
    assert err.count("\n") == 1


def test_a_file_of_another_gpu_is_left_alone(tmp_path):
    path = tmp_path / "rows.json"
    append_row(path, "t4", {"versions": {"torch": "2.14.1"}}, {"settings": {}})
    append_row(path, "t4", {"versions": {"torch": "2.14.1"}}, {"settings": {}})
    with pytest.raises(InvalidRequest, match="another GPU"):
        append_row(path, "l4", {"versions": {"torch": "2.14.1"}}, {"settings": {}})
    assert len(json.loads(path.read_text())["rows"]) == 2


@pytest.mark.parametrize("flag", ["--save", "--history"])
def test_what_only_an_allocator_can_say_is_refused_before_anything_runs(capfd, flag, tmp_path):
    assert main(["validate", "--backend", "cpu", flag, str(tmp_path / "file")]) == 2
    assert "use --backend cuda" in capfd.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpu": "t4", "rows": [1]}'])
def test_a_folder_without_measurements_is_named(capfd, tmp_path, text):
    assert main(["validate", "--corpus", str(tmp_path)]) == 2
    (tmp_path / "rows.json").write_text(text)
    assert main(["validate", "--corpus", str(tmp_path)]) == 2
    assert capfd.readouterr().err.count("`vitmem validate --save FILE` writes one") == 2
