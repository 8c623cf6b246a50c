/* The walk over the records of one batch, in C. The same walk in Python, and what the numbers mean,
 * is vdl/records/walk.py; tests hold the two to equal answers, byte for byte.
 *
 * The bytes are a stranger's. Each read is bounded by `end`, which never moves outwards: a length is
 * compared with what is left before anything is added to a pointer. No allocation depends on them
 * beyond REFUSED_MAX entries.
 *
 * Built against the stable ABI of Python 3.11. Must not know: headers of batches, codecs.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* vdl.records.walk.Fault, in its order. */
enum fault {
    NONE, CUT_OFF, VARINT, MISSING, RECORD_LENGTH, OFFSET_DELTA, TIMESTAMP, FIELD_LENGTH,
    HEADER_COUNT, HEADER_NAME, UNREAD_BYTES, TRAILING_BYTES, ATTRIBUTES
};

/* vdl.records.walk.REFUSED_MAX */
#define REFUSED_MAX 100

enum { WITHOUT_KEY = 0, OUT_OF_TIME = 1 };

struct refused {
    int32_t index;
    int why;
    int64_t timestamp;
};

struct walk {
    int32_t count;
    int64_t base_timestamp;
    int64_t oldest;
    int64_t newest;
    int keys_required;
    /* What was found. */
    int32_t index;
    int64_t max_timestamp;
    int refused_count;
    struct refused refused[REFUSED_MAX];
};

/* A zigzag varint of 32 bits, at most 5 bytes. */
static enum fault
read_varint(const uint8_t **at, const uint8_t *end, int32_t *value)
{
    const uint8_t *p = *at;
    uint32_t raw;
    if (p == end)
        return CUT_OFF;
    raw = *p++;
    if (raw & 0x80) {
        int shift = 7;
        raw &= 0x7f;
        for (;;) {
            uint32_t byte;
            if (p == end)
                return CUT_OFF;
            byte = *p++;
            if (shift == 28) {
                /* Four bits are left, and no byte may follow. */
                if (byte > 0x0f)
                    return VARINT;
                raw |= byte << 28;
                break;
            }
            raw |= (byte & 0x7f) << shift;
            if (!(byte & 0x80))
                break;
            shift += 7;
        }
    }
    *at = p;
    *value = (int32_t)((raw >> 1) ^ (0u - (raw & 1)));
    return NONE;
}

/* A zigzag varint of 64 bits, at most 10 bytes. */
static enum fault
read_varlong(const uint8_t **at, const uint8_t *end, int64_t *value)
{
    const uint8_t *p = *at;
    uint64_t raw;
    if (p == end)
        return CUT_OFF;
    raw = *p++;
    if (raw & 0x80) {
        int shift = 7;
        raw &= 0x7f;
        for (;;) {
            uint64_t byte;
            if (p == end)
                return CUT_OFF;
            byte = *p++;
            if (shift == 63) {
                if (byte > 1)
                    return VARINT;
                raw |= byte << 63;
                break;
            }
            raw |= (byte & 0x7f) << shift;
            if (!(byte & 0x80))
                break;
            shift += 7;
        }
    }
    *at = p;
    *value = (int64_t)((raw >> 1) ^ (UINT64_C(0) - (raw & 1)));
    return NONE;
}

/* Whether the bytes are UTF-8 as RFC 3629 has it: shortest forms, no surrogates. */
static int
is_utf8(const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        uint8_t lead = *p++;
        int more;
        uint8_t low = 0x80, high = 0xbf;
        if (lead < 0x80)
            continue;
        if (lead >= 0xc2 && lead <= 0xdf)
            more = 1;
        else if (lead >= 0xe0 && lead <= 0xef) {
            more = 2;
            if (lead == 0xe0)
                low = 0xa0;
            else if (lead == 0xed)
                high = 0x9f;
        }
        else if (lead >= 0xf0 && lead <= 0xf4) {
            more = 3;
            if (lead == 0xf0)
                low = 0x90;
            else if (lead == 0xf4)
                high = 0x8f;
        }
        else
            return 0;
        if (end - p < more || *p < low || *p > high)
            return 0;
        p++;
        while (--more) {
            if (*p < 0x80 || *p > 0xbf)
                return 0;
            p++;
        }
    }
    return 1;
}

