/* A thread that writes journal blocks without the interpreter's lock.
 *
 * `Writer(file)` starts the thread; `file` is an eventfd that it increments when a write has ended.
 * `submit(descriptor, buffers, position)` gives it one write, which begins at once, whatever Python
 * does meanwhile; `collect()` returns its result. segments/io/workers.py does the same in Python where
 * this module cannot be built.
 *
 * The thread touches no Python object. It reads the buffers, which `submit` holds until `collect`, and
 * the fields of its `struct writer` under the mutex. One write at a time: `submit` raises if there is
 * one already.
 *
 * Built against the stable ABI of Python 3.11.
 */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BUFFERS_MAX = 1024 };
enum state { IDLE, SUBMITTED, ENDED, CLOSED };

struct writer {
    PyObject_HEAD
    pthread_t thread;
    int has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    enum state state;
    int doorbell;
    int descriptor;
    off_t position;
    int count;
    int error;
    Py_ssize_t written;
    Py_buffer held[BUFFERS_MAX];
    struct iovec parts[BUFFERS_MAX];
};

/* Write all parts with RWF_DSYNC; return 0 or an errno. Moves the parts forward after a short write. */
static int
write_parts(struct writer *self)
{
    struct iovec *part = self->parts;
    int left = self->count;
    off_t position = self->position;
    while (left) {
        ssize_t done = pwritev2(self->descriptor, part, left, position, RWF_DSYNC);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (done == 0)
            return EIO;
        position += done;
        self->written += done;
        while (left && (size_t)done >= part->iov_len) {
            done -= part->iov_len;
            part++;
            left--;
        }
        if (left) {
            part->iov_base = (char *)part->iov_base + done;
            part->iov_len -= done;
        }
    }
    return 0;
}

static void *
run(void *argument)
{
    struct writer *self = argument;
    const uint64_t one = 1;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (self->state != SUBMITTED && self->state != CLOSED)
            pthread_cond_wait(&self->changed, &self->mutex);
        if (self->state == CLOSED)
            break;
        pthread_mutex_unlock(&self->mutex);
        int error = write_parts(self);
        pthread_mutex_lock(&self->mutex);
        self->error = error;
        self->state = ENDED;
        /* The counter of an eventfd cannot be full here: `collect` follows each write. */
        while (write(self->doorbell, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void
release(struct writer *self)
{
    for (int i = 0; i < self->count; i++)
        PyBuffer_Release(&self->held[i]);
    self->count = 0;
}

static PyObject *
writer_submit(PyObject *object, PyObject *args)
{
    struct writer *self = (struct writer *)object;
    int descriptor;
    PyObject *buffers;
    long long position;
    if (!PyArg_ParseTuple(args, "iO!L", &descriptor, &PyList_Type, &buffers, &position))
        return NULL;
    if (self->state != IDLE) {
        PyErr_SetString(PyExc_RuntimeError, "a write is under way, or the writer is closed");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(buffers);
    if (count > BUFFERS_MAX)
        return PyErr_Format(PyExc_ValueError, "%zd buffers, at most %d", count, BUFFERS_MAX);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PyList_GetItem(buffers, i), &self->held[i], PyBUF_SIMPLE) < 0) {
            release(self);
            return NULL;
        }
        self->count = (int)i + 1;
        self->parts[i].iov_base = self->held[i].buf;
        self->parts[i].iov_len = (size_t)self->held[i].len;
    }
    self->descriptor = descriptor;
    self->position = (off_t)position;
    self->written = 0;
    pthread_mutex_lock(&self->mutex);
    self->state = SUBMITTED;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    Py_RETURN_NONE;
}

static PyObject *
writer_collect(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    struct writer *self = (struct writer *)object;
    pthread_mutex_lock(&self->mutex);
    int has_ended = self->state == ENDED;
    if (has_ended)
        self->state = IDLE;
    pthread_mutex_unlock(&self->mutex);
    if (!has_ended)
        Py_RETURN_NONE;
    release(self);
    if (self->error)
        return PyLong_FromLong(-self->error);
    return PyLong_FromSsize_t(self->written);
}

/* End the thread, after a write that is under way. */
static void
end_thread(struct writer *self)
{
    if (!self->has_thread)
        return;
    self->has_thread = 0;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->mutex);
    self->state = self->state == SUBMITTED ? SUBMITTED : CLOSED;
    pthread_mutex_unlock(&self->mutex);
    for (;;) {
        pthread_mutex_lock(&self->mutex);
        int is_over = self->state != SUBMITTED;
        if (is_over)
            self->state = CLOSED;
        pthread_cond_signal(&self->changed);
        pthread_mutex_unlock(&self->mutex);
        if (is_over)
            break;
        usleep(1000);
    }
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
    release(self);
}

static PyObject *
writer_close(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    end_thread((struct writer *)object);
    Py_RETURN_NONE;
}

static int
writer_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    struct writer *self = (struct writer *)object;
    if (!PyArg_ParseTuple(args, "i", &self->doorbell))
        return -1;
    if (self->has_thread) {
        PyErr_SetString(PyExc_RuntimeError, "a writer is initialized once");
        return -1;
    }
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    /* Signals are for the interpreter's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, run, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->has_thread = 1;
    return 0;
}

static void
writer_dealloc(PyObject *object)
{
    end_thread((struct writer *)object);
    PyTypeObject *type = Py_TYPE(object);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"submit", writer_submit, METH_VARARGS, "Begin to write buffers at a position of a descriptor."},
    {"collect", writer_collect, METH_NOARGS, "Return bytes or -errno of an ended write, or None."},
    {"close", writer_close, METH_NOARGS, "Finish a write that is under way, and end the thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, writer_init},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    "segments.io._blocks.Writer", sizeof(struct writer), 0, Py_TPFLAGS_DEFAULT, slots,
};

static int
add_type(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Writer", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_type}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "segments.io._blocks", NULL, 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__blocks(void)
{
    return PyModuleDef_Init(&module);
}
