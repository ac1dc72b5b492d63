/* player.py in C: the same class, the same numbers, about twenty times as fast. It is built where there is a compiler;
 * player.py takes its place where there is none. The rules are those of caching.py, which is the place to read them:
 * the functions here have its names and its order. tests/test_allocator.py compares both.
 *
 * Sizes and addresses count 512 bytes. A segment is a chain of blocks in the order of their addresses; no address is
 * used by two segments, and the lower address is that of the older one, so that blocks are ordered by size and address.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MIN_BLOCK = 512, MIB = 1 << 20 };
#define UNITS(bytes) ((int64_t)(bytes) / MIN_BLOCK)
static const int64_t SMALL_SIZE = UNITS(MIB), SMALL_SEGMENT = UNITS(2 * MIB), MIN_LARGE = UNITS(10 * MIB),
                     LARGE_SEGMENT = UNITS(20 * MIB), ROUND_LARGE = UNITS(2 * MIB), MAX_NON_SPLIT = UNITS(20 * MIB),
                     MOST = INT64_C(1) << 48;

enum State { ALLOCATED, CACHED, UNMAPPED };

typedef struct { /* a part of a segment; previous and next are -1 at its ends */
    int64_t start, size;
    Py_ssize_t previous, next;
    enum State state;
} Block;

typedef struct {
    Py_ssize_t *blocks, num, room;
} List;

typedef struct { /* cached blocks by size, then by address; unmapped ones by address */
    List cached, unmapped;
    int is_small;
} Pool;

typedef struct {
    PyObject_HEAD
    int has_capacity, expands, has_limit;
    int64_t capacity, limit, addresses, reserved, max_reserved, top; /* addresses: of an expandable segment */
    Py_ssize_t num_retries, num_requests, num_pools, num_blocks, room, spare;
    int64_t *requests, *sizes; /* of each allocation; a size is 0 before it has its block */
    Py_ssize_t *of, *pool_of;  /* the block of each allocation, and its pool */
    Pool *pools;
    Block *blocks; /* unused ones are chained by their next from spare on */
} Player;

enum { FAILED = -2, FULL = -1 }; /* in place of a block: a Python error, and no memory */

/* --- arrays */

static void *grown(void *array, Py_ssize_t *room, size_t size)
{
    Py_ssize_t wanted = *room ? 2 * *room : 64;
    void *larger = PyMem_Realloc(array, (size_t)wanted * size);
    if (larger == NULL)
        PyErr_NoMemory();
    else
        *room = wanted;
    return larger;
}

static Py_ssize_t new_block(Player *self, Block block)
{
    Py_ssize_t at = self->spare;
    if (at >= 0)
        self->spare = self->blocks[at].next;
    else {
        if (self->num_blocks == self->room) {
            Block *blocks = grown(self->blocks, &self->room, sizeof(Block));
            if (blocks == NULL)
                return FAILED;
            self->blocks = blocks;
        }
        at = self->num_blocks++;
    }
    self->blocks[at] = block;
    return at;
}

static void drop(Player *self, Py_ssize_t at)
{
    self->blocks[at].next = self->spare;
    self->spare = at;
}

static void take_out(List *list, Py_ssize_t place)
{
    list->num--;
    memmove(list->blocks + place, list->blocks + place + 1, (size_t)(list->num - place) * sizeof *list->blocks);
}

static int put_in(List *list, Py_ssize_t place, Py_ssize_t at)
{
    if (list->num == list->room) {
        Py_ssize_t *blocks = grown(list->blocks, &list->room, sizeof *blocks);
        if (blocks == NULL)
            return FAILED;
        list->blocks = blocks;
    }
    memmove(list->blocks + place + 1, list->blocks + place, (size_t)(list->num - place) * sizeof *list->blocks);
    list->blocks[place] = at;
    list->num++;
    return 0;
}

/* --- pools */