/* Pass over a length and so many bytes; `length` is -1 where there is no field. */
static enum fault
skip_field(const uint8_t **at, const uint8_t *end, int32_t *length)
{
    enum fault fault = read_varint(at, end, length);
    if (fault)
        return fault;
    if (*length < -1 || *length > end - *at)
        return FIELD_LENGTH;
    if (*length > 0)
        *at += *length;
    return NONE;
}

static enum fault
skip_headers(const uint8_t **at, const uint8_t *end)
{
    int32_t headers, length;
    enum fault fault = read_varint(at, end, &headers);
    if (fault)
        return fault;
    /* A header is two lengths at least. */
    if (headers < 0 || headers > (end - *at) / 2)
        return HEADER_COUNT;
    for (; headers; headers--) {
        if ((fault = skip_field(at, end, &length)))
            return fault;
        if (length < 0 || !is_utf8(*at - length, *at))
            return HEADER_NAME;
        if ((fault = skip_field(at, end, &length)))
            return fault;
    }
    return NONE;
}

static void
refuse(struct walk *walk, int why, int64_t timestamp)
{
    if (walk->refused_count < REFUSED_MAX) {
        struct refused *refused = &walk->refused[walk->refused_count++];
        refused->index = walk->index;
        refused->why = why;
        refused->timestamp = timestamp;
    }
}

static enum fault
walk_record(struct walk *walk, const uint8_t **at, const uint8_t *records_end)
{
    const uint8_t *p = *at, *end;
    int32_t length, offset_delta, key;
    int64_t delta, timestamp;
    enum fault fault;

    if (p == records_end)
        return MISSING;
    if ((fault = read_varint(&p, records_end, &length)))
        return fault;
    if (length < 0 || length > records_end - p)
        return RECORD_LENGTH;
    end = p + length;
    if (p == end)
        return CUT_OFF;
    /* Attributes: none has a meaning. kafka-python reads them as a number that may go on. */
    if (*p++ & 0x80)
        return ATTRIBUTES;
    if ((fault = read_varlong(&p, end, &delta)))
        return fault;
    if (delta > 0 ? walk->base_timestamp > INT64_MAX - delta
                  : walk->base_timestamp < INT64_MIN - delta)
        return TIMESTAMP;
    timestamp = walk->base_timestamp + delta;
    if ((fault = read_varint(&p, end, &offset_delta)))
        return fault;
    if (offset_delta != walk->index)
        return OFFSET_DELTA;
    if ((fault = skip_field(&p, end, &key)))
        return fault;
    if ((fault = skip_field(&p, end, &length)))
        return fault;
    if ((fault = skip_headers(&p, end)))
        return fault;
    if (p != end)
        return UNREAD_BYTES;
    *at = end;
    if (timestamp > walk->max_timestamp)
        walk->max_timestamp = timestamp;
    if (walk->keys_required && key < 0)
        refuse(walk, WITHOUT_KEY, timestamp);
    else if (timestamp != -1 && (timestamp < walk->oldest || timestamp > walk->newest))
        refuse(walk, OUT_OF_TIME, timestamp);
    return NONE;
}

static enum fault
walk_all(struct walk *walk, const uint8_t *p, const uint8_t *end)
{
    for (walk->index = 0; walk->index < walk->count; walk->index++) {
        enum fault fault = walk_record(walk, &p, end);
        if (fault)
            return fault;
    }
    return p == end ? NONE : TRAILING_BYTES;
}

static PyObject *
refused_tuple(const struct walk *walk)
{
    PyObject *all = PyTuple_New(walk->refused_count);
    for (int i = 0; all != NULL && i < walk->refused_count; i++) {
        const struct refused *refused = &walk->refused[i];
        PyObject *one = Py_BuildValue("(iiL)", (int)refused->index, refused->why,
                                      (long long)refused->timestamp);
        if (one == NULL || PyTuple_SetItem(all, i, one) < 0) {
            Py_DECREF(all);
            return NULL;
        }
    }
    return all;
}

PyDoc_STRVAR(walk_doc, "walk($module, records, count, base_timestamp, oldest, newest, "
             "keys_required, release, /)\n--\n\nSee vdl.records.walk.");

