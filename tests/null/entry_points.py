"""Calls every hand-written entry point of the stand-ins, in a process of its own without torch.

    python entry_points.py PRELOAD.json      # the stand-ins in the order in which they are loaded

Prints a JSON object: the name of each entry point, and "" or what was wrong with it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import traceback
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

MIB = 1 << 20
OUT_OF_MEMORY = 2
CASES = {}


class Dim3(ctypes.Structure):
    _fields_ = [(axis, c_uint) for axis in "xyz"]


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


class Counters(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("used", "peak", "mallocs", "frees", "refused", "kernels", "reads")]


def case(*names):
    """The decorated function checks these entry points."""

    def register(check):
        CASES.update(dict.fromkeys(names, check))
        return check

    return register


def load(paths):
    """One namespace of all stand-ins; pointers come back whole."""
    libraries = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths]

    class Namespace:
        def __getattr__(self, name):
            for library in libraries:
                if hasattr(library, name):
                    return getattr(library, name)
            raise AttributeError(name)

    return Namespace()


def counters(lib):
    now = Counters()
    lib.null_counters(byref(now))
    return now


def malloc(lib, size):
    pointer = c_void_p()
    assert lib.cudaMalloc(byref(pointer), c_size_t(size)) == 0
    return pointer


def integer(function, *args, kind=c_int):
    """What a function writes through its first argument."""
    value = kind(-7)
    assert function(byref(value), *args) == 0
    return value.value


# the core


@case("null_device")
def the_device_is_what_the_environment_says(lib):
    lib.null_device.restype = c_char_p
    assert lib.null_device() == b"Some GPU"


@case("null_take_memory", "null_give_memory", "null_memory_used", "null_counters")
def memory_is_counted_and_refused_beyond_what_the_context_leaves(lib):
    lib.null_memory_used.restype = c_size_t
    before = lib.null_memory_used()
    refused = counters(lib).refused
    assert lib.null_take_memory(c_size_t(100 * MIB)) == 1
    assert lib.null_memory_used() == before + 100 * MIB
    assert lib.null_take_memory(c_size_t(900 * MIB)) == 0  # 1,000 MiB less a context of 50 MiB
    assert counters(lib).refused == refused + 1
    lib.null_give_memory(c_size_t(100 * MIB))
    assert lib.null_memory_used() == before
    assert counters(lib).peak >= before + 100 * MIB


@case("null_take_addresses", "null_give_addresses", "null_addresses_at", "null_is_device")
def the_lowest_free_addresses_are_taken_first(lib):
    lib.null_take_addresses.restype = c_void_p
    lib.null_give_addresses.restype = lib.null_addresses_at.restype = c_size_t
    first, second = (lib.null_take_addresses(c_size_t(size)) for size in (3 * MIB, 2 * MIB))
    assert second == first + 4 * MIB  # whole pages of 2 MiB
    assert lib.null_is_device(c_void_p(first + 5)) == 1
    assert lib.null_is_device(byref(c_int())) == 0
    start = c_void_p()
    assert lib.null_addresses_at(c_void_p(first + 5), byref(start)) == 4 * MIB
    assert start.value == first
    assert lib.null_give_addresses(c_void_p(first)) == 4 * MIB
    assert lib.null_give_addresses(c_void_p(first)) == 0
    assert lib.null_take_addresses(c_size_t(MIB)) == first
    assert lib.null_take_addresses(c_size_t(1 << 43)) is None
    for pointer in (first, second):
        lib.null_give_addresses(c_void_p(pointer))


@case("null_pin", "null_unpin", "null_is_pinned")
def pinned_ranges_are_remembered(lib):
    lib.null_unpin.restype = c_size_t
    buffer = ctypes.create_string_buffer(64)
    inside = c_void_p(ctypes.addressof(buffer) + 63)
    lib.null_pin(buffer, c_size_t(64))
    assert lib.null_is_pinned(inside) == 1
    assert lib.null_unpin(buffer) == 64
    assert lib.null_is_pinned(inside) == 0


@case("null_copy", "null_fill", "null_count_kernel")
def small_copies_read_back_until_a_kernel_is_launched(lib):
    device = malloc(lib, 1024)
    further = c_void_p(device.value + 512)
    host = ctypes.create_string_buffer(b"abcdefg", 8)
    back = ctypes.create_string_buffer(b"xxxxxxxx", 8)
    lib.null_copy(device, host, c_size_t(8))
    lib.null_copy(further, device, c_size_t(8))  # from device to device as well
    lib.null_copy(back, c_void_p(further.value + 2), c_size_t(4))
    assert back.raw == b"cdefxxxx"
    reads = counters(lib).reads
    lib.null_count_kernel()
    lib.null_copy(back, device, c_size_t(8))
    assert back.raw == bytes(8)
    assert counters(lib).reads == reads + 1
    lib.null_copy(back, host, c_size_t(8))
    assert back.raw == host.raw
    lib.null_fill(back, 1, c_size_t(8))
    assert back.raw == b"\1" * 8
    lib.null_fill(device, 1, c_size_t(8))  # would fault if it wrote
    lib.cudaFree(device)


@case("null_handle", "null_object")
def handles_differ_and_objects_are_zero(lib):
    lib.null_handle.restype = lib.null_object.restype = c_void_p
    assert lib.null_handle() != lib.null_handle()
    assert ctypes.string_at(lib.null_object(), 64) == bytes(64)


@case("null_unanswered", "null_unanswered_names")
def generated_functions_succeed_and_tell_once(lib):
    lib.null_unanswered_names.restype = c_char_p
    kernels = counters(lib).kernels
    assert lib.cublasGemmEx() == lib.cublasGemmEx() == 0
    assert lib.null_unanswered_names().split().count(b"cublasGemmEx") == 1
    assert counters(lib).kernels == kernels + 2  # it may have written to the device
    lib.null_unanswered(b"someName")
    assert b"someName" in lib.null_unanswered_names().split()


@case("null_error", "cudaGetLastError", "cudaPeekAtLastError", "cudaGetErrorString", "cudaGetErrorName")
def errors_are_kept_until_they_are_asked_for(lib):
    lib.cudaGetErrorString.restype = lib.cudaGetErrorName.restype = c_char_p
    pointer = c_void_p(5)
    assert lib.cudaMalloc(byref(pointer), c_size_t(1 << 40)) == OUT_OF_MEMORY
    assert pointer.value is None
    assert lib.cudaPeekAtLastError() == OUT_OF_MEMORY
    assert lib.cudaGetLastError() == OUT_OF_MEMORY
    assert lib.cudaGetLastError() == 0
    assert lib.cudaGetErrorString(OUT_OF_MEMORY) == lib.cudaGetErrorName(OUT_OF_MEMORY) == b"out of memory"
    assert lib.cudaGetErrorString(0) == b"no error"


# libcudart: the device


@case("cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceCanAccessPeer")
def there_is_one_device(lib):
    assert integer(lib.cudaGetDeviceCount) == 1
    assert integer(lib.cudaGetDevice) == 0
    assert lib.cudaSetDevice(0) == 0
    assert lib.cudaSetDevice(1) != 0
    lib.cudaGetLastError()
    assert integer(lib.cudaDeviceCanAccessPeer, 0, 0) == 0


@case("cudaDriverGetVersion", "cudaRuntimeGetVersion", "cuDriverGetVersion", "nvmlSystemGetCudaDriverVersion_v2")
def the_versions_are_the_headers(lib):
    version = integer(lib.cudaRuntimeGetVersion)
    assert version // 1000 in (12, 13)
    for function in (lib.cudaDriverGetVersion, lib.cuDriverGetVersion, lib.nvmlSystemGetCudaDriverVersion_v2):
        assert integer(function) == version


@case("cudaDeviceGetPCIBusId", "cudaDeviceGetStreamPriorityRange")
def the_bus_and_the_priorities(lib):
    name = ctypes.create_string_buffer(32)
    assert lib.cudaDeviceGetPCIBusId(name, 32, 0) == 0
    assert name.value == b"0000:00:04.0"
    least, greatest = c_int(9), c_int(9)
    assert lib.cudaDeviceGetStreamPriorityRange(byref(least), byref(greatest)) == 0
    assert (least.value, greatest.value) == (0, -5)


@case("cudaGetDeviceProperties", "cudaGetDeviceProperties_v2", "cudaDeviceGetAttribute", "cuDeviceGetAttribute")
def properties_and_attributes_are_the_devices(lib):
    properties = ctypes.create_string_buffer(4096)
    name = "cudaGetDeviceProperties" if integer(lib.cudaRuntimeGetVersion) >= 13000 else "cudaGetDeviceProperties_v2"
    assert getattr(lib, name)(properties, 0) == 0
    assert properties.value == b"Some GPU"
    assert (1000 * MIB).to_bytes(8, "little") in properties.raw
    numbers = {75: 8, 76: 9, 16: 46, 39: 1536, 81: 100 << 10, 97: 99 << 10, 10: 32, 95: 1, 88: 0}  # driver_types.h
    for attribute, value in numbers.items():
        assert integer(lib.cudaDeviceGetAttribute, attribute, 0) == value, attribute
        assert integer(lib.cuDeviceGetAttribute, attribute, 0) == value, attribute
    assert integer(lib.cuDeviceGetAttribute, 102, 0) == 1  # virtual memory management


def main(manifest):
    for name in ("memory", "runtime", "nvml", "cudnn"):  # their cases register themselves
        importlib.import_module(f"entry_points_{name}")
    lib = load(str(manifest.parent / name) for name in json.loads(manifest.read_text()))
    verdicts = {}
    for check in dict.fromkeys(CASES.values()):
        try:
            check(lib)
            verdict = ""
        except Exception:
            verdict = traceback.format_exc()
        verdicts |= {name: verdict for name in CASES if CASES[name] is check}
    print(json.dumps(verdicts))


if __name__ == "__main__":
    sys.modules["entry_points"] = sys.modules["__main__"]
    main(Path(sys.argv[1]))
