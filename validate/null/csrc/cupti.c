/* libcupti: versions for torch's profiler, which sees nothing (cupti_version.h, cupti_result.h). */
#include "null.h"

#include <cupti_result.h>
#include <cupti_version.h>

API CUptiResult cuptiGetVersion(uint32_t *version) { *version = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
API CUptiResult cuptiGetResultString(CUptiResult result, const char **text) { *text = "not done by the null device"; return CUPTI_SUCCESS; }
