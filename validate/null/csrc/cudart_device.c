/* libcudart: one device (cuda_runtime_api.h, "Device Management"; driver_types.h for the structures). */
#include "null.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { WARP = 32, THREADS_PER_BLOCK = 1024, GRID_X = 2147483647, GRID_YZ = 65535, REGISTERS = 65536, PCI_SLOT = 4 };

API cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
API cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
  snprintf(id, (size_t)length, "0000:00:%02d.0", PCI_SLOT);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

/* What all generations share is as on an A100; the rest is the device's. */
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  const Device *gpu = null_device();
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "%s", gpu->name);
  for (int i = 0; i < 16; i++) prop->uuid.bytes[i] = (char)(i + 1);
  prop->major = gpu->major;
  prop->minor = gpu->minor;
  prop->totalGlobalMem = gpu->memory;
  prop->multiProcessorCount = gpu->num_sms;
  prop->maxThreadsPerMultiProcessor = gpu->threads_per_sm;
  prop->maxBlocksPerMultiProcessor = gpu->blocks_per_sm;
  prop->sharedMemPerMultiprocessor = gpu->shared_per_sm;
  prop->sharedMemPerBlockOptin = gpu->shared_per_block;
  prop->sharedMemPerBlock = 48 * KIB;
  prop->reservedSharedMemPerBlock = gpu->major >= 8 ? KIB : 0;
  prop->l2CacheSize = (int)gpu->l2;
  prop->regsPerBlock = prop->regsPerMultiprocessor = REGISTERS;
  prop->warpSize = WARP;
  prop->maxThreadsPerBlock = THREADS_PER_BLOCK;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = THREADS_PER_BLOCK;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = GRID_X;
  prop->maxGridSize[1] = prop->maxGridSize[2] = GRID_YZ;
  prop->totalConstMem = 64 * KIB;
  prop->pciDeviceID = PCI_SLOT;
  prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = 1;
  prop->streamPrioritiesSupported = prop->managedMemory = prop->cooperativeLaunch = 1;
  prop->hostRegisterSupported = prop->memoryPoolsSupported = 1;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device) {
  struct cudaDeviceProp prop;
  cudaGetDeviceProperties(&prop, device);
  switch (name) {
    case cudaDevAttrComputeCapabilityMajor: *value = prop.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = prop.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = prop.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = prop.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = prop.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)prop.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)prop.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)prop.sharedMemPerBlock; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)prop.reservedSharedMemPerBlock; break;
    case cudaDevAttrL2CacheSize: *value = prop.l2CacheSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = prop.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = prop.regsPerMultiprocessor; break;
    case cudaDevAttrWarpSize: *value = prop.warpSize; break;
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: *value = prop.maxThreadsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = prop.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = prop.maxGridSize[1]; break;
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrManagedMemory: case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported: case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: *value = 0; /* among them: peer and pageable access, fabric, multicast */
  }
  return cudaSuccess;
}
