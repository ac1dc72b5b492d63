/* libcupti: versions for torch's profiler, which sees nothing (cupti_version.h, cupti_result.h). */
#include "null.h"

#include <cupti_result.h>
#include <cupti_version.h>

API CUptiResult cuptiGetVersion(uint32_t *version) { *version = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
API CUptiResult cuptiGetResultString(CUptiResult error, const char **text) { *text = NULL_ERROR; return CUPTI_SUCCESS; }
