/* libcudart: streams, events, launches, errors (cuda_runtime_api.h) and what nvcc's code calls (crt/host_runtime.h). */
#define _GNU_SOURCE
#include "null.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ---- */

static __thread cudaError_t last_error;

int null_error(int error) { return (int)(last_error = error); }
API cudaError_t cudaGetLastError(void) { cudaError_t error = last_error; last_error = cudaSuccess; return error; }
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : NULL_ERROR;
}
API const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
API cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : null_error(cudaErrorInvalidDevice); }

/* ---- streams and events: everything has happened already ---- */
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = null_handle(); return cudaSuccess; }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreate(stream); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  return cudaStreamCreate(stream);
}
API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

/* CUDA 13 has the edges that CUDA 12 offers under _v3; its header gives the older form the name with _v2. */
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
#if CUDART_VERSION >= 13000
                                         const cudaGraphEdgeData **edges,
#endif
                                         size_t *num_nodes) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = NULL;
  if (nodes) *nodes = NULL;
  if (num_nodes) *num_nodes = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return null_error(cudaErrorStreamCaptureUnsupported); /* a graph would have to allocate on replay */
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  function(data);
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = null_handle(); return cudaSuccess; }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }

API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = 0.001f; /* not 0: rates are divided by it */
  return cudaSuccess;
}

/* ---- kernels are counted ---- */

#define LAUNCH(function, ...) API cudaError_t function(__VA_ARGS__) { null_count_kernel(); return cudaSuccess; }
LAUNCH(cudaLaunchKernel, const void *k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream)
LAUNCH(cudaLaunchCooperativeKernel, const void *k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
LAUNCH(__cudaLaunchKernel, cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream)
LAUNCH(cudaLaunchKernelExC, const cudaLaunchConfig_t *config, const void *k, void **args)

/* Registers are not known: 32 per thread let every SM hold all its threads. */
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = null_device()->binary;
  attributes->maxDynamicSharedSizeBytes = 48 * KIB;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int block,
                                                                       size_t shared, unsigned flags) {
  const Device *gpu = null_device();
  *blocks = gpu->blocks_per_sm;
  if (block > 0 && gpu->threads_per_sm / block < *blocks) *blocks = gpu->threads_per_sm / block;
  int by_shared = shared ? (int)(gpu->shared_per_sm / (shared + KIB)) : *blocks;
  if (by_shared < *blocks) *blocks = by_shared;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int block, size_t size) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block, size, 0);
}

API cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit,
    void **jit_values, unsigned num_jit, enum cudaLibraryOption *options, void **values, unsigned num) {
  *library = null_handle();
  return cudaSuccess;
}

API cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  *kernel = null_handle();
  return cudaSuccess;
}

/* ---- what nvcc compiles <<<>>> and static initialisers to; no public header declares all of it ---- */

API void **__cudaRegisterFatBinary(void *binary) { static void *handle[8]; return handle; }
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API char __cudaInitModule(void **handle) { return 1; }

typedef struct { dim3 grid, block; size_t shared; struct CUstream_st *stream; } Launch;
static __thread Launch launches[16];
static __thread unsigned num_launches;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (num_launches == sizeof launches / sizeof *launches) return cudaErrorInvalidConfiguration;
  launches[num_launches++] = (Launch){grid, block, shared, stream};
  return cudaSuccess;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!num_launches) return cudaErrorMissingConfiguration;
  const Launch *last = &launches[--num_launches];
  *grid = last->grid;
  *block = last->block;
  *shared = last->shared;
  *(struct CUstream_st **)stream = last->stream;
  return cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

/* ---- the driver by name: cuda.c has what is answered, the rest succeeds and writes nothing ---- */

static int nothing(void) { return 0; }

API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *found) {
  char versioned[256];
  snprintf(versioned, sizeof versioned, "%s_v2", name); /* cuda.h maps the plain name to the newest form */
  *function = dlsym(RTLD_DEFAULT, versioned);
  if (!*function) *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = (void *)nothing;
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *found) {
  return cudaGetDriverEntryPoint(name, function, flags, found); /* deprecated, not gone */
}
