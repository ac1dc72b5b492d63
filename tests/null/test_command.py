"""``vitmem null`` and ``vitmem validate --backend null``, as people type them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from vitmem.cli import main
from vitmem.errors import NotModelled
from vitmem.validate.null import build, device, torch_build
from vitmem.validate.process import run

torch = pytest.importorskip("torch")
SCRIPTS = Path(__file__).with_name("scripts")
try:
    TORCH = torch_build.installed()
    build.libraries(TORCH)
except NotModelled as reason:
    pytest.skip(str(reason), allow_module_level=True)

STEPS = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(2048, 1024).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("loss", loss.item(), torch.cuda.max_memory_allocated())
"""


def alive(pid):
    """Whether Linux still runs it: a killed process whose parent is gone may stay a zombie for a while."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def null(*args):
    return ["null", "--gpu", "rtx4090", *args, "--", "python"]


#: Until 2.10 cuBLASLt has a workspace of its own, of 1 MiB; the estimator follows the later versions.
UNIFIED_WORKSPACE = tuple(map(int, TORCH.version.split(".")[:2])) >= (2, 11)


def document(capfd):
    return json.loads(capfd.readouterr().out)


def test_a_script_runs_to_its_end_and_is_reported_by_phase(capfd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    assert main([*null("--json"), str(script)]) == 0
    captured = capfd.readouterr()
    report = json.loads(captured.out)
    seen = int(captured.err.split()[-1])  # what the script itself saw of the peak
    assert captured.err.startswith("loss 0.0 ")
    assert report["peak"]["allocated_bytes"] == seen
    assert report["device"]["name"] == "NVIDIA GeForce RTX 4090"
    assert (report["exit_code"], report["num_steps"], report["num_ooms"]) == (0, 4, 0)
    # weight and bias; images, outputs and squares of 8 MiB; cuBLAS's workspace; the mean and what its kernel borrows
    known = (4 << 20) + 4096 + 3 * (8 << 20) + 8519680 + (0 if UNIFIED_WORKSPACE else 1 << 20)
    assert 512 <= report["steps"][0]["forward"]["allocated_bytes"] - known <= 4 * 512
    assert {"forward", "backward", "optimizer_step"} == set(report["phases"])
    assert max(phase["allocated_bytes"] for phase in report["phases"].values()) == seen
    assert report["phases"]["optimizer_step"]["allocated_bytes"] < report["phases"]["backward"]["allocated_bytes"]


def test_running_out_of_memory_is_exit_3_with_the_allocators_message(capfd):
    code = "import torch; x = torch.nn.Linear(1024, 1024).cuda(); torch.empty(1 << 40, device='cuda')"
    assert main([*null("--memory", "1GiB", "--json"), "-c", code]) == 3
    report = document(capfd)
    assert report["exit_code"] == 1
    assert report["out_of_memory"]["message"].startswith("CUDA out of memory. Tried to allocate 4096.00 GiB. GPU 0")
    assert (report["out_of_memory"]["phase"], report["num_ooms"]) == ("forward", 1)
    assert report["peak"]["allocated_bytes"] == (4 << 20) + 4096


@pytest.mark.slow
def test_a_script_that_survives_out_of_memory_is_exit_0_and_told(capfd):
    code = """
import torch
torch.ones(1, device="cuda")
try:
    torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError:
    torch.cuda.empty_cache()
"""
    assert main([*null("--json"), "-c", code]) == 0
    report = document(capfd)
    assert (report["num_ooms"], report["out_of_memory"]) == (1, None)
    assert "the device ran out of memory 1 times, and the command went on" in report["notes"]


@pytest.mark.slow
def test_the_commands_own_exit_code_is_passed_on(capfd):
    assert main([*null(), "-c", "import torch; torch.ones(1, device='cuda'); raise SystemExit(7)"]) == 7
    assert "0 optimizer steps" in capfd.readouterr().out


@pytest.mark.slow
def test_a_read_of_device_memory_is_a_segmentation_fault_that_is_explained(capfd):
    code = """
