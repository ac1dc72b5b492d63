/* libcublas: handles that keep their modes (cublas_api.h). Matrix products are generated: they succeed. */
#include "null.h"

#include <cublas_v2.h>
#include <stdlib.h>

typedef struct { cublasMath_t math; cublasPointerMode_t pointer; } Handle;

API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { *handle = null_object(); return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { free(handle); return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) { *version = CUBLAS_VERSION; return CUBLAS_STATUS_SUCCESS; }
API size_t cublasGetCudartVersion(void) { return CUBLAS_VERSION; }

API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  ((Handle *)handle)->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
  *mode = ((Handle *)handle)->math;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  ((Handle *)handle)->pointer = mode;
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
  *mode = ((Handle *)handle)->pointer;
  return CUBLAS_STATUS_SUCCESS;
}
