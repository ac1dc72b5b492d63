"""The cases of :mod:`entry_points` for NVML, which torch and nvidia-ml-py ask."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_uint, c_uint64, c_void_p

from entry_points import MIB, case, counters, integer


@case(
    "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlErrorString", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetP2PStatus",
)  # fmt: skip
def nvml_shows_one_process(lib):
    assert lib.nvmlInit_v2() == lib.nvmlShutdown() == 0
    assert integer(lib.nvmlDeviceGetCount_v2, kind=c_uint) == 1
    lib.nvmlErrorString.restype = c_char_p
    assert lib.nvmlErrorString(3)
    handle = c_void_p()
    by = (
        (lib.nvmlDeviceGetHandleByIndex_v2, 0),
        (lib.nvmlDeviceGetHandleByPciBusId_v2, b"0"),
        (lib.nvmlDeviceGetHandleByUUID, b"0"),
    )
    for function, key in by:
        handle.value = None
        assert function(key, byref(handle)) == 0
        assert handle.value
    count, room = c_uint(0), (c_uint64 * 3)()
    assert lib.nvmlDeviceGetComputeRunningProcesses(handle, byref(count), None) == 7
    assert (count.value, lib.nvmlDeviceGetComputeRunningProcesses(handle, byref(count), room)) == (1, 0)
    assert (room[0], room[1]) == (os.getpid(), counters(lib).used + 50 * MIB)
    refused = "NvLinkRemoteDeviceType", "NvLinkRemotePciInfo_v2", "GpuFabricInfoV", "P2PStatus"
    assert {getattr(lib, f"nvmlDeviceGet{name}")(handle, None, None, None) for name in refused} == {3}


@case(
    "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetName", "nvmlDeviceGetUUID",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)  # fmt: skip
def nvml_is_what_nvidia_ml_py_asks(lib):
    assert lib.nvmlInitWithFlags(0) == 0
    text, handle = ctypes.create_string_buffer(96), c_void_p(1)
    assert (lib.nvmlSystemGetDriverVersion(text, 96), text.value) == (0, b"none")
    assert (lib.nvmlDeviceGetName(handle, text, 96), text.value) == (0, b"Some GPU")
    assert lib.nvmlDeviceGetUUID(handle, text, 96) == 0
    assert bytes.fromhex(text.value.decode().removeprefix("GPU-").replace("-", "")) == bytes(range(1, 17))
    count, room = c_uint(1), (c_uint64 * 3)()
    assert lib.nvmlDeviceGetComputeRunningProcesses_v3(handle, byref(count), room) == 0
    assert (room[0], room[1]) == (os.getpid(), counters(lib).used + 50 * MIB)
