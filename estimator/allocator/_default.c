/* default.py in C: the same class, the same numbers, about twenty times as fast. It is built where there is a compiler;
 * default.py takes its place where there is none, and is the place to read the rules.
 *
 * Sizes and addresses count 512 bytes. A segment is a chain of blocks in the order of their addresses; no address is
 * used by two segments, and the lower address is that of the older one. tests/test_allocator.py compares both. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MIN_BLOCK = 512, MIB = 1 << 20 };
#define UNITS(bytes) ((int64_t)(bytes) / MIN_BLOCK)
static const int64_t SMALL_SIZE = UNITS(MIB), SMALL_SEGMENT = UNITS(2 * MIB), MIN_LARGE = UNITS(10 * MIB),
                     LARGE_SEGMENT = UNITS(20 * MIB), ROUND_LARGE = UNITS(2 * MIB), MOST = INT64_C(1) << 48;

typedef struct { /* a part of a segment, handed out or cached; previous and next are -1 at its ends */
    int64_t start, size;
    Py_ssize_t previous, next;
    int is_free;
} Block;

typedef struct { /* cached blocks by size, then by address */
    Py_ssize_t *blocks, num, room;
} Pool;

typedef struct {
    PyObject_HEAD
    int has_capacity;
    int64_t capacity, reserved, max_reserved, top;
    Py_ssize_t num_retries, num_requests, num_pools, num_blocks, room, spare;
    int64_t *requests, *sizes; /* of each allocation; a size is 0 before it has its block */
    Py_ssize_t *of, *pool_of;  /* the block of each allocation, and its pool */
    Pool *pools;
    Block *blocks; /* unused ones are chained by their next from spare on */
} Allocator;

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

static Py_ssize_t new_block(Allocator *self, int64_t start, int64_t size, Py_ssize_t previous, Py_ssize_t next)
{
    Py_ssize_t at = self->spare;
    if (at >= 0)
        self->spare = self->blocks[at].next;
    else {
        if (self->num_blocks == self->room) {
            Block *blocks = grown(self->blocks, &self->room, sizeof(Block));
            if (blocks == NULL)
                return -1;
            self->blocks = blocks;
        }
        at = self->num_blocks++;
    }
    self->blocks[at] = (Block){start, size, previous, next, 0};
    return at;
}

static void forget(Allocator *self, Py_ssize_t at)
{
    self->blocks[at].next = self->spare;
    self->spare = at;
}

/* --- pools */

