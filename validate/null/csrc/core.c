/* Accounting: memory, addresses, pinned ranges, counters. Knows nothing of CUDA. */
#define _GNU_SOURCE
#include "null.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Counters counters;

#define LOCKED(expression) \
  ({ pthread_mutex_lock(&lock); __auto_type result = (expression); pthread_mutex_unlock(&lock); result; })

/* ---- the device ---- */

static Device device;
static pthread_once_t device_once = PTHREAD_ONCE_INIT;

static unsigned long long setting(const char *name, unsigned long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* The defaults are an A100: a stand-in that was loaded by hand still has a device. */
static void read_device(void) {
  const char *name = getenv("VITMEM_NULL_NAME");
  int capability = (int)setting("VITMEM_NULL_CAPABILITY", 80);
  snprintf(device.name, sizeof device.name, "%s", name ? name : "null device");
  device.major = capability / 10;
  device.minor = capability % 10;
  device.binary = (int)setting("VITMEM_NULL_BINARY", 80);
  device.num_sms = (int)setting("VITMEM_NULL_SMS", 108);
  device.threads_per_sm = (int)setting("VITMEM_NULL_THREADS_PER_SM", 2048);
  device.blocks_per_sm = (int)setting("VITMEM_NULL_BLOCKS_PER_SM", 32);
  device.shared_per_sm = setting("VITMEM_NULL_SHARED_PER_SM", 164 * KIB);
  device.shared_per_block = setting("VITMEM_NULL_SHARED_PER_BLOCK", 163 * KIB);
  device.l2 = setting("VITMEM_NULL_L2", 40 * MIB);
  device.memory = setting("VITMEM_NULL_MEMORY", 40 * KIB * MIB);
  device.context = setting("VITMEM_NULL_CONTEXT", 0);
  device.cudnn_workspace = setting("VITMEM_NULL_CUDNN_WORKSPACE", 0);
}
API const Device *null_device(void) { pthread_once(&device_once, read_device); return &device; }

/* ---- memory ---- */

API int null_take_memory(size_t size) {
  const Device *gpu = null_device();
  pthread_mutex_lock(&lock);
  int fits = counters.memory_used + size + gpu->context <= gpu->memory;
  if (fits) {
    counters.memory_used += size;
    counters.num_mallocs++;
    if (counters.memory_used > counters.memory_peak) counters.memory_peak = counters.memory_used;
  } else {
    counters.num_refused++;
  }
  pthread_mutex_unlock(&lock);
  return fits;
}

API void null_give_memory(size_t size) {
  pthread_mutex_lock(&lock);
  counters.memory_used -= size;
  counters.num_frees++;
  pthread_mutex_unlock(&lock);
}
API size_t null_memory_used(void) { return LOCKED(counters.memory_used); }

/* ---- ranges, sorted by their start ---- */

typedef struct { char *start; size_t size; } Range;
typedef struct { Range *items; size_t count, room; } Ranges;

/* How many ranges start at or before p. */
static size_t starting_by(const Ranges *ranges, const char *p) {
  size_t low = 0, high = ranges->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges->items[middle].start <= p) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void insert(Ranges *ranges, char *start, size_t size) {
  if (ranges->count == ranges->room) {
    ranges->room = ranges->room ? 2 * ranges->room : 256;
    ranges->items = realloc(ranges->items, ranges->room * sizeof(Range));
    if (!ranges->items) abort();
  }
  size_t place = starting_by(ranges, start);
  memmove(ranges->items + place + 1, ranges->items + place, (ranges->count - place) * sizeof(Range));
  ranges->items[place] = (Range){start, size};
  ranges->count++;
}

static size_t take_out(Ranges *ranges, const char *start) {
  size_t place = starting_by(ranges, start);
  if (!place || ranges->items[place - 1].start != start) return 0;
  size_t size = ranges->items[place - 1].size;
  memmove(ranges->items + place - 1, ranges->items + place, (ranges->count - place) * sizeof(Range));
  ranges->count--;
  return size;
}

static const Range *around(const Ranges *ranges, const char *p) {
  size_t place = starting_by(ranges, p);
  if (!place) return NULL;
  const Range *range = ranges->items + place - 1;
  return p < range->start + range->size ? range : NULL;
}

/* ---- device addresses ---- */

static const size_t SPACE = (size_t)1 << 42; /* expandable segments reserve 9/8 of the device each */
static char *space;
static Ranges segments;

static int have_space(void) {
  if (space) return 1;
  char *base = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    perror("vitmem null device: cannot reserve addresses");
    return 0;
  }
  space = (char *)(((uintptr_t)base + PAGE - 1) & ~(PAGE - 1));
  return 1;
}

