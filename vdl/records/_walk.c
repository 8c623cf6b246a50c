/* Walk over the records of one batch, in C. vdl/records/walk.py has the same walk in Python and the
 * meaning of the numbers; tests compare the results of the two byte for byte.
 *
 * The bytes are untrusted. Each read is bounded by `end`, which never moves outwards: a length is
 * compared with the remaining bytes before a pointer is advanced. Allocations do not depend on the
 * bytes, except for up to REFUSED_MAX entries, and for the places of records that fit the buffer.
 *
 * Built against the stable ABI of Python 3.11. Does not depend on batch headers or codecs.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Values of vdl.records.walk.Fault, in order. */
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
    /* Results. */
    int32_t index;
    int64_t max_timestamp;
    int refused_count;
    struct refused refused[REFUSED_MAX];
};

/* Read a zigzag varint of 32 bits, at most 5 bytes. */
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

/* Read a zigzag varint of 64 bits, at most 10 bytes. */
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

/* Return 1 if the bytes are UTF-8 as in RFC 3629: shortest forms, no surrogates. */
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

/* Read a length and skip a field of that size; `length` is -1 if the field is null. */
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
    /* A header has at least two lengths. */
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
    /* No attribute has a meaning, but kafka-python reads the byte as a varint. */
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
tuple_of(const struct refused *refused, int count)
{
    PyObject *all = PyTuple_New(count);
    for (int i = 0; all != NULL && i < count; i++) {
        PyObject *one = Py_BuildValue("(iiL)", (int)refused[i].index, refused[i].why,
                                      (long long)refused[i].timestamp);
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
    refused = tuple_of(walk.refused, walk.refused_count);
    if (refused == NULL)
        return NULL;
    return Py_BuildValue("(iiLN)", (int)fault, (int)walk.index, (long long)walk.max_timestamp,
                         refused);
}

/* --- walk by parts: see vdl.records.walk.WalkPart --------------------------------------------- */

/* Positions in the state: vdl.records.walk.Slot, in order. */
enum slot {
    COUNT, BASE_TIMESTAMP, OLDEST, NEWEST, KEYS_REQUIRED, INDEX, MAX_TIMESTAMP, REFUSED, PHASE,
    LEFT, SKIP, HEADERS, TIME, KEY, SLOTS
};

/* Next element of the record. */
enum phase { BEGINNING, VALUE, HEADER_NUMBER, NAME, HEADER_VALUE, ENDING };

/* Maximum sizes of a record before its key, and of a length. */
#define BEGINNING_BYTES_MAX 26
#define LENGTH_BYTES_MAX 5

/* Walk a record up to its key. `end` is the end of the bytes that have arrived. */
static enum fault
begin_record(int64_t *state, const uint8_t **at, const uint8_t *end, int is_last)
{
    const uint8_t *p = *at, *body;
    int32_t length, offset_delta, key;
    int64_t delta, base = state[BASE_TIMESTAMP];
    enum fault fault;

    if (p == end)
        return MISSING;
    if ((fault = read_varint(&p, end, &length)))
        return fault;
    if (length < 0 || (is_last && length > end - p))
        return RECORD_LENGTH;
    body = p;
    if (length < end - p)
        end = p + length;
    if (p == end)
        return CUT_OFF;
    if (*p++ & 0x80)
        return ATTRIBUTES;
    if ((fault = read_varlong(&p, end, &delta)))
        return fault;
    if (delta > 0 ? base > INT64_MAX - delta : base < INT64_MIN - delta)
        return TIMESTAMP;
    if ((fault = read_varint(&p, end, &offset_delta)))
        return fault;
    if (offset_delta != state[INDEX])
        return OFFSET_DELTA;
    if ((fault = read_varint(&p, end, &key)))
        return fault;
    state[LEFT] = length - (p - body);
    if (key < -1 || key > state[LEFT])
        return FIELD_LENGTH;
    state[TIME] = base + delta;
    state[KEY] = key;
    state[SKIP] = key > 0 ? key : 0;
    state[PHASE] = VALUE;
    *at = p;
    return NONE;
}

/* Read a number within a record. `end` is the end of the bytes that have arrived. */
static enum fault
next_number(int64_t *state, const uint8_t **at, const uint8_t *end, int32_t *value)
{
    const uint8_t *p = *at;
    enum fault fault = read_varint(&p, state[LEFT] < end - p ? p + state[LEFT] : end, value);
    if (fault)
        return fault;
    state[LEFT] -= p - *at;
    *at = p;
    return NONE;
}

static void
end_record(int64_t *state, struct refused *refused, int *count)
{
    int why = -1;
    int64_t timestamp = state[TIME];

    if (timestamp > state[MAX_TIMESTAMP])
        state[MAX_TIMESTAMP] = timestamp;
    if (state[KEYS_REQUIRED] && state[KEY] < 0)
        why = WITHOUT_KEY;
    else if (timestamp != -1 && (timestamp < state[OLDEST] || timestamp > state[NEWEST]))
        why = OUT_OF_TIME;
    if (why >= 0 && state[REFUSED] < REFUSED_MAX) {
        state[REFUSED]++;
        refused[*count].index = (int32_t)state[INDEX];
        refused[*count].why = why;
        refused[(*count)++].timestamp = timestamp;
    }
    state[INDEX]++;
    state[PHASE] = BEGINNING;
}

static enum fault
walk_on(int64_t *state, const uint8_t **at, const uint8_t *end, int is_last,
        struct refused *refused, int *count)
{
    const uint8_t *p = *at, *before;
    enum fault fault = NONE;
    int32_t number;

    for (;;) {
        int64_t there = end - p;
        if (state[SKIP]) {
            int64_t passed = state[SKIP] < there ? state[SKIP] : there;
            p += passed;
            there -= passed;
            state[SKIP] -= passed;
            state[LEFT] -= passed;
        }
        *at = p;
        if (state[PHASE] == BEGINNING) {
            if (state[INDEX] >= state[COUNT])
                return p == end ? NONE : TRAILING_BYTES;
            if (!is_last && there < BEGINNING_BYTES_MAX)
                return NONE;
            if ((fault = begin_record(state, &p, end, is_last)))
                return fault;
            continue;
        }
        if (state[LEFT] > there && is_last)
            return RECORD_LENGTH;
        if (state[SKIP] || (state[LEFT] > there && there < LENGTH_BYTES_MAX))
            return NONE;
        switch (state[PHASE]) {
        case VALUE:
        case HEADER_VALUE:
            if ((fault = next_number(state, &p, end, &number)))
                return fault;
            if (number < -1 || number > state[LEFT])
                return FIELD_LENGTH;
            state[SKIP] = number > 0 ? number : 0;
            if (state[PHASE] == VALUE)
                state[PHASE] = HEADER_NUMBER;
            else
                state[PHASE] = --state[HEADERS] ? NAME : ENDING;
            break;
        case HEADER_NUMBER:
            if ((fault = next_number(state, &p, end, &number)))
                return fault;
            if (number < 0 || number > state[LEFT] / 2)
                return HEADER_COUNT;
            state[HEADERS] = number;
            state[PHASE] = number ? NAME : ENDING;
            break;
        case NAME:
            before = p;
            if ((fault = next_number(state, &p, end, &number)))
                return fault;
            if (number < -1 || number > state[LEFT])
                return FIELD_LENGTH;
            if (number > end - p) {  /* a name is checked as a whole */
                state[LEFT] += p - before;
                return NONE;
            }
            if (number < 0 || !is_utf8(p, p + number))
                return HEADER_NAME;
            p += number;
            state[LEFT] -= number;
            state[PHASE] = HEADER_VALUE;
            break;
        default:
            if (state[LEFT])
                return UNREAD_BYTES;
            end_record(state, refused, count);
        }
    }
}

PyDoc_STRVAR(walk_part_doc, "walk_part($module, records, state, is_last, /)\n--\n\n"
             "See vdl.records.walk.");

static PyObject *
walk_part(PyObject *module, PyObject *args)
{
    Py_buffer records, state;
    struct refused refused[REFUSED_MAX];
    int is_last, count = 0;
    enum fault fault;
    PyObject *all;

    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*p:walk_part", &records, &state, &is_last))
        return NULL;
    if (state.len != SLOTS * (Py_ssize_t)sizeof(int64_t) || state.itemsize != sizeof(int64_t)) {
        PyBuffer_Release(&records);
        PyBuffer_Release(&state);
        PyErr_SetString(PyExc_ValueError, "not the state of a walk");
        return NULL;
    }
    const uint8_t *start = records.buf;
    const uint8_t *p = start;
    PyThreadState *thread = PyEval_SaveThread();
    fault = walk_on(state.buf, &p, records.len ? start + records.len : start, is_last, refused,
                    &count);
    PyEval_RestoreThread(thread);
    Py_ssize_t position = p - start;
    PyBuffer_Release(&records);
    PyBuffer_Release(&state);
    all = tuple_of(refused, count);
    if (all == NULL)
        return NULL;
    return Py_BuildValue("(inN)", (int)fault, position, all);
}

/* Shortest record that can be located: its length, attributes, two deltas, two lengths. */
#define PLACED_BYTES_MIN 6
/* Numbers of one record: vdl.records.walk.PLACE. */
#define PLACE_NUMBERS 6

/* Locate a record, its key and its value. Headers are not read; the record's length skips them. */
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
    /* At most the number of records that fit the buffer, whatever `count` is. */
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
    {"walk_part", walk_part, METH_VARARGS, walk_part_doc},
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
