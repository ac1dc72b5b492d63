/* libnvidia-ml: torch.cuda.device_count() and the out-of-memory message ask it. nvml.h comes with no wheel: by its
   documentation, https://docs.nvidia.com/deploy/nvml-api. Handles are pointers, 0 is success, 3 is not supported. */
#include "null.h"

#include <cuda.h>
#include <string.h>

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process; /* _v2 */
enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
static char device;
int getpid(void);

API int nvmlInit_v2(void) { return SUCCESS; }
API int nvmlShutdown(void) { return SUCCESS; }
API int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }
API const char *nvmlErrorString(int error) { return NULL_ERROR; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return SUCCESS; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) { *handle = &device; return SUCCESS; }
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) { *handle = &device; return SUCCESS; }

/* This process, with what it holds and its context. */
API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, Process *processes) {
  unsigned room = *count;
  *count = 1;
  if (!room) return INSUFFICIENT_SIZE;
  memset(processes, 0, sizeof *processes);
  processes->pid = (unsigned)getpid();
  processes->used = null_memory_used() + null_device()->context;
  return SUCCESS;
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(void *handle, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetP2PStatus(void *handle, void *other, int index, int *status) { return NOT_SUPPORTED; }
