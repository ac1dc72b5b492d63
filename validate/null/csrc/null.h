/* The device that is not there: what the stand-ins of NVIDIA's libraries share (core.c). */
#ifndef VITMEM_NULL_H
#define VITMEM_NULL_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define NULL_ERROR "not done by the null device"
#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)

/* The granularity of device memory on every GPU since Pascal (cuMemGetAllocationGranularity). */
#define PAGE (2 * MIB)

typedef struct {
  char name[256];
  int major, minor;      /* compute capability */
  int binary;            /* of the kernels that torch brings for it: 86 on 8.9 */
  int num_sms, threads_per_sm, blocks_per_sm;
  size_t shared_per_sm, shared_per_block, l2;
  size_t memory;         /* what the device has */
  size_t context;        /* what of it the CUDA context takes */
  size_t cudnn_workspace; /* what each cuDNN plan asks for */
} Device;

/* VITMEM_NULL_* of the environment, read once. */
const Device *null_device(void);

/* Remembers a cudaError_t for cudaGetLastError and returns it (cudart_runtime.c). */
int null_error(int error);

/* Memory is counted, never given: 0 where the device is full. */
int null_take_memory(size_t size);
void null_give_memory(size_t size);
size_t null_memory_used(void);

/* Addresses without memory behind them: reading one on the host is a segmentation fault, as it is with a GPU. */
void *null_take_addresses(size_t size);
size_t null_give_addresses(void *start); /* their size, 0 where none begin there */
size_t null_addresses_at(const void *inside, void **start);
int null_is_device(const void *p);

/* Page-locked host memory. */
void null_pin(void *start, size_t size);
size_t null_unpin(void *start);
int null_is_pinned(const void *p);

/* Host to host is copied. Device to host reads what was copied there if no kernel was launched since, else zeros. */
void null_copy(void *to, const void *from, size_t size);
void null_fill(void *to, int value, size_t size);

/* A new opaque handle for a stream, an event, a library: nobody looks behind it. */
void *null_handle(void);
/* A handle with zeroed memory of its own, for the libraries that keep settings in theirs; freed by free(). */
void *null_object(void);

/* What happened so far. */
typedef struct {
  uint64_t memory_used, memory_peak, num_mallocs, num_frees, num_refused, num_kernels, num_reads;
} Counters;
void null_count_kernel(void);
void null_counters(Counters *counters);

/* A generated entry point was called: it answered success and wrote nothing. The names, separated by spaces. */
void null_unanswered(const char *name);
const char *null_unanswered_names(void);

#endif
