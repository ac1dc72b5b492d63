"""``vitmem monitor`` over a made-up NVML library: what is followed, how it ends, and where nothing can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vitmem.cli import main
from vitmem.report import monitor as monitor_report
from vitmem.units import GIB, MIB
from vitmem.validate import monitor, nvml

ENDED = 2**22 + 1  # above the largest process id of Linux


class FakeError(Exception):
    """What pynvml raises."""


class FakeMismatch(Exception):
    """What pynvml raises where the driver is older than it; no NVMLError."""


class FakeNvml:
    """One GPU per script; each is a list of {pid: bytes}, and a read takes the next one, at the end the last again."""

    NVMLError, NVMLLibraryMismatchError = FakeError, FakeMismatch

    def __init__(self, *scripts: list[dict[int, int | None]], fails: str = "") -> None:
        self.scripts, self.fails, self.reads, self.is_open = scripts, fails, [0] * len(scripts), False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails:
            raise FakeError(self.fails)
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.scripts)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA Fake"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        if pid == 2:
            raise FakeError("Not Found")
        return f"/usr/bin/program{pid}"

    def _now(self, handle: int) -> dict[int, int | None]:
        script = self.scripts[handle]
        return script[min(self.reads[handle], len(script) - 1)]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=300 * MIB + sum(size or 0 for size in self._now(handle).values()), total=24 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        now = self._now(handle)
        self.reads[handle] += 1
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in now.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        raise FakeMismatch("Unversioned function called")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a library in the place of pynvml; time passes without waiting."""
    now = [0.0]

    def put(library: FakeNvml) -> FakeNvml:
        monkeypatch.setattr(nvml, "_library", lambda: library)
        return library

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setitem(monitor.follow.__kwdefaults__, "clock", lambda: now[0])
    monkeypatch.setitem(monitor.follow.__kwdefaults__, "sleep", sleep)
    return put


def test_the_peak_is_found_between_first_and_last(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # the first read asks for the size of the GPU
    library = install(FakeNvml([{}, {7: GIB}, {7: 5 * GIB, 8: 2 * GIB}, {7: 3 * GIB}]))
    assert main(["monitor", "--interval", "1", "--duration", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_samples"], document["ended_by"]) == (4, "duration")
    assert document["peak"] == {"seconds": 1.0, "device_bytes": 7 * GIB + 300 * MIB, "process_bytes": None}
    assert document["last"]["device_bytes"] == 3 * GIB + 300 * MIB
    assert document["processes"] == [{"pid": 7, "peak_bytes": 5 * GIB}, {"pid": 8, "peak_bytes": 2 * GIB}]
    assert not library.is_open


def test_a_process_is_followed_on_its_gpu_until_it_ends(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeNvml([{1: GIB}], [{ENDED: 2 * GIB}]))
    assert main(["monitor", "--pid", str(ENDED)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Process {ENDED} reached 2.00 GiB; 21.71 GiB of the GPU were free")
    assert "GPU 1, NVIDIA Fake" in out


def test_a_process_that_the_driver_does_not_name_is_said(install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeNvml([{1: GIB, 2: None}]))
    assert main(["monitor", "--pid", str(ENDED), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["peak"]["process_bytes"] is None
    assert f"never named process {ENDED}" in document["notes"][1]


def test_ctrl_c_ends_with_the_summary(
    install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(FakeNvml([{7: GIB}]))

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(monitor.follow.__kwdefaults__, "sleep", interrupted)
    assert main(["monitor"]) == 0
    assert capsys.readouterr().out.startswith("The GPU reached 1.29 GiB; 22.71 GiB of it were free then.")


def test_every_sample_is_a_row_of_the_csv_file(install: Any, tmp_path: Path) -> None:
    install(FakeNvml([{7: GIB}]))
    file = tmp_path / "memory.csv"
    line = ["monitor", "--pid", str(ENDED), "--csv", str(file)]
    assert main(line) == 0
    assert file.read_text() == f"seconds,device_bytes,process_bytes\n0.000,{GIB + 300 * MIB},\n"
    assert main(line) == 2
    assert main([*line, "--force"]) == 0


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_where_matplotlib_is(install: Any, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    install(FakeNvml([{7: GIB}, {7: 2 * GIB}]))
    file = tmp_path / f"memory{suffix}"
    assert main(["monitor", "--duration", "2", "--out", str(file)]) == 0
    assert file.stat().st_size > 1000
    assert main(["monitor", "--duration", "2", "--out", str(file)]) == 2


def test_without_matplotlib_nothing_is_followed(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = install(FakeNvml([{}]))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["monitor", "--out", str(tmp_path / "memory.png")]) == 4
    assert "vitmem[plot]" in capsys.readouterr().err
    assert library.reads == [0]


@pytest.mark.parametrize(
    ("library", "line", "code", "message"),
    [
        (FakeNvml([{}], fails="NVML Shared Library Not Found"), [], 4, "no NVIDIA driver answers"),
        (FakeNvml(), [], 4, "shows no GPU"),
        (FakeNvml([{}]), ["--gpu", "1"], 2, "no GPU 1 on this machine; there is 0 (NVIDIA Fake)"),
        (FakeNvml([{}]), ["--interval", "0"], 2, "--interval"),
        (FakeNvml([{}]), ["--csv", "missing/memory.csv"], 2, "cannot be written"),
        (FakeNvml([{}]), ["--out", "memory.pdf"], 2, "no known suffix"),
    ],
)
def test_what_cannot_be_followed_has_an_exit_code(
    install: Any, capsys: pytest.CaptureFixture[str], library: FakeNvml, line: list[str], code: int, message: str
) -> None:
    install(library)
    assert main(["monitor", *line]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_machine_without_a_driver_or_without_the_package_is_exit_4(monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver here")
    assert main(["monitor", "--duration", "1"]) == 4
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert main(["monitor", "--duration", "1"]) == 4


def test_a_live_line_fits_a_terminal() -> None:
    line = monitor_report.live_line(99 * GIB, 192 * GIB, 88 * GIB, 199 * GIB)
    assert line == "99.00 GiB of 192.00 GiB   process 88.00 GiB   peak 199.00 GiB"


def test_a_measurement_names_the_other_processes_of_its_own_gpu(install: Any) -> None:
    own = os.getpid()
    library = install(FakeNvml([{own: 9}], [{own: 700, 1: 300, 2: None}]))
    assert nvml.process_ids() == {own, 1, 2}
    found = nvml.device_use("1", frozenset())
    assert found == nvml.DeviceUse(driver="580.1", own_bytes=700, others=(("program1", 1, 300), ("a process", 2, None)))
    assert nvml.device_use("2", frozenset()) is None
    assert not library.is_open


def test_in_a_container_the_process_that_came_is_this_one(install: Any) -> None:
    install(FakeNvml([{ENDED: 700, 1: 300}]))
    found = nvml.device_use("0", frozenset({1}))
    assert found is not None
    assert (found.own_bytes, [other[1] for other in found.others]) == (700, [1])
    found = nvml.device_use("0", frozenset())
    assert found is not None
    assert (found.own_bytes, len(found.others)) == (None, 2)


def test_without_the_library_or_the_driver_nothing_is_said(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeNvml([{}], fails="driver not loaded"))
    assert (nvml.process_ids(), nvml.device_use("0", frozenset())) == (frozenset(), None)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (nvml.process_ids(), nvml.device_use("0", frozenset())) == (frozenset(), None)


def test_following_needs_no_torch() -> None:
    code = "import sys, vitmem.validate.monitor, vitmem.validate.nvml; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
