"""``vitmem null``: somebody's own command under a null device, and what its processes reported. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitmem.errors import DoesNotFit, NotModelled
from vitmem.result import SCHEMA_VERSION

from ..process import run
from .build import libraries
from .device import NullDevice, environment, refuse_beside_a_real_device
from .torch_build import installed

__all__ = ["NullRun", "watch"]

_INJECTED = Path(__file__).parent / "inject"
_STEADY = 2  # from 0; steps from the third on share a row
_NOTES = (
    "kernels did nothing: values read back from the device are zero, so that losses and accuracies mean nothing, and "
    "what a script decides by them goes the way of a zero",
    "the CUDA context is taken off the device's memory and is not part of any figure; NCCL is not there",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NullRun:
    """What a command did: ``exit_code`` is None where it ran out of time, and negative for a signal.

    ``reports`` are those of the processes that used the device, the one with the largest reserved memory first.
    """

    command: tuple[str, ...]
    device: NullDevice
    torch: str
    exit_code: int | None
    reports: tuple[Mapping[str, Any], ...]

    @property
    def main(self) -> Mapping[str, Any]:
        """The report of the process that took most."""
        return self.reports[0]

    @property
    def status(self) -> int:
        """The command's own exit code, as a shell gives it; 3 where it failed out of memory."""
        code = self.exit_code
        if code is None:
            return NotModelled.exit_code
        if code and any(report["num_ooms"] for report in self.reports):
            return DoesNotFit.exit_code
        return 128 - code if code < 0 else code

    def to_dict(self) -> dict[str, Any]:
        """The document of ``vitmem null --json``."""
        report = self.main
        steps = report["steps"]
        return {
            "schema_version": SCHEMA_VERSION,
            "command": list(self.command),
            "exit_code": self.exit_code,
            "device": self.device.to_dict(),
            "versions": {"torch": report["torch"]},
            "peak": {"tensor_bytes": None, **report["peak"], "device_bytes": None},
            "phases": _phases(steps[-1] if len(steps) > _STEADY else {}),
            "steps": [_phases(step) for step in steps[:_STEADY]],
            "num_steps": report["num_steps"],
            "num_alloc_retries": report["num_alloc_retries"],
            "num_ooms": report["num_ooms"],
            "out_of_memory": report["out_of_memory"],
            "num_processes": len(self.reports),
            "num_kernels": report.get("num_kernels"),
            "num_reads": report.get("num_reads"),
            "unanswered": report.get("unanswered", []),
            "notes": [*_NOTES, _workspace(self.device), *_ending(self)],
        }


def watch(
    command: Sequence[str], device: NullDevice, *, force: bool, timeout_s: float, num_steps: int, quiet: bool
) -> NullRun:
    """Run ``command``; its stdout goes to stderr where ``quiet``. Raises NotModelled where nothing used the device.

    A program without a folder is looked for beside this interpreter first, so that ``python`` is this one.
    """
    refuse_beside_a_real_device(force)
    torch = installed()
    variables = environment(device, libraries(torch))
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    with tempfile.TemporaryDirectory(prefix="vitmem-null-") as folder:
        paths = filter(None, [str(_INJECTED), variables.get("PYTHONPATH")])
        variables |= {"PYTHONPATH": os.pathsep.join(paths), "VITMEM_NULL_REPORT": folder}
        variables["VITMEM_NULL_STEPS"] = str(num_steps)
        code, _ = run(_found(command, variables), variables, timeout_s=timeout_s, stdout=sys.stderr if quiet else None)
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json")]
    reports.sort(key=lambda report: -report["peak"]["reserved_bytes"])
    done = NullRun(command=tuple(command), device=device, torch=torch.version, exit_code=code, reports=tuple(reports))
    if not reports:
        raise NotModelled(
            f"{command[0]} {_outcome(code)} and no process of it used a CUDA device: nothing was measured"
        )
    return done


def _found(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    import shutil

    return [shutil.which(command[0], path=variables["PATH"]) or command[0], *command[1:]]


def _outcome(code: int | None) -> str:
    if code is None:
        return "ran out of time"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _ending(run: NullRun) -> list[str]:
    """How it ended, where that explains a figure."""
    said = []
    if run.exit_code is None:
        said.append("the command ran out of time: the figures are those of what it did until then")
    if run.exit_code == -signal.SIGSEGV:
        said.append("SIGSEGV: something read device memory on the host, which faults here")
    if run.main["num_ooms"] and not run.exit_code:
        said.append(f"the device ran out of memory {run.main['num_ooms']} times, and the command went on")
    return said


def _workspace(device: NullDevice) -> str:
    size = device.cudnn_workspace_bytes
    taken = f"taken as {size} bytes each" if size else "not known and taken as 0 (--cudnn-workspace bounds them)"
    return f"the workspaces of cuDNN's plans (convolutions; attention on sm90 and sm100) are {taken}"


def _phases(step: Mapping[str, int]) -> dict[str, dict[str, int | None]]:
    return {name: {"tensor_bytes": None, "allocated_bytes": size} for name, size in step.items()}
