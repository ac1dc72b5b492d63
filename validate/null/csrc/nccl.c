/* libnccl: the version that torch prints (nccl.h). There is one device: a communicator is refused. */
#include "null.h"

#include <nccl.h>

API ncclResult_t ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
API const char *ncclGetErrorString(ncclResult_t result) { return "the null device has no NCCL"; }
API const char *ncclGetLastError(ncclComm_t comm) { return "the null device has no NCCL"; }
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return ncclSystemError; }
API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return ncclSystemError;
}
API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) { return ncclSystemError; }
API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int num_devices, const int *devices) { return ncclSystemError; }
