"""``--backend null``: :mod:`vitmem.validate.cuda` in a child process that has a null device. Needs no torch itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vitmem import errors
from vitmem.settings import TrainSettings

from ..measurement import AllocatorMeasurement
from .build import libraries
from .device import NullDevice, environment, refuse_beside_a_real_device
from .process import run
from .torch_build import installed

__all__ = ["measure"]

_ALLOCATOR_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def measure(settings: TrainSettings, device: NullDevice, *, force: bool, timeout_s: float) -> AllocatorMeasurement:
    """Three steps under the device; raises what the child refuses, NotModelled where it ends without an answer."""
    refuse_beside_a_real_device(force)
    variables = environment(device, libraries(installed()))
    for name in _ALLOCATOR_CONF:
        variables.pop(name, None)
    if settings.alloc_conf is not None:
        variables[_ALLOCATOR_CONF[0]] = settings.alloc_conf
    with tempfile.TemporaryDirectory(prefix="vitmem-null-") as folder:
        result = Path(folder) / "result.json"
        code, complaint = run(
            [sys.executable, "-m", "vitmem.validate.null.child", str(result)],
            variables,
            timeout_s=timeout_s,
            input=json.dumps(settings.to_dict()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if code is None:
            raise errors.NotModelled(
                f"the null device's run took more than {timeout_s:g} s; give it a longer --timeout"
            )
        if not result.is_file():
            last = (complaint.strip() or "nothing said").splitlines()[-1]
            raise errors.NotModelled(f"the null device's run ended with {code}: {last}")
        document = json.loads(result.read_text(encoding="utf-8"))
    return _measurement(document, device)


def _measurement(document: dict[str, Any], device: NullDevice) -> AllocatorMeasurement:
    if "error" in document:
        raise getattr(errors, document["error"])(document["message"])
    return AllocatorMeasurement.of(document, backend="null", device=device.name, notes=_notes(device))


def _notes(device: NullDevice) -> tuple[str, ...]:
    workspace = device.cudnn_workspace_bytes
    asked = (
        f"taken as {workspace} bytes per plan" if workspace else "not known and taken as 0; --cudnn-workspace bounds it"
    )
    return (
        f"PyTorch's CUDA build on a null {device.name}: allocator and kernel choice are real, kernels do nothing",
        f"the allocator may take {device.memory_bytes - device.context_bytes} bytes: the device's "
        f"{device.memory_bytes} less {device.context_bytes} expected of the CUDA context",
        f"the workspace of cuDNN's plans (convolutions; attention on sm90 and sm100) is {asked}",
    )