static Py_ssize_t place_of(const Allocator *self, const Pool *pool, int64_t size, int64_t start)
{
    Py_ssize_t low = 0, high = pool->num;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        const Block *block = &self->blocks[pool->blocks[middle]];
        if (block->size < size || (block->size == size && block->start < start))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void take_out(Pool *pool, Py_ssize_t place)
{
    pool->num--;
    memmove(pool->blocks + place, pool->blocks + place + 1, (size_t)(pool->num - place) * sizeof *pool->blocks);
}

static int put_in(Allocator *self, Pool *pool, Py_ssize_t at)
{
    Block *block = &self->blocks[at];
    Py_ssize_t place = place_of(self, pool, block->size, block->start);
    if (pool->num == pool->room) {
        Py_ssize_t *blocks = grown(pool->blocks, &pool->room, sizeof *blocks);
        if (blocks == NULL)
            return -1;
        pool->blocks = blocks;
    }
    memmove(pool->blocks + place + 1, pool->blocks + place, (size_t)(pool->num - place) * sizeof *pool->blocks);
    pool->blocks[place] = at;
    pool->num++;
    block->is_free = 1;
    return 0;
}

static void remove_free(Allocator *self, Pool *pool, Py_ssize_t at)
{
    take_out(pool, place_of(self, pool, self->blocks[at].size, self->blocks[at].start));
}

static void give_back(Allocator *self) /* whole cached segments, to the driver */
{
    for (Py_ssize_t i = 0; i < self->num_pools; i++) {
        Pool *pool = &self->pools[i];
        Py_ssize_t kept = 0;
        for (Py_ssize_t place = 0; place < pool->num; place++) {
            Py_ssize_t at = pool->blocks[place];
            const Block *block = &self->blocks[at];
            if (block->previous >= 0 || block->next >= 0)
                pool->blocks[kept++] = at;
            else {
                self->reserved -= block->size;
                forget(self, at);
            }
        }
        pool->num = kept;
    }
}

/* --- what is asked for */

enum { FAILED = -2, FULL = -1 };

static Py_ssize_t new_segment(Allocator *self, int64_t size) /* after a retry without what is cached, if need be */
{
    int64_t segment = size <= SMALL_SIZE ? SMALL_SEGMENT
                      : size < MIN_LARGE ? LARGE_SEGMENT
                                         : (size + ROUND_LARGE - 1) / ROUND_LARGE * ROUND_LARGE;
    if (self->has_capacity && self->reserved + segment > self->capacity) {
        give_back(self);
        self->num_retries++;
        if (self->reserved + segment > self->capacity)
            return FULL;
    }
    if (self->top + segment >= MOST) {
        PyErr_SetString(PyExc_OverflowError, "more than 128 PiB");
        return FAILED;
    }
    Py_ssize_t at = new_block(self, self->top, segment, -1, -1);
    if (at < 0)
        return FAILED;
    self->top += segment;
    self->reserved += segment;
    if (self->reserved > self->max_reserved)
        self->max_reserved = self->reserved;
    return at;
}

static Py_ssize_t allocate(Allocator *self, Py_ssize_t request)
{
    int64_t size = self->requests[request];
    Pool *pool = &self->pools[self->pool_of[request]];
    Py_ssize_t place = place_of(self, pool, size, 0), at;
    if (place < pool->num) {
        at = pool->blocks[place];
        take_out(pool, place);
    } else if ((at = new_segment(self, size)) < 0)
        return at;
    self->blocks[at].is_free = 0;
    int64_t rest = self->blocks[at].size - size;
    if (rest > SMALL_SIZE || (rest && size <= SMALL_SIZE)) {
        Py_ssize_t next = self->blocks[at].next;
        Py_ssize_t behind = new_block(self, self->blocks[at].start + size, rest, at, next);
        if (behind < 0)
            return FAILED;
        if (next >= 0)
            self->blocks[next].previous = behind;
        self->blocks[at].next = behind;
        self->blocks[at].size = size;
        if (put_in(self, pool, behind) < 0)
            return FAILED;
    }
    self->of[request] = at;
    self->sizes[request] = self->blocks[at].size;
    return at;
}

static int release(Allocator *self, Py_ssize_t request)
{
    Pool *pool = &self->pools[self->pool_of[request]];
    Py_ssize_t at = self->of[request];
    Block *block = &self->blocks[at];
    Py_ssize_t before = block->previous, behind = block->next;
    if (before >= 0 && self->blocks[before].is_free) {
        remove_free(self, pool, before);
        block->start = self->blocks[before].start;
        block->size += self->blocks[before].size;
        block->previous = self->blocks[before].previous;
        if (block->previous >= 0)
            self->blocks[block->previous].next = at;
        forget(self, before);
    }
    if (behind >= 0 && self->blocks[behind].is_free) {
        remove_free(self, pool, behind);
        block->size += self->blocks[behind].size;
        block->next = self->blocks[behind].next;
        if (block->next >= 0)
            self->blocks[block->next].previous = at;
        forget(self, behind);
    }
    return put_in(self, pool, at);
}

/* --- the Python class */

static PyObject *play(Allocator *self, PyObject *events)
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

static PyObject *release_cached(Allocator *self, PyObject *unused)
{
    (void)unused;
    give_back(self);
    Py_RETURN_NONE;
}

static PyObject *get_sizes(Allocator *self, void *unused)
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

static PyObject *get_reserved(Allocator *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(self->reserved * MIN_BLOCK);
}

static PyObject *get_max_reserved(Allocator *self, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(self->max_reserved * MIN_BLOCK);
}

static PyObject *get_num_retries(Allocator *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(self->num_retries);
}

static int set_requests(Allocator *self, PyObject *requests)
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

static int set_pools(Allocator *self, PyObject *side) /* of the main stream, then of each other one in side */
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
    if (self->pools == NULL)
        PyErr_NoMemory();
    else
        done = 0;
end:
    Py_XDECREF(numbers);
    Py_XDECREF(items);
    return done;
}

static void clear(Allocator *self)
{
    for (Py_ssize_t i = 0; self->pools && i < self->num_pools; i++)
        PyMem_Free(self->pools[i].blocks);
    PyMem_Free(self->requests);
    PyMem_Free(self->sizes);
    PyMem_Free(self->of);
    PyMem_Free(self->pool_of);
    PyMem_Free(self->pools);
    PyMem_Free(self->blocks);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"requests", "side", "capacity", NULL};
    PyObject *requests, *side, *capacity = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O", names, &requests, &side, &capacity))
        return NULL;
    Allocator *self = PyObject_New(Allocator, type);
    if (self == NULL)
        return NULL;
    memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
    self->spare = -1;
    self->has_capacity = capacity != Py_None;
    PyObject *known = PySequence_Tuple(requests);
    if (self->has_capacity) {
        int64_t bytes = PyLong_AsLongLong(capacity);
        self->capacity = bytes < 0 ? -1 : bytes / MIN_BLOCK;
    }
    int failed = known == NULL || PyErr_Occurred() || set_requests(self, known) < 0 || set_pools(self, side) < 0;
    Py_XDECREF(known);
    if (failed) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void dealloc(Allocator *self)
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
static PyType_Spec spec = {"vitmem.allocator._default.DefaultAllocator", sizeof(Allocator), 0, Py_TPFLAGS_DEFAULT, slots};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL || PyModule_AddObject(module, "DefaultAllocator", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_default", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__default(void)
{
    return PyModuleDef_Init(&definition);
}
