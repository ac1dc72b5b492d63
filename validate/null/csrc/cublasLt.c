/* libcublasLt: descriptors, and one algorithm for every product, without a workspace of its own (cublasLt.h). */
#include "null.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

API size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
API cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { *handle = null_object(); return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { free(handle); return CUBLAS_STATUS_SUCCESS; }

API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute, cudaDataType_t scale) {
  *made = null_object();
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) { free(made); return CUBLAS_STATUS_SUCCESS; }

API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
  *made = null_object();
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) { free(made); return CUBLAS_STATUS_SUCCESS; }

API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
  *made = null_object();
  return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) { free(made); return CUBLAS_STATUS_SUCCESS; }

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                  cublasLtMatmulPreference_t preference, int wanted,
                                                  cublasLtMatmulHeuristicResult_t results[], int *found) {
  *found = wanted > 0;
  if (wanted > 0) memset(results, 0, sizeof *results);
  if (wanted > 0) results->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}