import ctypes, torch
x = torch.ones(4, device="cuda", requires_grad=True)
torch.optim.SGD([x], 0.1).step()
ctypes.string_at(x.data_ptr(), 4)
"""
    assert main([*null(), "-c", code]) == 128 + 11
    assert "SIGSEGV: something read device memory on the host" in " ".join(capfd.readouterr().out.split())


@pytest.mark.slow
def test_steps_end_a_command(capfd, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    assert main([*null("--steps", "3", "--json"), str(script)]) == 0
    assert document(capfd)["num_steps"] == 3


def test_a_command_that_uses_no_device_says_nothing(capfd):
    assert main([*null(), "-c", "print(1)"]) == 4
    assert "ended with 0 and no process of it used a CUDA device" in capfd.readouterr().err


def test_a_command_is_ended_when_its_time_is_up(capfd):
    code = "import os, time, torch; os.fork(); torch.ones(1, device='cuda'); time.sleep(60)"
    assert main([*null("--timeout", "0.5"), "-c", code]) == 4
    assert "ran out of time" in capfd.readouterr().err


def test_nothing_of_a_session_stays_behind(tmp_path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    wait = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.1)\ntime.sleep(0.1)"
    parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n{wait}"
    assert run([sys.executable, "-c", parent], os.environ, timeout_s=30) == (0, "")
    ends = time.monotonic() + 10
    while alive((tmp_path / "pid").read_text()):
        assert time.monotonic() < ends


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["null"], 2, "no command to run; write it after --"),
        (["null", "--gpu", "rtx4091", "--", "python"], 2, "unknown gpu 'rtx4091'; did you mean"),
        (["null", "--gpu", "t4", "--memory", "16GiB", "--", "python"], 2, "more than a t4 has"),
        (["null", "--cudnn-workspace", "much", "--", "python"], 2, "'much' is not a positive size"),
        (["null", "--", "no-such-program"], 4, "no-such-program cannot be run: No such file or directory"),
    ],
)
def test_what_cannot_be_run_is_one_line(capfd, args, code, message):
    assert main(args) == code
    assert message in capfd.readouterr().err


def test_beside_a_real_device_it_refuses_unless_forced(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(device, "_SIGNS", (str(tmp_path),))
    assert main([*null(), "-c", "0"]) == 4
    assert "this machine has a real NVIDIA device" in capfd.readouterr().err
    assert main([*null("--force"), "-c", "import torch; torch.ones(1, device='cuda')"]) == 0


def set_attribute(module, name, value):
    return lambda patch: patch.setattr(module, name, value)


CPU_ONLY = {"__version__": "2.14.1+cpu", "cuda": None}
CANNOT_WORK = {
    "macOS": (set_attribute(torch_build.sys, "platform", "darwin"), "it needs Linux on x86_64"),
    "aarch64": (set_attribute(torch_build.platform, "machine", lambda: "aarch64"), "is untested on Linux on aarch64"),
    "CPU-only torch": (set_attribute(torch_build.runpy, "run_path", lambda _: CPU_ONLY), "is a build without CUDA"),
    "no wheels": (
        set_attribute(torch_build.TorchBuild, "nvidia_libraries", []),
        "is not installed beside NVIDIA's wheels",
    ),
    "no compiler": (
        set_attribute(build.shutil, "which", lambda _: None),
        "there is no cc or gcc or clang here; install a C compiler",
    ),
    "a blank": (
        lambda patch: patch.setenv("XDG_CACHE_HOME", "/tmp/a b"),
        "the loader takes no blanks and colons: /tmp/a b/vitmem/null",
    ),
}


@pytest.mark.parametrize(("change", "message"), CANNOT_WORK.values(), ids=CANNOT_WORK)
def test_where_it_cannot_work_it_says_why(capfd, monkeypatch, tmp_path, change, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        change(patch)
        assert main([*null(), "-c", "0"]) == 4
        assert main(["validate", "--backend", "null", "vit_tiny_patch16_224"]) == 4
    first, second = capfd.readouterr().err.splitlines()
    assert message in first
    assert first == second


VIT = ["validate", "--backend", "null", "vit_tiny_patch16_224", "--depth", "2", "--bs", "2", "--precision", "bf16"]


@pytest.mark.skipif(not UNIFIED_WORKSPACE, reason="an older torch than the one that is estimated")
def test_the_estimate_equals_the_allocator(capfd):
    assert main([*VIT, "--gpu", "rtx4090", "--json"]) == 0
    found = document(capfd)
    errors = found["relative_error"]
    assert (errors["allocated_bytes"], errors["reserved_bytes"], errors["tensor_bytes"]) == (0, 0, None)
    assert found["measurement"]["out_of_memory"] is None
    assert found["measurement"]["num_alloc_retries"] == 0
    assert found["measurement"]["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert [row["relative_error"] for row in found["differences"]["phases"]] == [0, 0, 0, 0]


def test_over_capacity_is_a_result_of_both_sides(capfd):
    assert main([*VIT, "--memory", "480MiB", "--json"]) == 3
    found = document(capfd)
    assert found["passed"]
    assert found["estimate"]["verdict"]["fits"] in ("no", "borderline")
    assert found["measurement"]["out_of_memory"]["message"].startswith("CUDA out of memory. Tried to allocate")
    assert set(found["relative_error"].values()) == {None}


def test_what_the_real_step_refuses_is_the_childs_own_error(capfd):
    assert main([*VIT, "--compile"]) == 4
    assert main([*VIT, "--timeout", "0.01"]) == 4
    assert "took more than 0.01 s" in capfd.readouterr().err


def test_nothing_leaks_into_this_process():
    assert not torch.cuda.is_available()
    assert not any(name.startswith("VITMEM_NULL") for name in os.environ)
    assert "vitmem" not in os.environ.get("LD_PRELOAD", "")


@pytest.mark.slow
@pytest.mark.parametrize(("args", "code"), [((), 0), (("--memory", "480MiB"), 3), (("--sdpa-kernel", "math"), 0)])
def test_the_cuda_backend_measures_a_device_of_its_own(capfd, args, code):
    """``--backend cuda`` sees the null device as it would see a GPU."""
    memory = ("--memory", "480MiB") if args[:1] == ("--memory",) else ()
    command = [*VIT[:2], "cuda", *VIT[3:], "--gpu", "rtx4090", *args]
    assert main([*null(*memory), "-m", "vitmem", *command]) == code
    out = capfd.readouterr().out
    verdict = "out of memory on the cuda backend" if code else "the estimate equals the cuda backend to the byte."
    assert out.startswith(f"Passed: {verdict}")


@pytest.mark.slow
def test_cudnn_plans_get_the_workspace_that_is_asked_for(capfd):
    sizes = []
    for workspace in ("0", "64MiB"):
        main([*VIT, "--gpu", "rtx4090", "--cudnn-workspace", workspace, "--json"])
        sizes.append(document(capfd)["measurement"]["peak"]["allocated_bytes"])
    assert sizes[1] - sizes[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["hf_trainer.py", "timm_loop.py"])
def test_a_real_training_script_runs_to_its_end(capfd, tmp_path, script):
    assert main([*null("--json"), str(SCRIPTS / script), str(tmp_path)]) == 0
    report = document(capfd)
    assert report["exit_code"] == 0
    assert report["num_steps"] == {"hf_trainer.py": 6, "timm_loop.py": 4}[script]
    assert report["num_ooms"] == 0
    assert set(report["phases"]) == {"forward", "backward", "optimizer_step"}
