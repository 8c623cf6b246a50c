/* A ring of the kernel (io_uring) for one durable write at a time. segments/io/ring.py says what it
 * is for, and does without where it is not there.
 *
 * The caller polls `fileno()`: it is readable once the write has ended, until `ended()` has taken
 * the result. Buffers stay locked until then. A ring is used by one thread.
 *
 * The file must stay open under its number until the write has ended. A thread of the kernel looks
 * it up, maybe after `write` has returned: if the number is another file's by then, that is written.
 *
 * Built against the stable ABI of Python 3.11. Does not depend on files or what is written.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ENTRIES 2
#define BUFFERS_MAX 1024 /* IOV_MAX of Linux */

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#endif

typedef struct {
    PyObject_HEAD
    int fd;
    int is_writing;
    void *rings;
    size_t rings_bytes;
    struct io_uring_sqe *entries;
    size_t entries_bytes;
    unsigned *sq_tail, *sq_array, sq_mask;
    unsigned *cq_head, *cq_tail, cq_mask;
    struct io_uring_cqe *results;
    int count; /* of the buffers of the write in progress */
    Py_buffer buffers[BUFFERS_MAX];
    struct iovec vectors[BUFFERS_MAX];
} Ring;

static void
release_buffers(Ring *self)
{
    for (int i = 0; i < self->count; i++)
        PyBuffer_Release(&self->buffers[i]);
    self->count = 0;
}

static int
ring_init(Ring *self, PyObject *args, PyObject *keywords)
{
    struct io_uring_params params = {0};
    char *rings;
    size_t sq_bytes, cq_bytes;

    (void)keywords;
    if (!PyArg_ParseTuple(args, ""))
        return -1;
    if (self->fd >= 0) {
        PyErr_SetString(PyExc_RuntimeError, "the ring exists");
        return -1;
    }
    self->fd = (int)syscall(__NR_io_uring_setup, ENTRIES, &params);
    if (self->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) ||
        !(params.features & IORING_FEAT_NATIVE_WORKERS)) {
        errno = ENOSYS; /* before Linux 5.12 */
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    self->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    self->rings = mmap(NULL, self->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       self->fd, IORING_OFF_SQ_RING);
    if (self->rings == MAP_FAILED) {
        self->rings = NULL;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->entries_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    self->entries = mmap(NULL, self->entries_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_POPULATE, self->fd, IORING_OFF_SQES);
    if (self->entries == MAP_FAILED) {
        self->entries = NULL;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    /* A forked process must not share them. */
    madvise(self->rings, self->rings_bytes, MADV_DONTFORK);
    madvise(self->entries, self->entries_bytes, MADV_DONTFORK);
    rings = self->rings;
    self->sq_tail = (unsigned *)(rings + params.sq_off.tail);
    self->sq_array = (unsigned *)(rings + params.sq_off.array);
    self->sq_mask = *(unsigned *)(rings + params.sq_off.ring_mask);
    self->cq_head = (unsigned *)(rings + params.cq_off.head);
    self->cq_tail = (unsigned *)(rings + params.cq_off.tail);
    self->cq_mask = *(unsigned *)(rings + params.cq_off.ring_mask);
    self->results = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
    return 0;
}

static PyObject *
ring_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Ring *self = (Ring *)alloc(type, 0);

    (void)args, (void)keywords;
    if (self != NULL)
        self->fd = -1;
    return (PyObject *)self;
}

static void
ring_dealloc(Ring *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc free_self = (freefunc)PyType_GetSlot(type, Py_tp_free);

    if (!self->is_writing) { /* otherwise the kernel may still read: nothing is given back */
        release_buffers(self);
        if (self->rings != NULL)
            munmap(self->rings, self->rings_bytes);
        if (self->entries != NULL)
            munmap(self->entries, self->entries_bytes);
        if (self->fd >= 0)
            close(self->fd);
        free_self(self);
    }
    Py_DECREF(type);
}

static PyObject *
ring_fileno(Ring *self, PyObject *nothing)
{
    (void)nothing;
    return PyLong_FromLong(self->fd);
}

/* write(fd, buffers, position): begin. The buffers are a list or tuple of at most IOV_MAX. */
static PyObject *
ring_write(Ring *self, PyObject *args)
{
    int fd;
    PyObject *given;
    long long position;
    Py_ssize_t count;
    unsigned tail, index;
    struct io_uring_sqe *entry;
    long submitted;

    if (!PyArg_ParseTuple(args, "iOL", &fd, &given, &position))
        return NULL;
    count = PySequence_Size(given);
    if (count < 0)
        return NULL;
    if (self->is_writing || self->entries == NULL || count == 0 || count > BUFFERS_MAX) {
        PyErr_SetString(PyExc_ValueError, "one write of 1 to IOV_MAX buffers at a time");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(given, i);
        int got = item == NULL ? -1 : PyObject_GetBuffer(item, &self->buffers[i], PyBUF_SIMPLE);
        Py_XDECREF(item);
        if (got < 0) {
            release_buffers(self);
            return NULL;
        }
        self->count = (int)i + 1;
        self->vectors[i].iov_base = self->buffers[i].buf;
        self->vectors[i].iov_len = (size_t)self->buffers[i].len;
    }
    tail = *self->sq_tail;
    index = tail & self->sq_mask;
    entry = &self->entries[index];
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_WRITEV;
    entry->flags = IOSQE_ASYNC; /* it waits for the disk in any case */
    entry->fd = fd;
    entry->addr = (uint64_t)(uintptr_t)self->vectors;
    entry->len = (unsigned)count;
    entry->off = (uint64_t)position;
    entry->rw_flags = RWF_DSYNC;
    self->sq_array[index] = index;
    __atomic_store_n(self->sq_tail, tail + 1, __ATOMIC_RELEASE);
    submitted = syscall(__NR_io_uring_enter, self->fd, 1, 0, 0, NULL, 0);
    if (submitted != 1) {
        int code = submitted < 0 ? errno : EAGAIN;
        __atomic_store_n(self->sq_tail, tail, __ATOMIC_RELEASE); /* nothing was taken */
        release_buffers(self);
        errno = code;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->is_writing = 1;
    Py_RETURN_NONE;
}

/* ended(): None while the write goes on; otherwise its result, bytes or a negative errno. */
static PyObject *
ring_ended(Ring *self, PyObject *nothing)
{
    unsigned head;
    int result;

    (void)nothing;
    if (!self->is_writing)
        Py_RETURN_NONE;
    head = *self->cq_head;
    if (head == __atomic_load_n(self->cq_tail, __ATOMIC_ACQUIRE))
        Py_RETURN_NONE;
    result = self->results[head & self->cq_mask].res;
    __atomic_store_n(self->cq_head, head + 1, __ATOMIC_RELEASE);
    self->is_writing = 0;
    release_buffers(self);
    return PyLong_FromLong(result);
}

static PyMethodDef ring_methods[] = {
    {"fileno", (PyCFunction)ring_fileno, METH_NOARGS, NULL},
    {"write", (PyCFunction)ring_write, METH_VARARGS, NULL},
    {"ended", (PyCFunction)ring_ended, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_new, ring_new},
    {Py_tp_init, ring_init},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, ring_methods},
    {0, NULL},
};

static PyType_Spec ring_spec = {
    "segments.io._ring.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, ring_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "segments.io._ring", NULL, 0, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__ring(void)
{
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made == NULL ? NULL : PyType_FromSpec(&ring_spec);

    if (type == NULL || PyModule_AddObjectRef(made, "Ring", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    Py_DECREF(type);
    return made;
}