/* First fit, lowest address: PyTorch's allocator prefers the lower of two equal blocks. */
API void *null_take_addresses(size_t size) {
  size = (size + PAGE - 1) & ~(PAGE - 1);
  pthread_mutex_lock(&lock);
  char *start = have_space() ? space + PAGE : NULL;
  for (size_t i = 0; start && i < segments.count; i++) {
    if ((size_t)(segments.items[i].start - start) >= size) break;
    start = segments.items[i].start + segments.items[i].size;
  }
  if (start && (size > SPACE || start + size > space + SPACE - 2 * PAGE)) start = NULL;
  if (start) insert(&segments, start, size);
  pthread_mutex_unlock(&lock);
  return start;
}
API size_t null_give_addresses(void *start) { return LOCKED(take_out(&segments, start)); }

API size_t null_addresses_at(const void *inside, void **start) {
  const Range found = LOCKED(around(&segments, inside) ? *around(&segments, inside) : (Range){0});
  *start = found.start;
  return found.size;
}

API int null_is_device(const void *p) {
  const char *base = space;
  return base && (const char *)p >= base && (const char *)p < base + SPACE - PAGE;
}

/* ---- pinned host memory ---- */

static Ranges pinned;

API void null_pin(void *start, size_t size) {
  pthread_mutex_lock(&lock);
  insert(&pinned, start, size ? size : 1);
  pthread_mutex_unlock(&lock);
}
API size_t null_unpin(void *start) { return LOCKED(take_out(&pinned, start)); }
API int null_is_pinned(const void *p) { return LOCKED(around(&pinned, p) != NULL); }

/* ---- contents: of small copies, until a kernel may have written over them ---- */

enum { KEPT_SIZE = 4096, NUM_KEPT = 64 };
typedef struct { const char *at; size_t size; char bytes[KEPT_SIZE]; } Kept;
static Kept kept[NUM_KEPT];
static size_t num_kept;

static const char *known(const char *from, size_t size) {
  for (size_t i = num_kept; i-- > 0;)
    if (kept[i].at <= from && from + size <= kept[i].at + kept[i].size) return kept[i].bytes + (from - kept[i].at);
  return NULL;
}

static void keep(const char *at, const char *bytes, size_t size) {
  if (!bytes || size > KEPT_SIZE || num_kept == NUM_KEPT) num_kept = 0;
  if (!bytes || size > KEPT_SIZE) return;
  kept[num_kept].at = at;
  kept[num_kept].size = size;
  memmove(kept[num_kept++].bytes, bytes, size);
}

API void null_copy(void *to, const void *from, size_t size) {
  if (!size) return;
  pthread_mutex_lock(&lock);
  const char *bytes = null_is_device(from) ? known(from, size) : from;
  if (null_is_device(to)) keep(to, bytes, size);
  else if (bytes) memmove(to, bytes, size);
  else memset(to, 0, size);
  if (!bytes && !null_is_device(to)) counters.num_reads++;
  pthread_mutex_unlock(&lock);
}

API void null_fill(void *to, int value, size_t size) {
  if (!size) return;
  if (null_is_device(to)) num_kept = 0;
  else memset(to, value, size);
}

/* ---- handles and counters ---- */
API void *null_handle(void) { static uintptr_t last = 0x10000; return (void *)__sync_add_and_fetch(&last, 64); }

API void *null_object(void) {
  void *object = calloc(1, 1024);
  if (!object) abort();
  return object;
}
API void null_count_kernel(void) { num_kept = 0; __sync_add_and_fetch(&counters.num_kernels, 1); }
API void null_counters(Counters *copy) { pthread_mutex_lock(&lock); *copy = counters; pthread_mutex_unlock(&lock); }

static char unanswered[1 << 14];

API void null_unanswered(const char *name) {
  pthread_mutex_lock(&lock);
  size_t length = strlen(unanswered);
  if (length + strlen(name) + 2 < sizeof unanswered) sprintf(unanswered + length, "%s ", name);
  pthread_mutex_unlock(&lock);
}
API const char *null_unanswered_names(void) { return unanswered; }
