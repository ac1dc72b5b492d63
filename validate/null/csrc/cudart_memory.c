/* libcudart: memory (cuda_runtime_api.h, "Memory Management", "Unified Addressing"). */
#include "null.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

API cudaError_t cudaMalloc(void **pointer, size_t size) {
  *pointer = NULL;
  if (!size) return cudaSuccess;
  size = (size + PAGE - 1) & ~(PAGE - 1);
  if (!null_take_memory(size)) return null_error(cudaErrorMemoryAllocation);
  *pointer = null_take_addresses(size);
  if (*pointer) return cudaSuccess;
  null_give_memory(size);
  return null_error(cudaErrorMemoryAllocation);
}

API cudaError_t cudaFree(void *pointer) {
  if (!pointer) return cudaSuccess;
  size_t size = null_give_addresses(pointer);
  if (!size) return null_error(cudaErrorInvalidValue);
  null_give_memory(size);
  return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) { return cudaMalloc(pointer, size); }
API cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  const Device *gpu = null_device();
  size_t taken = gpu->context + null_memory_used();
  *total = gpu->memory;
  *free = taken < gpu->memory ? gpu->memory - taken : 0;
  return cudaSuccess;
}

/* ---- host memory ---- */

API cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
  if (posix_memalign(pointer, 4096, size ? size : 1)) return null_error(cudaErrorMemoryAllocation);
  null_pin(*pointer, size);
  return cudaSuccess;
}
API cudaError_t cudaFreeHost(void *pointer) {
  if (pointer && null_unpin(pointer)) free(pointer);
  return cudaSuccess;
}
API cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) {
  null_pin(pointer, size);
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void *pointer) { null_unpin(pointer); return cudaSuccess; }
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  int on_device = null_is_device(pointer), registered = on_device || null_is_pinned(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = on_device ? cudaMemoryTypeDevice : registered ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->device = registered ? 0 : cudaInvalidDeviceId;
  attributes->devicePointer = registered ? (void *)pointer : NULL;
  attributes->hostPointer = on_device ? NULL : (void *)pointer;
  return cudaSuccess;
}

/* ---- copies ---- */

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  null_copy(to, from, size);
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
    cudaStream_t stream) {
  null_copy(to, from, size);
  return cudaSuccess;
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
    size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++)
    null_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

API cudaError_t cudaMemset(void *to, int value, size_t size) { null_fill(to, value, size); return cudaSuccess; }
API cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
  return cudaMemset(to, value, size);
}

/* ---- variables of device code: addresses, contents nobody reads ---- */

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  static void *symbols;
  if (!symbols) symbols = null_take_addresses(PAGE);
  *pointer = symbols;
  return symbols ? cudaSuccess : null_error(cudaErrorInvalidSymbol);
}

