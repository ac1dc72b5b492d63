/* libcudnn: the backend's descriptors remember what they are told (cudnn_graph.h); heuristics offer one engine. */
#include "null.h"

#include <cudnn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

API size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
API cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

API const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? NULL_ERROR : "success"; }
API void cudnnGetLastErrorString(char *message, size_t room) { if (room) *message = 0; }
API cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { *handle = null_object(); return CUDNN_STATUS_SUCCESS; }
API cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { free(handle); return CUDNN_STATUS_SUCCESS; }
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  *(cudaStream_t *)handle = stream;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  *stream = *(cudaStream_t *)handle;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- the backend ---- */

typedef struct Attribute {
  struct Attribute *next;
  cudnnBackendAttributeName_t name;
  int64_t count;
  void *elements;
} Attribute;

typedef struct { Attribute *first; } Descriptor;

static size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_CHAR: return sizeof(char);
    case CUDNN_TYPE_FRACTION: return sizeof(cudnnFraction_t);
    case CUDNN_TYPE_INT64: case CUDNN_TYPE_DOUBLE: case CUDNN_TYPE_VOID_PTR: case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4; /* enumerations, int32, float */
  }
}

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
  *made = null_object();
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t made) {
  Descriptor *descriptor = made;
  for (Attribute *next, *at = descriptor ? descriptor->first : NULL; at; at = next) {
    next = at->next;
    free(at->elements);
    free(at);
  }
  free(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
    cudnnBackendDescriptor_t pack) {
  null_count_kernel();
  return CUDNN_STATUS_SUCCESS;
}
static Attribute *find(const Descriptor *descriptor, cudnnBackendAttributeName_t name) {
  Attribute *at = descriptor->first;
  while (at && at->name != name) at = at->next;
  return at;
}

API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
  Descriptor *descriptor = made;
  Attribute *at = find(descriptor, name);
  if (!at) {
    at = null_object();
    at->name = name;
    at->next = descriptor->first;
    descriptor->first = at;
  }
  free(at->elements);
  size_t size = (size_t)count * size_of(type);
  at->count = count;
  at->elements = malloc(size + 1);
  if (!at->elements) return CUDNN_STATUS_INTERNAL_ERROR;
  if (size) memcpy(at->elements, elements, size);
  return CUDNN_STATUS_SUCCESS;
}

static int64_t answer(cudnnBackendAttributeName_t name, int64_t wanted, void *elements) {
  if (!elements) wanted = 0;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: /* one; the caller brings the descriptor */
    case CUDNN_ATTR_ENGINECFG_ENGINE: return 1;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: if (wanted > 0) *(int64_t *)elements = 0; return 1;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: if (wanted > 0) *(int32_t *)elements = 0; return 1;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      if (wanted > 0) *(int64_t *)elements = (int64_t)null_device()->cudnn_workspace;
      return 1;
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: if (wanted >= 3) memcpy(elements, "{}", 3); return 3;
    default: return 0; /* no notes, no knobs */
  }
}

API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *elements) {
  const Attribute *at = find(made, name);
  int64_t found = at ? at->count : answer(name, wanted, elements);
  if (at && elements && wanted > 0 && type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
    memcpy(elements, at->elements, (size_t)(found < wanted ? found : wanted) * size_of(type));
  if (count) *count = found;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- the older interface ---- */

#define CREATE(kind) \
  API cudnnStatus_t cudnnCreate##kind(cudnn##kind##_t *made) { *made = null_object(); return CUDNN_STATUS_SUCCESS; }
CREATE(TensorDescriptor) CREATE(FilterDescriptor) CREATE(ConvolutionDescriptor) CREATE(ActivationDescriptor)
CREATE(PoolingDescriptor) CREATE(DropoutDescriptor) CREATE(SpatialTransformerDescriptor)
CREATE(RNNDescriptor) CREATE(RNNDataDescriptor) CREATE(CTCLossDescriptor)

/* Batch norm in channels-last asks for workspace and reserve: zero, as for plans (cudnn_ops.h). */
#define BN_SIZE(name, ...) \
  API cudnnStatus_t cudnnGetBatchNormalization##name( \
      cudnnHandle_t h, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, __VA_ARGS__, size_t *size) { \
    *size = 0; return CUDNN_STATUS_SUCCESS; }
typedef const cudnnTensorDescriptor_t T;
typedef const cudnnActivationDescriptor_t A;
BN_SIZE(ForwardTrainingExWorkspaceSize, T x, T z, T y, T scale, A activation)
BN_SIZE(BackwardExWorkspaceSize, T x, T y, T dy, T dz, T dx, T scale, A activation)
BN_SIZE(TrainingExReserveSpaceSize, A activation, T x)