static PyObject *
walk(PyObject *module, PyObject *args)
{
    Py_buffer records;
    struct walk walk;
    int count, release;
    long long base_timestamp, oldest, newest;
    enum fault fault;
    PyObject *refused;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*iLLLpp:walk", &records, &count, &base_timestamp, &oldest,
                          &newest, &walk.keys_required, &release))
        return NULL;
    walk.count = count;
    walk.base_timestamp = base_timestamp;
    walk.oldest = oldest;
    walk.newest = newest;
    walk.max_timestamp = -1;
    walk.refused_count = 0;
    const uint8_t *start = records.buf;
    const uint8_t *end = records.len ? start + records.len : start;
    if (release) {
        PyThreadState *state = PyEval_SaveThread();
        fault = walk_all(&walk, start, end);
        PyEval_RestoreThread(state);
    }
    else
        fault = walk_all(&walk, start, end);
    PyBuffer_Release(&records);
    refused = refused_tuple(&walk);
    if (refused == NULL)
        return NULL;
    return Py_BuildValue("(iiLN)", (int)fault, (int)walk.index, (long long)walk.max_timestamp,
                         refused);
}

/* The shortest record whose places can be read: its length, attributes, two deltas, two lengths. */
#define PLACED_BYTES_MIN 6
/* Numbers of one record: vdl.records.walk.PLACE. */
#define PLACE_NUMBERS 6

/* Where one record lies and what is in it; its headers are passed over by its length. */
static enum fault
place_record(const uint8_t **at, const uint8_t *start, const uint8_t *records_end, int32_t *place)
{
    const uint8_t *p = *at, *end;
    int32_t length, offset_delta, key, value, key_at;
    int64_t delta;
    enum fault fault;

    if (p == records_end)
        return MISSING;
    if ((fault = read_varint(&p, records_end, &length)))
        return fault;
    if (length < 0 || length > records_end - p)
        return RECORD_LENGTH;
    end = p + length;
    if (p == end)
        return CUT_OFF;
    p++;
    if ((fault = read_varlong(&p, end, &delta)))
        return fault;
    if ((fault = read_varint(&p, end, &offset_delta)))
        return fault;
    if ((fault = skip_field(&p, end, &key)))
        return fault;
    key_at = (int32_t)(p - start) - (key > 0 ? key : 0);
    if ((fault = skip_field(&p, end, &value)))
        return fault;
    place[0] = (int32_t)(*at - start);
    place[1] = (int32_t)(end - start);
    place[2] = offset_delta;
    place[3] = key_at;
    place[4] = key;
    place[5] = value;
    *at = end;
    return NONE;
}

PyDoc_STRVAR(places_doc, "places($module, records, count, /)\n--\n\nSee vdl.records.walk.");

static PyObject *
places(PyObject *module, PyObject *args)
{
    Py_buffer records;
    int count;
    int32_t *all;
    Py_ssize_t room, found = 0;
    enum fault fault = NONE;
    PyObject *packed;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*i:places", &records, &count))
        return NULL;
    if (records.len > INT32_MAX) {
        PyBuffer_Release(&records);
        PyErr_SetString(PyExc_ValueError, "records of more than 2 GiB");
        return NULL;
    }
    const uint8_t *start = records.buf;
    const uint8_t *p = start, *end = records.len ? start + records.len : start;
    /* No more than can be there, whatever the count says. */
    room = records.len / PLACED_BYTES_MIN;
    if (count < room)
        room = count > 0 ? count : 0;
    all = PyMem_Malloc((size_t)(room + 1) * PLACE_NUMBERS * sizeof(int32_t));
    if (all == NULL) {
        PyBuffer_Release(&records);
        return PyErr_NoMemory();
    }
    while (found < count) {
        if (found == room) {
            fault = MISSING;
            break;
        }
        if ((fault = place_record(&p, start, end, all + found * PLACE_NUMBERS)))
            break;
        found++;
    }
    if (!fault && p != end)
        fault = TRAILING_BYTES;
    PyBuffer_Release(&records);
    packed = PyBytes_FromStringAndSize((const char *)all,
                                       found * PLACE_NUMBERS * (Py_ssize_t)sizeof(int32_t));
    PyMem_Free(all);
    if (packed == NULL)
        return NULL;
    return Py_BuildValue("(Ni)", packed, fault ? 0 : 1);
}

static PyMethodDef methods[] = {
    {"places", places, METH_VARARGS, places_doc},
    {"walk", walk, METH_VARARGS, walk_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vdl.records._walk",
    .m_doc = "The walk over a batch's records. See vdl.records.walk.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__walk(void)
{
    return PyModuleDef_Init(&definition);
}
