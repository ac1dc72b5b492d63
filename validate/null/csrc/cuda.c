/* libcuda: what torch asks the driver for (cuda.h), by name or by link. Virtual memory is counted: expandable segments. */
#include "null.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

static char context, module, function; /* opaque, one of each */

API CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(i + 1);
  return CUDA_SUCCESS;
}

/* The numbers are the runtime's (driver_types.h); virtual memory management is the driver's own. */
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  else cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) { *ctx = (CUcontext)&context; return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext *ctx) { *ctx = (CUcontext)&context; return CUDA_SUCCESS; }

API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "not done by the null device";
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) *(CUcontext *)data = (CUcontext)&context;
  else *(int *)data = 0;
  return CUDA_SUCCESS;
}

/* ---- virtual memory: addresses and memory apart; a handle is an allocated copy of its size ---- */

API CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option) {
  *size = PAGE;
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr at, unsigned long long flags) {
  *pointer = (CUdeviceptr)(uintptr_t)null_take_addresses(size);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  return null_give_addresses((void *)(uintptr_t)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
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

API CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return null_is_device((void *)(uintptr_t)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) { return CUDA_SUCCESS; }
API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *desc, size_t count) { return CUDA_SUCCESS; }

API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
  void *start = NULL;
  size_t found = null_addresses_at((void *)(uintptr_t)pointer, &start);
  if (base) *base = (CUdeviceptr)(uintptr_t)start;
  if (size) *size = found;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- modules: torch's jiterator and its descriptors of tensor maps ---- */

API CUresult cuModuleLoad(CUmodule *loaded, const char *file) { *loaded = (CUmodule)&module; return CUDA_SUCCESS; }
API CUresult cuModuleLoadData(CUmodule *loaded, const void *image) { *loaded = (CUmodule)&module; return CUDA_SUCCESS; }

API CUresult cuModuleLoadDataEx(CUmodule *loaded, const void *image, unsigned num, CUjit_option *options, void **values) {
  return cuModuleLoadData(loaded, image);
}

API CUresult cuModuleGetFunction(CUfunction *found, CUmodule from, const char *name) {
  *found = (CUfunction)&function;
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction of) { *value = 32; return CUDA_SUCCESS; }

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction of, int block, size_t shared) {
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, NULL, block, shared);
  return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared, CUstream stream, void **args, void **extra) {
  null_count_kernel();
  return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}
