"""What NVML (nvidia-ml-py) says of the GPU: the memory of this process, and who else is on it."""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any

__all__ = ["DeviceUse", "device_use"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """``own_bytes`` is None where NVML does not tell (containers, Windows); ``others`` are (name, pid, bytes)."""

    driver: str
    own_bytes: int | None
    others: tuple[tuple[str, int, int | None], ...]


def device_use(index: int) -> DeviceUse | None:
    """None where nvidia-ml-py or the driver's library is not there, or refuses."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(_physical(index))
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        driver = nvml.nvmlSystemGetDriverVersion()
    except (nvml.NVMLError, AttributeError, ValueError):
        return None
    own = next((process.usedGpuMemory for process in running if process.pid == os.getpid()), None)
    others = tuple((_name(nvml, p.pid), p.pid, p.usedGpuMemory) for p in running if p.pid != os.getpid())
    return DeviceUse(driver=driver, own_bytes=own, others=others)


def _physical(index: int) -> int:
    """NVML counts all GPUs, CUDA those that ``CUDA_VISIBLE_DEVICES`` names; a UUID there is not looked up."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return int(visible.split(",")[index]) if visible else index


def _name(nvml: Any, pid: int) -> str:
    try:
        return os.path.basename(str(nvml.nvmlSystemGetProcessName(pid)))
    except nvml.NVMLError:
        return "a process"
