"""The cases of :mod:`entry_points` for the runtime's memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

from entry_points import MIB, case, malloc


@case("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "cudaMemGetInfo")
def device_memory_comes_in_pages(lib):
    def free():
        left, total = c_size_t(), c_size_t()
        assert lib.cudaMemGetInfo(byref(left), byref(total)) == 0
        assert total.value == 1000 * MIB
        return left.value

    before = free()
    assert before <= 950 * MIB  # what the context leaves
    pointer, other = malloc(lib, 2 * MIB + 1), c_void_p()
    assert lib.cudaMallocAsync(byref(other), c_size_t(1), None) == 0
    assert free() == before - 6 * MIB
    assert lib.cudaFree(pointer) == lib.cudaFreeAsync(other, None) == lib.cudaFree(None) == 0
    assert free() == before
    assert lib.cudaFree(pointer) != 0
    lib.cudaGetLastError()
    assert lib.cudaMalloc(byref(pointer), c_size_t(0)) == 0
    assert pointer.value is None


@case("cudaHostAlloc", "cudaFreeHost", "cudaHostRegister", "cudaHostUnregister", "cudaPointerGetAttributes")
def pointers_are_known_by_kind(lib):
    def kind(pointer):
        attributes = (c_int * 64)()
        assert lib.cudaPointerGetAttributes(attributes, pointer) == 0
        return attributes[0]  # cudaMemoryType: unregistered, host, device

    pinned, own = c_void_p(), ctypes.create_string_buffer(16)
    assert lib.cudaHostAlloc(byref(pinned), c_size_t(100), 0) == 0
    device = malloc(lib, 1)
    assert (kind(own), kind(pinned), kind(device)) == (0, 1, 2)
    assert lib.cudaHostRegister(own, c_size_t(16), 0) == 0
    assert kind(own) == 1
    assert lib.cudaHostUnregister(own) == lib.cudaFreeHost(pinned) == lib.cudaFree(device) == 0
    assert (kind(own), kind(pinned)) == (0, 0)


@case("cudaMemcpy", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemset", "cudaMemsetAsync")
def copies_from_the_device_are_zeros(lib):
    device = malloc(lib, 64)
    for copy in (
        lambda to, size: lib.cudaMemcpy(to, device, c_size_t(size), 2),
        lambda to, size: lib.cudaMemcpyAsync(to, device, c_size_t(size), 2, None),
    ):
        host = ctypes.create_string_buffer(b"x" * 8, 8)
        assert copy(host, 5) == 0
        assert host.raw == bytes(5) + b"xxx"
    host = ctypes.create_string_buffer(b"x" * 8, 8)
    sizes = c_size_t(4), device, c_size_t(16), c_size_t(2), c_size_t(2)
    assert lib.cudaMemcpy2DAsync(host, *sizes, 2, None) == 0
    assert host.raw == b"\0\0xx\0\0xx"
    assert lib.cudaMemset(host, 7, c_size_t(2)) == lib.cudaMemset(device, 7, c_size_t(2)) == 0
    assert lib.cudaMemsetAsync(host, 7, c_size_t(3), None) == 0
    assert host.raw[:4] == b"\7\7\7x"
    lib.cudaFree(device)


@case("cudaGetSymbolAddress")
def symbols_have_addresses(lib):
    pointer = c_void_p()
    assert lib.cudaGetSymbolAddress(byref(pointer), b"anything") == 0
    assert lib.null_is_device(pointer) == 1
