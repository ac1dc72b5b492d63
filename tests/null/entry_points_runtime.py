"""The cases of :mod:`entry_points` for streams, launches, the driver and the libraries above the runtime."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p

from entry_points import MIB, OUT_OF_MEMORY, Dim3, UniqueId, case, counters, integer

ONE = Dim3(1, 1, 1)
CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


def made(function, *args):
    """A handle made by a function, never NULL."""
    handle = c_void_p()
    assert function(byref(handle), *args) == 0
    assert handle.value
    return handle


@case(
    "cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority", "cudaStreamGetPriority",
    "cudaEventCreate", "cudaEventCreateWithFlags", "cudaEventElapsedTime",
)  # fmt: skip
def streams_and_events_are_handles(lib):
    streams = [made(lib.cudaStreamCreate), made(lib.cudaStreamCreateWithFlags, 0)]
    streams.append(made(lib.cudaStreamCreateWithPriority, 0, -1))
    events = [made(lib.cudaEventCreate), made(lib.cudaEventCreateWithFlags, 0)]
    assert len({handle.value for handle in (*streams, *events)}) == 5
    priority = c_int(9)
    assert lib.cudaStreamGetPriority(streams[0], byref(priority)) == 0
    assert priority.value == 0
    assert integer(lib.cudaEventElapsedTime, *events, kind=c_float) > 0


@case("cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v2", "cudaStreamBeginCapture")
def nothing_is_ever_captured(lib):
    status, number, graph, nodes, edges, count = (
        c_int(9),
        c_uint64(9),
        c_void_p(9),
        c_void_p(9),
        c_void_p(9),
        c_size_t(9),
    )
    assert lib.cudaStreamIsCapturing(None, byref(status)) == 0
    assert status.value == 0
    outputs = [byref(number), byref(graph), byref(nodes)]
    if integer(lib.cudaRuntimeGetVersion) >= 13000:
        result = lib.cudaStreamGetCaptureInfo(None, byref(status), *outputs, byref(edges), byref(count))
    else:
        result = lib.cudaStreamGetCaptureInfo_v2(None, byref(status), *outputs, byref(count))
    assert (result, number.value, graph.value, nodes.value, count.value) == (0, 0, None, None, 0)
    assert lib.cudaStreamBeginCapture(None, 0) != 0
    lib.cudaGetLastError()


@case("cudaStreamAddCallback", "cudaLaunchHostFunc")
def host_functions_run_at_once(lib):
    seen = []
    callback = CALLBACK(lambda stream, status, data: seen.append((status, data)))
    function = HOST_FUNCTION(seen.append)
    assert lib.cudaStreamAddCallback(None, callback, c_void_p(11), 0) == 0
    assert lib.cudaLaunchHostFunc(None, function, c_void_p(12)) == 0
    assert seen == [(0, 11), 12]


@case("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelExC", "__cudaLaunchKernel")
def launches_are_counted(lib):
    before = counters(lib).kernels
    for launch in (lib.cudaLaunchKernel, lib.cudaLaunchCooperativeKernel, getattr(lib, "__cudaLaunchKernel")):
        assert launch(b"kernel", ONE, ONE, None, c_size_t(0), None) == 0
    assert lib.cudaLaunchKernelExC(None, b"kernel", None) == 0
    assert counters(lib).kernels == before + 4


@case("__cudaPushCallConfiguration", "__cudaPopCallConfiguration")
def launch_configurations_are_a_stack(lib):
    push, pop = (getattr(lib, f"__cuda{which}CallConfiguration") for which in ("Push", "Pop"))
    assert push(Dim3(1, 2, 3), ONE, c_size_t(5), c_void_p(6)) == push(Dim3(7, 8, 9), ONE, c_size_t(0), None) == 0
    grid, block, shared, stream = Dim3(), Dim3(), c_size_t(), c_void_p(1)
    places = byref(grid), byref(block), byref(shared), byref(stream)
    assert pop(*places) == 0
    assert (grid.x, grid.z, stream.value) == (7, 9, None)
    assert pop(*places) == 0
    assert (grid.y, block.x, shared.value, stream.value) == (2, 1, 5, 6)
    assert pop(*places) != 0
    assert [push(ONE, ONE, c_size_t(0), None) for _ in range(17)].count(0) == 16
    for _ in range(16):
        pop(*places)


@case(
    "__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd", "__cudaUnregisterFatBinary", "__cudaInitModule",
    "__cudaGetKernel",
)  # fmt: skip
def what_nvcc_registers(lib):
    register = getattr(lib, "__cudaRegisterFatBinary")
    register.restype = c_void_p
    handle = c_void_p(register(None))
    assert handle.value
    for name in ("__cudaRegisterFatBinaryEnd", "__cudaUnregisterFatBinary"):
        getattr(lib, name)(handle)
    initialised = getattr(lib, "__cudaInitModule")
    initialised.restype = ctypes.c_char
    assert initialised(handle) == b"\1"
    kernel = c_void_p()
    assert getattr(lib, "__cudaGetKernel")(byref(kernel), c_void_p(77)) == 0
    assert kernel.value == 77


@case(
    "cudaFuncGetAttributes",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
)
def kernels_are_limited_by_threads_blocks_and_shared_memory(lib):
    attributes = (c_int * 64)()
    assert lib.cudaFuncGetAttributes(attributes, None) == 0
    assert 86 in attributes[:16]  # kernels of 8.6 on an 8.9
    for block, shared, blocks in ((256, 0, 6), (32, 0, 24), (64, 49 << 10, 2), (1536, 0, 1)):
        sizes = None, block, c_size_t(shared)
        assert integer(lib.cudaOccupancyMaxActiveBlocksPerMultiprocessor, *sizes) == blocks
        assert integer(lib.cuOccupancyMaxActiveBlocksPerMultiprocessor, *sizes) == blocks
        assert integer(lib.cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, *sizes, 0) == blocks


@case("cudaLibraryLoadData", "cudaLibraryGetKernel", "cuModuleLoadData", "cuModuleGetFunction")
def code_loads_into_handles(lib):
    library = made(lib.cudaLibraryLoadData, None, None, None, 0, None, None, 0)
    made(lib.cudaLibraryGetKernel, library, b"kernel")
    made(lib.cuModuleGetFunction, made(lib.cuModuleLoadData, None), b"kernel")


@case("cudaGetDriverEntryPoint", "cudaGetDriverEntryPointByVersion")
def the_driver_is_found_by_name(lib):
    address = ctypes.cast(lib.cuDriverGetVersion, c_void_p).value
    found, status = c_void_p(), c_int(9)
    assert lib.cudaGetDriverEntryPoint(b"cuDriverGetVersion", byref(found), c_uint64(0), byref(status)) == 0
    assert (found.value, status.value) == (address, 0)
    newer = ctypes.cast(lib.cuMemGetAddressRange_v2, c_void_p).value
    rest = c_uint(13000), c_uint64(0), None
    assert lib.cudaGetDriverEntryPointByVersion(b"cuMemGetAddressRange", byref(found), *rest) == 0
    assert found.value == newer
    assert lib.cudaGetDriverEntryPointByVersion(b"cuNobodyKnows", byref(found), *rest) == 0
    assert ctypes.CFUNCTYPE(c_int)(found.value)() == 0


# libcuda


@case("cuDeviceGet", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxGetState", "cuCtxGetCurrent")
def the_drivers_device_has_a_context(lib):
    assert integer(lib.cuDeviceGet, 0) == 0
    assert integer(lib.cuDeviceGetCount) == 1
    context = made(lib.cuDevicePrimaryCtxRetain, 0)
    assert made(lib.cuCtxGetCurrent).value == context.value
    flags, active = c_uint(9), c_int(9)
    assert lib.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active)) == 0
    assert (flags.value, active.value) == (0, 1)


@case("cuGetErrorString", "cuGetErrorName", "cuPointerGetAttribute")
def the_driver_names_errors_and_pointers(lib):
    text = c_char_p()
    for function in (lib.cuGetErrorString, lib.cuGetErrorName):
        assert function(OUT_OF_MEMORY, byref(text)) == 0
        assert text.value == b"out of memory"
    assert integer(lib.cuPointerGetAttribute, 9, c_uint64(0)) == 0
    context = c_void_p()
    assert lib.cuPointerGetAttribute(byref(context), 1, c_uint64(0)) == 0
    assert context.value == made(lib.cuCtxGetCurrent).value


@case(
    "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease",
    "cuMemGetAddressRange_v2",
)  # fmt: skip
def virtual_memory_is_addresses_and_memory_apart(lib):
    used = counters(lib).used
    assert integer(lib.cuMemGetAllocationGranularity, None, 0, kind=c_size_t) == 2 * MIB
    zero = c_uint64(0)
    pointer = integer(lib.cuMemAddressReserve, c_size_t(1 << 40), c_size_t(0), zero, zero, kind=c_uint64)
    assert counters(lib).used == used
    handle = integer(lib.cuMemCreate, c_size_t(20 * MIB), None, zero, kind=c_uint64)
    assert counters(lib).used == used + 20 * MIB
    assert lib.cuMemCreate(byref(c_uint64()), c_size_t(1000 * MIB), None, zero) == OUT_OF_MEMORY
    base, size = c_uint64(), c_size_t()
    assert lib.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(pointer + 99)) == 0
    assert (base.value, size.value) == (pointer, 1 << 40)
    assert lib.cuMemRelease(c_uint64(handle)) == 0
    assert counters(lib).used == used
    assert lib.cuMemAddressFree(c_uint64(pointer), c_size_t(1 << 40)) == 0
    assert lib.cuMemAddressFree(c_uint64(pointer), c_size_t(1 << 40)) != 0


# libnvidia-ml


# the libraries


@case("cublasCreate_v2", "cublasDestroy_v2", "cublasGetVersion_v2", "cublasSetMathMode", "cublasGetMathMode")
def cublas_handles_keep_their_mode(lib):
    handle, value = made(lib.cublasCreate_v2), c_int()
    assert lib.cublasSetMathMode(handle, 3) == lib.cublasGetMathMode(handle, byref(value)) == 0
    assert value.value == 3
    assert lib.cublasGetVersion_v2(handle, byref(value)) == lib.cublasDestroy_v2(handle) == 0
    assert value.value // 10000 in (12, 13)


@case(
    "cublasLtGetVersion", "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulAlgoGetHeuristic",
)  # fmt: skip
def cublaslt_offers_one_algorithm(lib):
    lib.cublasLtGetVersion.restype = c_size_t
    assert lib.cublasLtGetVersion() // 10000 in (12, 13)
    sizes = c_uint64(2), c_uint64(3), c_int64(2)
    for kind, args in (("MatmulDesc", (0, 0)), ("MatrixLayout", (0, *sizes)), ("MatmulPreference", ())):
        handle = made(getattr(lib, f"cublasLt{kind}Create"), *args)
        assert getattr(lib, f"cublasLt{kind}Destroy")(handle) == 0
    results, found = ctypes.create_string_buffer(b"\xff" * 4096, 4096), c_int(9)
    for wanted in (1, 0):
        assert lib.cublasLtMatmulAlgoGetHeuristic(*[None] * 7, wanted, results, byref(found)) == 0
        assert found.value == wanted
    assert results.raw[:64] == bytes(64)  # the algorithm; a workspace of none follows


@case("cusparseCreate", "cusparseDestroy", "cusparseGetErrorString", "cuptiGetVersion", "cuptiGetResultString")
def sparse_and_profiler(lib):
    assert lib.cusparseDestroy(made(lib.cusparseCreate)) == 0
    lib.cusparseGetErrorString.restype = c_char_p
    assert lib.cusparseGetErrorString(1)
    assert integer(lib.cuptiGetVersion, kind=c_uint) > 0
    text = c_char_p()
    assert lib.cuptiGetResultString(1, byref(text)) == 0
    assert text.value


@case(
    "ncclGetVersion", "ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId", "ncclCommInitRankConfig",
    "ncclCommInitRank", "ncclCommInitAll",
)  # fmt: skip
def nccl_refuses_communicators(lib):
    assert integer(lib.ncclGetVersion) > 20000
    for function in (lib.ncclGetErrorString, lib.ncclGetLastError):
        function.restype = c_char_p
        assert b"NCCL" in function(None)
    assert lib.ncclGetUniqueId(None) != 0
    assert lib.ncclCommInitRank(None, 1, UniqueId(), 0) != 0
    assert lib.ncclCommInitRankConfig(None, 1, UniqueId(), 0, None) != 0
    assert lib.ncclCommInitAll(None, 1, None) != 0
