/* libcublas: handles that keep their mode (cublas_api.h). Matrix products are generated: they succeed. */
#include "null.h"

#include <cublas_v2.h>
#include <stdlib.h>

API cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { *handle = null_object(); return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { free(handle); return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  *(cublasMath_t *)handle = mode;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
  *mode = *(cublasMath_t *)handle;
  return CUBLAS_STATUS_SUCCESS;
}
