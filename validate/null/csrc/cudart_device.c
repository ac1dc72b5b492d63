/* libcudart: one device (cuda_runtime_api.h, "Device Management"; driver_types.h for the structures). */
#include "null.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { WARP = 32, THREADS_PER_BLOCK = 1024, GRID_X = 2147483647, GRID_YZ = 65535, REGISTERS = 65536, BUS = 5120, PCI_SLOT = 4 };

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
  if (least) *least = 0;
  if (greatest) *greatest = -5;
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
  prop->memPitch = GRID_X;
  prop->totalConstMem = 64 * KIB;
  prop->textureAlignment = prop->surfaceAlignment = 512;
  prop->texturePitchAlignment = 32;
  prop->memoryBusWidth = BUS;
  prop->pciDeviceID = PCI_SLOT;
  prop->asyncEngineCount = 3;
  prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = 1;
  prop->streamPrioritiesSupported = prop->globalL1CacheSupported = prop->localL1CacheSupported = 1;
  prop->managedMemory = prop->concurrentManagedAccess = prop->computePreemptionSupported = 1;
  prop->canUseHostPointerForRegisteredMem = prop->cooperativeLaunch = 1;
  prop->hostRegisterSupported = prop->memoryPoolsSupported = 1;
  return cudaSuccess;
}

static int attribute(int name) {
  const Device *gpu = null_device();
  switch (name) {
    case cudaDevAttrComputeCapabilityMajor: return gpu->major;
    case cudaDevAttrComputeCapabilityMinor: return gpu->minor;
    case cudaDevAttrMultiProcessorCount: return gpu->num_sms;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return gpu->threads_per_sm;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return gpu->blocks_per_sm;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)gpu->shared_per_sm;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)gpu->shared_per_block;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 * KIB;
    case cudaDevAttrReservedSharedMemoryPerBlock: return gpu->major >= 8 ? KIB : 0;
    case cudaDevAttrL2CacheSize: return (int)gpu->l2;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return REGISTERS;
    case cudaDevAttrWarpSize: return WARP;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return THREADS_PER_BLOCK;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxPitch: return GRID_X;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return GRID_YZ;
    case cudaDevAttrTotalConstantMemory: return 64 * KIB;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrClockRate: return 1410000;
    case cudaDevAttrMemoryClockRate: return 1215000;
    case cudaDevAttrGlobalMemoryBusWidth: return BUS;
    case cudaDevAttrPciDeviceId: return PCI_SLOT;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return 0; /* among them: peer and pageable access, graphs' own memory, fabric, multicast */
  }
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device) {
  *value = attribute((int)name);
  return cudaSuccess;
}
