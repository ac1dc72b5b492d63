/* What the parts of the runtime share. */
#ifndef VITMEM_NULL_CUDART_H
#define VITMEM_NULL_CUDART_H

#include <cuda_runtime_api.h>

/* Remembers an error for cudaGetLastError and returns it. */
cudaError_t null_error(cudaError_t error);

#endif
