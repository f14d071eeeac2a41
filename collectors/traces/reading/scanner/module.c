/* The module collectors.traces.reading._scanner, which turns a chunk of a trace into rows, as bytes.
 *
 * It uses Python's stable ABI, so a single build works with all versions from 3.11 on.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "events.h"

/* Returns the texts of a tuple of strings, which the caller must free. They are valid as long as the tuple. */
static Slice *slices_of(PyObject *strings, size_t *count)
{
    const Py_ssize_t length = PyTuple_Size(strings);
    if (length < 0)
        return NULL;
    *count = (size_t)length;
    Slice *slices = malloc(sizeof(Slice) * (*count + 1));
    if (!slices)
        return (Slice *)PyErr_NoMemory();
    for (Py_ssize_t number = 0; number < length; number++) {
        Py_ssize_t bytes;
        const char *text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(strings, number), &bytes);
        if (!text) {
            free(slices);
            return NULL;
        }
        slices[number] = (Slice){(const uint8_t *)text, (size_t)bytes};
    }
    return slices;
}

static PyObject *strings_of(const Interned *all)
{
    PyObject *strings = PyTuple_New(all->count);
    if (!strings)
        return NULL;
    for (int32_t number = 0; number < all->count; number++) {
        const Slice text = all->texts[number];
        PyObject *string = PyUnicode_DecodeASCII((const char *)text.begin, (Py_ssize_t)text.length, NULL);
        if (!string || PyTuple_SetItem(strings, number, string)) {
            Py_DECREF(strings);
            return NULL;
        }
    }
    return strings;
}

static PyObject *bytes_of(const Pile *pile)
{
    return PyBytes_FromStringAndSize(pile->bytes, (Py_ssize_t)pile->used);
}

static PyObject *result_of(const Scan *scan)
{
    return Py_BuildValue("(NNNNNLNN)", bytes_of(&scan->rows), strings_of(&scan->names), strings_of(&scan->shapes),
                         bytes_of(&scan->said), bytes_of(&scan->allocations), (long long)scan->without_address,
                         strings_of(&scan->unknown), strings_of(&scan->unread_phases));
}

static PyObject *scan_chunk(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *kept, *not_kept, *phases, *result = NULL;
    Py_buffer chunk;
    Py_ssize_t phase_count;
    Scan scan = {0};
    /* No format with #: if built with the headers of Python 3.13, earlier versions refuse it. */
    if (!PyArg_ParseTuple(arguments, "y*O!O!U", &chunk, &PyTuple_Type, &kept, &PyTuple_Type, &not_kept, &phases))
        return NULL;
    const char *letters = PyUnicode_AsUTF8AndSize(phases, &phase_count);
    Slice *of_kept = letters ? slices_of(kept, &scan.kept_count) : NULL, *of_not_kept = NULL;
    if (of_kept && (of_not_kept = slices_of(not_kept, &scan.not_kept_count))) {
        bool is_read = false;
        scan.phases = (Slice){(const uint8_t *)letters, (size_t)phase_count};
        scan.begin = chunk.buf;
        scan.end = scan.begin + chunk.len;
        scan.kept = of_kept;
        scan.not_kept = of_not_kept;
        if (chunk.len <= INT32_MAX && scan.kept_count <= INT8_MAX) {
            Py_BEGIN_ALLOW_THREADS
            is_read = read_chunk(&scan);
            Py_END_ALLOW_THREADS
        }
        result = is_read ? result_of(&scan) : Py_NewRef(Py_None);
    }
    free(of_kept);
    free(of_not_kept);
    throw_away(&scan);
    PyBuffer_Release(&chunk);
    return result;
}

static PyMethodDef methods[] = {
    {"scan", scan_chunk, METH_VARARGS, "See _scanner.pyi."},
    {0},
};

static int add_sizes(PyObject *module)
{
    return PyModule_AddIntConstant(module, "ROW_BYTES", sizeof(Row)) ||
           PyModule_AddIntConstant(module, "SAID_BYTES", sizeof(Said)) ||
           PyModule_AddIntConstant(module, "ALLOCATION_BYTES", sizeof(Allocation));
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_sizes},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "collectors.traces.reading._scanner",
    .m_doc = "See _scanner.pyi.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__scanner(void)
{
    return PyModuleDef_Init(&definition);
}
