/* totals.py in C: the same functions, the same numbers. It is built where there is a compiler; totals.py takes its place
 * where there is none, and is the place to read what they do. tests/test_timeline.py compares both.
 *
 * Totals that 63 bits do not hold raise OverflowError. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

static const int64_t MOST = INT64_C(1) << 61; /* of a size and of a total: their sum fits */

/* The event at a place, and in *number the allocation that is born or dies; -1 with an exception set on an error. */
static int event_at(PyObject *events, Py_ssize_t place, Py_ssize_t *number)
{
    PyObject *item = PyTuple_GetItem(events, place);
    Py_ssize_t event = item == NULL ? -1 : PyLong_AsSsize_t(item);
    if (event == -1 && PyErr_Occurred())
        return -1;
    *number = event < 0 ? ~event : event;
    return event >= 0;
}

/* --- living */

static Py_ssize_t largest_number(PyObject *events, Py_ssize_t start, Py_ssize_t stop)
{
    Py_ssize_t largest = 0, number;
    for (Py_ssize_t place = start; place < stop; place++) {
        if (event_at(events, place, &number) < 0)
            return -1;
        if (number > largest)
            largest = number;
    }
    return largest;
}

static int append_alive(PyObject *found, PyObject *number, const char *dead, Py_ssize_t largest)
{
    Py_ssize_t i = PyLong_AsSsize_t(number);
    if (i == -1 && PyErr_Occurred())
        return -1;
    return i <= largest && dead[i] ? 0 : PyList_Append(found, number);
}

static PyObject *living(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *events, *before;
    Py_ssize_t start, stop, number;
    if (!PyArg_ParseTuple(args, "O!nnO!", &PyTuple_Type, &events, &start, &stop, &PyList_Type, &before))
        return NULL;
    Py_ssize_t largest = largest_number(events, start, stop);
    char *dead = largest < 0 ? NULL : PyMem_Calloc((size_t)largest + 1, 1);
    PyObject *found = dead == NULL ? NULL : PyList_New(0);
    if (found == NULL) {
        PyMem_Free(dead);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    int failed = 0;
    for (Py_ssize_t place = start; place < stop; place++)
        if (!event_at(events, place, &number))
            dead[number] = 1;
    for (Py_ssize_t i = 0; !failed && i < PyList_Size(before); i++)
        failed = append_alive(found, PyList_GetItem(before, i), dead, largest) < 0;
    for (Py_ssize_t place = start; !failed && place < stop; place++)
        if (event_at(events, place, &number))
            failed = append_alive(found, PyTuple_GetItem(events, place), dead, largest) < 0;
    PyMem_Free(dead);
    if (failed)
        Py_CLEAR(found);
    return found;
}

/* --- peaks */

typedef struct {
    PyObject *sizes, *kinds, *without, *last_kind; /* the last kind that was asked for, and whether it counts */
    int64_t unit;
    int last_counts;
} Sizes;

static int64_t size_of(Sizes *of, Py_ssize_t number) /* -1 with an exception set on an error */
{
    PyObject *kind = PyTuple_GetItem(of->kinds, number), *item = PyTuple_GetItem(of->sizes, number);
    if (kind == NULL || item == NULL)
        return -1;
    if (kind != of->last_kind) {
        int left_out = PySequence_Contains(of->without, kind);
        if (left_out < 0)
            return -1;
        of->last_kind = kind;
        of->last_counts = !left_out;
    }
    if (!of->last_counts)
        return 0;
    int64_t size = PyLong_AsLongLong(item);
    if (size == -1 && PyErr_Occurred())
        return -1;
    if (size < 0 || size >= MOST) {
        PyErr_SetString(PyExc_OverflowError, "a size of 2 EiB");
        return -1;
    }
    return (size + of->unit - 1) / of->unit * of->unit;
}

static int add_alive(Sizes *of, PyObject *alive, int64_t *total)
{
    for (Py_ssize_t i = 0; i < PyList_Size(alive); i++) {
        Py_ssize_t number = PyLong_AsSsize_t(PyList_GetItem(alive, i));
        int64_t size = number == -1 && PyErr_Occurred() ? -1 : size_of(of, number);
        if (size < 0)
            return -1;
        if ((*total += size) >= MOST) {
            PyErr_SetString(PyExc_OverflowError, "a total of 2 EiB");
            return -1;
        }
    }
    return 0;
}

/* From *place to stop events: the largest total, and after how many events it is there first. */
static int sweep(Sizes *of, PyObject *events, Py_ssize_t *place, Py_ssize_t stop, int64_t *total, int64_t *highest,
                 Py_ssize_t *at)
{
    *highest = *total;
    *at = *place;
    while (*place < stop) {
        Py_ssize_t number;
        int is_born = event_at(events, *place, &number);
        int64_t size = is_born < 0 ? -1 : size_of(of, number);
        if (size < 0)
            return -1;
        *total += is_born ? size : -size;
        ++*place;
        if (*total > *highest) {
            *highest = *total;
            *at = *place;
        }
        if (*total >= MOST) {
            PyErr_SetString(PyExc_OverflowError, "a total of 2 EiB");
            return -1;
        }
    }
    return 0;
}

static PyObject *found_peaks(Sizes *of, PyObject *events, PyObject *alive, Py_ssize_t place, PyObject *stops)
{
    int64_t total = 0, highest;
    PyObject *found = PyList_New(0);
    if (found == NULL || add_alive(of, alive, &total) < 0)
        goto failed;
    for (Py_ssize_t part = 0; part < PyList_Size(stops); part++) {
        Py_ssize_t stop = PyLong_AsSsize_t(PyList_GetItem(stops, part)), at;
        if ((stop == -1 && PyErr_Occurred()) || sweep(of, events, &place, stop, &total, &highest, &at) < 0)
            goto failed;
        PyObject *peak = Py_BuildValue("(LnL)", (long long)highest, at, (long long)total);
        int added = peak == NULL ? -1 : PyList_Append(found, peak);
        Py_XDECREF(peak);
        if (added < 0)
            goto failed;
    }
    return found;
failed:
    Py_XDECREF(found);
    return NULL;
}

static PyObject *peaks(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *events, *sizes, *alive, *stops, *kinds, *without, *found = NULL;
    Py_ssize_t start;
    long long unit;
    if (!PyArg_ParseTuple(args, "O!OO!nO!LOO", &PyTuple_Type, &events, &sizes, &PyList_Type, &alive, &start,
                          &PyList_Type, &stops, &unit, &kinds, &without))
        return NULL;
    Sizes of = {PySequence_Tuple(sizes), PySequence_Tuple(kinds), without, NULL, unit, 0};
    if (of.sizes != NULL && of.kinds != NULL)
        found = found_peaks(&of, events, alive, start, stops);
    Py_XDECREF(of.sizes);
    Py_XDECREF(of.kinds);
    return found;
}

static PyMethodDef methods[] = {
    {"living", living, METH_VARARGS, "What is alive after some events."},
    {"peaks", peaks, METH_VARARGS, "The largest total of each part, where it is, and the total at its end."},
    {NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_totals", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__totals(void)
{
    return PyModuleDef_Init(&definition);
}
