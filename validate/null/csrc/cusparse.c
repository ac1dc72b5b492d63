/* libcusparse: a handle (cusparse.h). */
#include "null.h"

#include <cusparse.h>
#include <stdlib.h>

API cusparseStatus_t cusparseCreate(cusparseHandle_t *made) { *made = null_object(); return CUSPARSE_STATUS_SUCCESS; }
API cusparseStatus_t cusparseDestroy(cusparseHandle_t handle) { free(handle); return CUSPARSE_STATUS_SUCCESS; }
API const char *cusparseGetErrorString(cusparseStatus_t status) { return NULL_ERROR; }
