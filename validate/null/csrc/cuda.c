/* libcuda: what torch asks the driver for (cuda.h), by link or by name; what is not here succeeds and writes nothing.
   Virtual memory is counted: expandable segments. */
#include "null.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

static char context, module, function; /* opaque, one of each */

API CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device) {
  *made = (CUcontext)&context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *current) { *current = (CUcontext)&context; return CUDA_SUCCESS; }
API CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : NULL_ERROR;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

/* The numbers are the runtime's (driver_types.h); virtual memory management is the driver's own. */
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) *(CUcontext *)data = (CUcontext)&context;
  else *(int *)data = 0;
  return CUDA_SUCCESS;
}

/* ---- virtual memory: addresses and memory apart; a handle is an allocated copy of its size ---- */

API CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option) {
  *size = PAGE;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr at,
                                 unsigned long long flags) {
  *pointer = (CUdeviceptr)(uintptr_t)null_take_addresses(size);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  return null_give_addresses((void *)(uintptr_t)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags) {
  if (!null_take_memory(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t *kept = null_object();
  *kept = size;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)kept;
  return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  size_t *kept = (size_t *)(uintptr_t)handle;
  null_give_memory(*kept);
  free(kept);
  return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
  void *start = NULL;
  size_t found = null_addresses_at((void *)(uintptr_t)pointer, &start);
  if (base) *base = (CUdeviceptr)(uintptr_t)start;
  if (size) *size = found;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- modules: of torch's jiterator ---- */

API CUresult cuModuleLoadData(CUmodule *made, const void *image) { *made = (CUmodule)&module; return CUDA_SUCCESS; }
API CUresult cuModuleGetFunction(CUfunction *found, CUmodule from, const char *name) {
  *found = (CUfunction)&function;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction of, int block, size_t shared) {
  return (CUresult)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, of, block, shared);
}
