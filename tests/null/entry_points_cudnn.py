"""The cases of :mod:`entry_points` for cuDNN."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p

from entry_points import MIB, case, counters
from entry_points_runtime import made

#: cudnn_graph.h
INT64, BACKEND_DESCRIPTOR, CHAR = 3, 15, 24
PLAN_WORKSPACE_SIZE, HEURISTIC_RESULTS, ENGINE_GLOBAL_INDEX, PLAN_JSON, KNOB_INFO = 402, 202, 1301, 405, 1302
SHARED_MEMORY_USED, INT32 = 304, 23
DESCRIPTORS = [
    *("Tensor", "Filter", "Convolution", "Activation", "Pooling"),
    *("Dropout", "SpatialTransformer", "RNN", "RNNData", "CTCLoss"),
]


@case("cudnnGetVersion", "cudnnGetProperty", "cudnnGetErrorString", "cudnnGetLastErrorString")
def cudnn_versions_and_errors(lib):
    lib.cudnnGetVersion.restype = c_size_t
    parts = [c_int() for _ in range(3)]
    for which, part in enumerate(parts):
        assert lib.cudnnGetProperty(which, byref(part)) == 0
    major, minor, patch = (part.value for part in parts)
    assert lib.cudnnGetVersion() == major * 10000 + minor * 100 + patch
    lib.cudnnGetErrorString.restype = c_char_p
    assert lib.cudnnGetErrorString(0) == b"success"
    message = ctypes.create_string_buffer(b"xx", 3)
    lib.cudnnGetLastErrorString(message, c_size_t(3))
    assert message.value == b""


@case("cudnnCreate", "cudnnDestroy", "cudnnSetStream", "cudnnGetStream")
def cudnn_handles_keep_their_stream(lib):
    handle, stream = made(lib.cudnnCreate), c_void_p()
    assert lib.cudnnSetStream(handle, c_void_p(99)) == lib.cudnnGetStream(handle, byref(stream)) == 0
    assert stream.value == 99
    assert lib.cudnnDestroy(handle) == 0


BACKEND = ("CreateDescriptor", "DestroyDescriptor", "SetAttribute", "GetAttribute", "Execute")


@case(*(f"cudnnBackend{name}" for name in BACKEND))
def descriptors_remember_and_plans_answer(lib):
    descriptor = c_void_p()
    assert lib.cudnnBackendCreateDescriptor(0, byref(descriptor)) == 0
    for values in ((5, 6, 7), (8, 9)):  # set twice: the later one counts
        given = (c_int64 * len(values))(*values)
        assert lib.cudnnBackendSetAttribute(descriptor, 900, INT64, c_int64(len(values)), given) == 0
    count, read = c_int64(), (c_int64 * 4)(*[-1] * 4)

    def get(name, kind=INT64, wanted=4, place=read):
        assert lib.cudnnBackendGetAttribute(descriptor, name, kind, c_int64(wanted), byref(count), place) == 0
        return count.value

    assert (get(900), list(read)) == (2, [8, 9, -1, -1])
    assert (get(PLAN_WORKSPACE_SIZE), read[0]) == (1, 3 * MIB)
    assert (get(ENGINE_GLOBAL_INDEX), read[0]) == (1, 0)
    assert (get(SHARED_MEMORY_USED, INT32), read[0]) == (1, 0)
    assert get(HEURISTIC_RESULTS, BACKEND_DESCRIPTOR, place=None) == 1
    assert get(KNOB_INFO, BACKEND_DESCRIPTOR) == 0
    text = ctypes.create_string_buffer(8)
    assert (get(PLAN_JSON, CHAR, 8, text), text.value) == (3, b"{}")
    kernels = counters(lib).kernels
    assert lib.cudnnBackendExecute(None, descriptor, None) == 0
    assert counters(lib).kernels == kernels + 1
    assert lib.cudnnBackendDestroyDescriptor(descriptor) == lib.cudnnBackendDestroyDescriptor(None) == 0


@case(*(f"cudnnCreate{kind}Descriptor" for kind in DESCRIPTORS))
def the_older_interfaces_descriptors_are_made(lib):
    for kind in DESCRIPTORS:
        made(getattr(lib, f"cudnnCreate{kind}Descriptor"))


BATCH_NORM = {"ForwardTrainingExWorkspace": 5, "BackwardExWorkspace": 7, "TrainingExReserveSpace": 2}


@case(*(f"cudnnGetBatchNormalization{name}Size" for name in BATCH_NORM))
def batch_norm_asks_for_nothing(lib):
    for name, num_descriptors in BATCH_NORM.items():
        size = c_size_t(9)
        function = getattr(lib, f"cudnnGetBatchNormalization{name}Size")
        assert function(None, 0, 0, *[None] * num_descriptors, byref(size)) == 0
        assert size.value == 0