static Py_ssize_t place_of(const Player *self, const List *cached, int64_t size, int64_t start)
{
    Py_ssize_t low = 0, high = cached->num;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        const Block *block = &self->blocks[cached->blocks[middle]];
        if (block->size < size || (block->size == size && block->start < start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static Py_ssize_t place_among(const Player *self, const List *unmapped, int64_t start)
{
    Py_ssize_t place = 0;
    while (place < unmapped->num && self->blocks[unmapped->blocks[place]].start < start)
        place++;
    return place;
}

static int add(Player *self, Pool *pool, Py_ssize_t at)
{
    Block *block = &self->blocks[at];
    block->state = CACHED;
    return put_in(&pool->cached, place_of(self, &pool->cached, block->size, block->start), at);
}

static void remove_cached(Player *self, Pool *pool, Py_ssize_t at)
{
    take_out(&pool->cached, place_of(self, &pool->cached, self->blocks[at].size, self->blocks[at].start));
}

static int add_unmapped(Player *self, Pool *pool, Py_ssize_t at)
{
    self->blocks[at].state = UNMAPPED;
    return put_in(&pool->unmapped, place_among(self, &pool->unmapped, self->blocks[at].start), at);
}

static void forget(Player *self, Pool *pool, Py_ssize_t at)
{
    take_out(&pool->unmapped, place_among(self, &pool->unmapped, self->blocks[at].start));
}

static int64_t page_of(const Pool *pool)
{
    return pool->is_small ? SMALL_SEGMENT : LARGE_SEGMENT;
}

/* --- splitting and joining */

static Py_ssize_t cut(Player *self, Py_ssize_t at, int64_t size) /* it keeps its first size units */
{
    Block block = self->blocks[at];
    Block rest = {block.start + size, block.size - size, at, block.next, block.state};
    Py_ssize_t behind = new_block(self, rest);
    if (behind < 0)
        return FAILED;
    if (block.next >= 0)
        self->blocks[block.next].previous = behind;
    self->blocks[at].next = behind;
    self->blocks[at].size = size;
    return behind;
}

static void merge_neighbours(Player *self, Pool *pool, Py_ssize_t at, enum State like)
{
    Block *block = &self->blocks[at];
    Py_ssize_t before = block->previous, after = block->next;
    void (*remove)(Player *, Pool *, Py_ssize_t) = like == CACHED ? remove_cached : forget;
    if (before >= 0 && self->blocks[before].state == like) {
        remove(self, pool, before);
        block->start = self->blocks[before].start;
        block->size += self->blocks[before].size;
        block->previous = self->blocks[before].previous;
        if (block->previous >= 0)
            self->blocks[block->previous].next = at;
        drop(self, before);
    }
    if (after >= 0 && self->blocks[after].state == like) {
        remove(self, pool, after);
        block->size += self->blocks[after].size;
        block->next = self->blocks[after].next;
        if (block->next >= 0)
            self->blocks[block->next].previous = at;
        drop(self, after);
    }
}

/* --- the device below */

static int reserve(Player *self, int64_t size)
{
    if (self->has_capacity && self->reserved + size > self->capacity)
        return 0;
    self->reserved += size;
    if (self->reserved > self->max_reserved)
        self->max_reserved = self->reserved;
    return 1;
}

static Py_ssize_t new_range(Player *self, int64_t size, enum State state)
{
    if (size >= MOST - self->top) {
        PyErr_SetString(PyExc_OverflowError, "more than 128 PiB");
        return FAILED;
    }
    Py_ssize_t at = new_block(self, (Block){self->top, size, -1, -1, state});
    self->top += size;
    return at;
}

/* --- expandable segments: one address range per pool, mapped page by page */

static Py_ssize_t expandable(Player *self, Pool *pool, int64_t size)
{
    for (Py_ssize_t place = 0; place < pool->unmapped.num; place++) {
        Py_ssize_t found = pool->unmapped.blocks[place], before = self->blocks[found].previous;
        Py_ssize_t begin = before >= 0 && self->blocks[before].state != ALLOCATED ? before : found;
        int64_t room = 0;
        for (Py_ssize_t at = begin; at >= 0 && self->blocks[at].state != ALLOCATED && room < size;
             at = self->blocks[at].next)
            room += self->blocks[at].size;
        if (room >= size)
            return begin;
    }
    int64_t page = page_of(pool), most = self->addresses < size ? size : self->addresses;
    int64_t space = (most + page - 1) / page * page;
    Py_ssize_t at = new_range(self, (space + LARGE_SEGMENT - 1) / LARGE_SEGMENT * LARGE_SEGMENT, UNMAPPED);
    if (at < 0)
        return FAILED;
    self->blocks[at].size = space;
    return add_unmapped(self, pool, at) < 0 ? FAILED : at;
}

static int map(Player *self, Pool *pool, Py_ssize_t at, int64_t size) /* 1, or 0 where there is no memory */
{
    int64_t page = page_of(pool), mapped = (size + page - 1) / page * page;
    if (!reserve(self, mapped))
        return 0;
    forget(self, pool, at);
    self->blocks[at].state = ALLOCATED; /* it is in no list, for a moment */
    if (mapped < self->blocks[at].size) {
        Py_ssize_t rest = cut(self, at, mapped);
        if (rest < 0 || add_unmapped(self, pool, rest) < 0)
            return FAILED;
    }
    merge_neighbours(self, pool, at, CACHED);
    return add(self, pool, at) < 0 ? FAILED : 1;
}

static Py_ssize_t expand(Player *self, Pool *pool, int64_t size)
{
    Py_ssize_t at = expandable(self, pool, size);
    if (at < 0)
        return FAILED;
    int64_t has = self->blocks[at].size;
    if (self->blocks[at].state == UNMAPPED) {
        int done = map(self, pool, at, has < size ? has : size);
        if (done != 1)
            return done == 0 ? FULL : FAILED;
    }
    while ((has = self->blocks[at].size) < size) {
        Py_ssize_t after = self->blocks[at].next;
        int64_t room = self->blocks[after].size;
        int done = map(self, pool, after, size - has < room ? size - has : room);
        if (done != 1)
            return done == 0 ? FULL : FAILED;
        at = after;
    }
    remove_cached(self, pool, at);
    return at;
}

static int unmap(Player *self, Pool *pool, Py_ssize_t at) /* its whole pages; what is left stays cached */
{
    int64_t page = page_of(pool), begin = self->blocks[at].start, end = begin + self->blocks[at].size;
    int64_t start = (begin + page - 1) / page * page, stop = end / page * page;
    if (stop <= start)
        return 0;
    remove_cached(self, pool, at);
    self->blocks[at].state = ALLOCATED; /* it is in no list, for a moment */
    if (start > begin) {
        Py_ssize_t front = at;
        if ((at = cut(self, front, start - begin)) < 0 || add(self, pool, front) < 0)
            return FAILED;
    }
    if (stop < end) {
        Py_ssize_t back = cut(self, at, stop - start);
        if (back < 0 || add(self, pool, back) < 0)
            return FAILED;
    }
    self->reserved -= self->blocks[at].size;
    merge_neighbours(self, pool, at, UNMAPPED);
    return add_unmapped(self, pool, at);
}

/* --- giving back what is cached */

static int give_back_pages(Player *self, Pool *pool)
{
    Py_ssize_t num = pool->cached.num;
    if (num == 0)
        return 0;
    Py_ssize_t *blocks = PyMem_Malloc((size_t)num * sizeof *blocks);
    if (blocks == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    memcpy(blocks, pool->cached.blocks, (size_t)num * sizeof *blocks);
    int done = 0;
    for (Py_ssize_t place = 0; place < num && done == 0; place++)
        done = unmap(self, pool, blocks[place]);
    PyMem_Free(blocks);
    return done;
}

static void give_back_segments(Player *self, Pool *pool)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t place = 0; place < pool->cached.num; place++) {
        Py_ssize_t at = pool->cached.blocks[place];
        const Block *block = &self->blocks[at];
        if (block->previous >= 0 || block->next >= 0)
            pool->cached.blocks[kept++] = at;
        else {
            self->reserved -= block->size;
            drop(self, at);
        }
    }
    pool->cached.num = kept;
}

static int give_back(Player *self)
{
    for (Py_ssize_t i = 0; i < self->num_pools; i++) {
        if (!self->expands)
            give_back_segments(self, &self->pools[i]);
        else if (give_back_pages(self, &self->pools[i]) < 0)
            return FAILED;
    }
    return 0;
}

/* The smallest oversized block that is large enough, else the largest ones until they are together. */
static int give_back_oversized(Player *self, Pool *pool, int64_t size)
{
    if (!self->has_limit || self->expands)
        return 0;
    List *cached = &pool->cached;
    int64_t wanted = size > self->limit ? size : self->limit, found = 0;
    Py_ssize_t at = place_of(self, cached, wanted, 0), last = at + 1, first = at;
    if (at < cached->num)
        found = self->blocks[cached->blocks[at]].size;
    else
        last = at;
    while (found < wanted && first > 0 && self->blocks[cached->blocks[first - 1]].size >= self->limit)
        found += self->blocks[cached->blocks[--first]].size;
    for (Py_ssize_t place = last - 1; place >= first; place--) {
        self->reserved -= self->blocks[cached->blocks[place]].size;
        drop(self, cached->blocks[place]);
        take_out(cached, place);
    }
    return found >= wanted;
}

/* --- what is asked for */

static Py_ssize_t fresh(Player *self, Pool *pool, int64_t size) /* caching.py's _new_block */
{
    if (self->expands)
        return expand(self, pool, size);
    int64_t segment = size <= SMALL_SIZE ? SMALL_SEGMENT
                      : size < MIN_LARGE ? LARGE_SEGMENT
                                         : (size + ROUND_LARGE - 1) / ROUND_LARGE * ROUND_LARGE;
    return reserve(self, segment) ? new_range(self, segment, ALLOCATED) : FULL;
}

static Py_ssize_t retry(Player *self, Pool *pool, int64_t size)
{
    Py_ssize_t at;
    if (give_back_oversized(self, pool, size) && (at = fresh(self, pool, size)) != FULL)
        return at;
    if (give_back(self) < 0)
        return FAILED;
    self->num_retries++;
    return fresh(self, pool, size);
}

static int64_t room_of(const Player *self, Py_ssize_t at) /* the size to which it can grow */
{
    const Block *block = &self->blocks[at];
    int is_last = block->next >= 0 && self->blocks[block->next].state == UNMAPPED;
    return block->size + (is_last ? self->blocks[block->next].size : 0);
}

static Py_ssize_t chosen(Player *self, Pool *pool, int64_t size) /* a cached block; FULL where none is taken */
{
    List *cached = &pool->cached;
    Py_ssize_t place = place_of(self, cached, size, 0), at;
    if (place == cached->num)
        return FULL;
    while (self->expands && place + 1 < cached->num &&
           room_of(self, cached->blocks[place + 1]) < room_of(self, cached->blocks[place]))
        place++;
    at = cached->blocks[place];
    int64_t found = self->blocks[at].size, limit = self->limit;
    if (self->has_limit && ((size < limit && limit <= found) || (size >= limit && found >= size + MAX_NON_SPLIT)))
        return FULL;
    take_out(cached, place);
    return at;
}

static Py_ssize_t allocate(Player *self, Py_ssize_t request)
{
    int64_t size = self->requests[request];
    Pool *pool = &self->pools[self->pool_of[request]];
    Py_ssize_t at = chosen(self, pool, size);
    if (at == FULL)
        at = fresh(self, pool, size);
    if (at == FULL)
        at = retry(self, pool, size);
    if (at < 0)
        return at;
    self->blocks[at].state = ALLOCATED;
    int64_t largest_rest = pool->is_small || self->expands ? 0 : SMALL_SIZE;
    int is_oversized = self->has_limit && size >= self->limit && !self->expands && size > SMALL_SIZE;
    if (self->blocks[at].size - size > largest_rest && !is_oversized) {
        Py_ssize_t rest = cut(self, at, size);
        if (rest < 0 || add(self, pool, rest) < 0)
            return FAILED;
    }
    self->of[request] = at;
    self->sizes[request] = self->blocks[at].size;
    return at;
}

static int release(Player *self, Py_ssize_t request)
{
    Pool *pool = &self->pools[self->pool_of[request]];
    merge_neighbours(self, pool, self->of[request], CACHED);
    return add(self, pool, self->of[request]);
}

/* --- the Python class */

static PyObject *play(Player *self, PyObject *events)
{
    PyObject *known = PySequence_Tuple(events);
    if (known == NULL)
        return NULL;
    Py_ssize_t num = PyTuple_Size(known), place = 0;
    for (; place < num; place++) {
        Py_ssize_t event = PyLong_AsSsize_t(PyTuple_GetItem(known, place));
        Py_ssize_t request = event < 0 ? ~event : event;
        if (request >= self->num_requests && !PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "an event of no request");
        if (PyErr_Occurred())
            goto failed;
        if (event < 0) {
            if (self->of[request] >= 0 && release(self, request) < 0)
                goto failed;
            self->of[request] = -1;
        } else if (self->requests[event]) {
            Py_ssize_t at = allocate(self, event);
            if (at == FAILED)
                goto failed;
            if (at == FULL)
                break;
        }
    }
    Py_DECREF(known);
    if (place < num)
        return PyLong_FromSsize_t(place);
    Py_RETURN_NONE;
failed:
    Py_DECREF(known);
    return NULL;
}

static PyObject *release_cached(Player *self, PyObject *unused)
{
    (void)unused;
    if (give_back(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *get_sizes(Player *self, void *unused)
{
    (void)unused;
    PyObject *sizes = PyList_New(self->num_requests);
    for (Py_ssize_t i = 0; sizes != NULL && i < self->num_requests; i++) {
        PyObject *size = PyLong_FromLongLong(self->sizes[i] * MIN_BLOCK);
        if (size == NULL || PyList_SetItem(sizes, i, size) < 0)
            Py_CLEAR(sizes);
    }
    return sizes;
}

static PyObject *get_reserved(Player *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(self->reserved * MIN_BLOCK);
}

static PyObject *get_max_reserved(Player *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(self->max_reserved * MIN_BLOCK);
}

static PyObject *get_num_retries(Player *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(self->num_retries);
}

static int set_requests(Player *self, PyObject *requests)
{
    Py_ssize_t num = self->num_requests = PyTuple_Size(requests);
    size_t items = num ? (size_t)num : 1;
    self->requests = PyMem_Calloc(items, sizeof *self->requests);
    self->sizes = PyMem_Calloc(items, sizeof *self->sizes);
    self->of = PyMem_Calloc(items, sizeof *self->of);
    self->pool_of = PyMem_Calloc(items, sizeof *self->pool_of);
    if (!self->requests || !self->sizes || !self->of || !self->pool_of) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < num; i++) {
        int64_t size = PyLong_AsLongLong(PyTuple_GetItem(requests, i));
        if (size == -1 && PyErr_Occurred())
            return -1;
        self->requests[i] = size / MIN_BLOCK + (size % MIN_BLOCK != 0);
        self->pool_of[i] = self->requests[i] > SMALL_SIZE;
        self->of[i] = -1;
    }
    return 0;
}

static int set_pools(Player *self, PyObject *side) /* of the main stream, then of each other one in side */
{
    int done = -1;
    PyObject *numbers = PyDict_New(), *items = PyMapping_Items(side);
    if (numbers == NULL || items == NULL)
        goto end;
    for (Py_ssize_t i = 0; i < PyList_Size(items); i++) {
        PyObject *item = PyList_GetItem(items, i), *stream = PyTuple_GetItem(item, 1);
        Py_ssize_t request = PyLong_AsSsize_t(PyTuple_GetItem(item, 0));
        PyObject *known = PyDict_GetItemWithError(numbers, stream);
        Py_ssize_t number = known ? PyLong_AsSsize_t(known) : PyDict_Size(numbers) + 1;
        if (!known) {
            PyObject *made = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(number);
            if (made == NULL || PyDict_SetItem(numbers, stream, made) < 0) {
                Py_XDECREF(made);
                goto end;
            }
            Py_DECREF(made);
        }
        if (request < 0 || request >= self->num_requests) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_IndexError, "a stream of no request");
            goto end;
        }
        self->pool_of[request] += 2 * number;
    }
    self->num_pools = 2 * (PyDict_Size(numbers) + 1);
    self->pools = PyMem_Calloc((size_t)self->num_pools, sizeof *self->pools);
    if (self->pools == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t i = 0; i < self->num_pools; i += 2)
        self->pools[i].is_small = 1;
    done = 0;
end:
    Py_XDECREF(numbers);
    Py_XDECREF(items);
    return done;
}

static void clear(Player *self)
{
    for (Py_ssize_t i = 0; self->pools && i < self->num_pools; i++) {
        PyMem_Free(self->pools[i].cached.blocks);
        PyMem_Free(self->pools[i].unmapped.blocks);
    }
    PyMem_Free(self->requests);
    PyMem_Free(self->sizes);
    PyMem_Free(self->of);
    PyMem_Free(self->pool_of);
    PyMem_Free(self->pools);
    PyMem_Free(self->blocks);
}

static int64_t units_of(PyObject *bytes) /* rounded down; of None, 0 */
{
    int64_t size = bytes == Py_None ? 0 : PyLong_AsLongLong(bytes);
    return size < 0 ? -1 : size / MIN_BLOCK;
}

static int set_options(Player *self, PyObject *capacity, PyObject *limit, long long device_bytes)
{
    self->has_capacity = capacity != Py_None;
    self->capacity = units_of(capacity);
    self->has_limit = limit != Py_None;
    self->limit = units_of(limit);
    self->addresses = (device_bytes + device_bytes / 8 + MIN_BLOCK - 1) / MIN_BLOCK;
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {
        "requests", "side", "expandable_segments", "max_split_size", "device_bytes", "capacity", NULL};
    PyObject *requests, *side, *limit, *capacity;
    long long device_bytes;
    int expands;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "OO$pOLO", names, &requests, &side, &expands, &limit, &device_bytes, &capacity))
        return NULL;
    Player *self = PyObject_New(Player, type);
    if (self == NULL)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->spare = -1;
    self->expands = expands;
    PyObject *known = PySequence_Tuple(requests);
    int done = known == NULL ? -1 : set_options(self, capacity, limit, device_bytes);
    if (done == 0)
        done = set_requests(self, known);
    if (done == 0)
        done = set_pools(self, side);
    Py_XDECREF(known);
    if (done == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void dealloc(Player *self)
{
    PyTypeObject *type = Py_TYPE(self);
    clear(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"play", (PyCFunction)play, METH_O, "Allocations and frees in order; the place of the one that ran out of memory."},
    {"release_cached", (PyCFunction)release_cached, METH_NOARGS, "``torch.cuda.empty_cache()``."},
    {NULL},
};
static PyGetSetDef properties[] = {
    {"sizes", (getter)get_sizes, NULL, "The bytes of the block that each allocation got.", NULL},
    {"reserved", (getter)get_reserved, NULL, "Bytes of all segments.", NULL},
    {"max_reserved", (getter)get_max_reserved, NULL, "The most that was ever reserved.", NULL},
    {"num_retries", (getter)get_num_retries, NULL, "How often the cache was given back for want of memory.", NULL},
    {NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Replays the allocations of these ``requests``; ``side`` are the streams of others than the main one's."},
    {Py_tp_new, make},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};
static PyType_Spec spec = {"vitmem.allocator._player.Player", sizeof(Player), 0, Py_TPFLAGS_DEFAULT, slots};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL || PyModule_AddObject(module, "Player", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_player", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__player(void)
{
    return PyModuleDef_Init(&definition);
}
