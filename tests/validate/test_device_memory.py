"""What NVML says, from a stand-in of nvidia-ml-py: the own process, the others, and a library that refuses."""

from __future__ import annotations

import os
import sys
import types

import pytest
from vitmem.validate.device_memory import DeviceUse, device_use


class NVMLError(Exception):
    pass


def process(pid, num_bytes):
    return types.SimpleNamespace(pid=pid, usedGpuMemory=num_bytes)


def nvml(running, *, name="/usr/bin/python3", refuses=False):
    def init():
        if refuses:
            raise NVMLError("driver not loaded")

    asked = []
    return types.SimpleNamespace(
        NVMLError=NVMLError,
        asked=asked,
        nvmlInit=init,
        nvmlDeviceGetHandleByIndex=asked.append,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: running,
        nvmlSystemGetDriverVersion=lambda: "580.95.05",
        nvmlSystemGetProcessName=lambda pid: name,
    )


def test_other_processes_are_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([process(os.getpid(), 700), process(1, 300), process(2, None)]))
    assert device_use(0) == DeviceUse(
        driver="580.95.05", own_bytes=700, others=(("python3", 1, 300), ("python3", 2, None))
    )


def test_the_index_is_that_of_the_visible_gpus(monkeypatch):
    library = nvml([])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert device_use(1).own_bytes is None
    assert library.asked == [3]


@pytest.mark.parametrize("library", [None, nvml([], refuses=True)])
def test_without_the_library_or_the_driver_nothing_is_said(monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert device_use(0) is None
