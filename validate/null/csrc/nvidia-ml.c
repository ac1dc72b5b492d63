/* libnvidia-ml: torch, its out-of-memory message and nvidia-ml-py ask it. nvml.h comes with no wheel: by its
   documentation, https://docs.nvidia.com/deploy/nvml-api. Handles are pointers, 0 is success, 3 is not supported. */
#include "null.h"

#include <cuda.h>
#include <stdio.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process; /* _v2 */
enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
#define UUID "GPU-01020304-0506-0708-090a-0b0c0d0e0f10" /* cudart_device.c's */
static char device;
int getpid(void);
static int text(char *to, unsigned room, const char *what) { return snprintf(to, room, "%s", what), SUCCESS; }

API int nvmlInit_v2(void) { return SUCCESS; }
API int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
API int nvmlShutdown(void) { return SUCCESS; }
API int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }
API const char *nvmlErrorString(int error) { return NULL_ERROR; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return SUCCESS; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) { *handle = &device; return SUCCESS; }
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { *handle = &device; return SUCCESS; }
API int nvmlSystemGetDriverVersion(char *to, unsigned room) { return text(to, room, "none"); }
API int nvmlDeviceGetName(void *handle, char *to, unsigned room) { return text(to, room, null_device()->name); }
API int nvmlDeviceGetUUID(void *handle, char *to, unsigned room) { return text(to, room, UUID); }

/* This process, with what it holds and its context. */
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *processes) {
  unsigned room = *count;
  *count = 1;
  if (!room) return INSUFFICIENT_SIZE;
  *processes = (Process){.pid = (unsigned)getpid(), .used = null_memory_used() + null_device()->context};
  return SUCCESS;
}
API __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) nvmlDeviceGetComputeRunningProcesses
    __attribute__((alias("nvmlDeviceGetComputeRunningProcesses_v3")));
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(void *handle, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetP2PStatus(void *handle, void *other, int index, int *status) { return NOT_SUPPORTED; }
