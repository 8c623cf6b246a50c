"""Validation of the uncompressed records of a batch, so that every client can read them.

The records are untrusted bytes. The walk reads each length, number and header once and stops at the
first invalid one: `Fault` identifies the broken rule, the index identifies the record. Well-formed
records that the topic does not accept (no key where one is required, a timestamp out of bounds) are
listed, because Kafka reports them to the producer one by one (KIP-467).

There are two implementations with equal results. `vdl/records/_walk.c` takes some 10 ns a record
and is built if there is a C compiler; `walk_in_python` takes a hundred times as long and is used
otherwise. `IS_NATIVE` is True if this process has the C one.

The walk is stricter than Kafka's broker where a consumer of some client would otherwise stop at the
record for good: offset deltas must be 0, 1, 2, …, numbers must fit their type, a length is never
below -1, the highest bit of a record's attributes is not set, header names are UTF-8.

`walk_part` applies the same rules to records that arrive in pieces, because all of them would take
too much memory. It continues where the last piece ended.

`places` is a shorter walk that returns the positions of each record and its key. It reads records
that were accepted before, so it checks only what it needs.

Does not depend on batch headers, codecs, error codes, or threads.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from enum import IntEnum

Buffer = bytes | bytearray | memoryview

REFUSED_MAX = 100
"""Maximum number of records reported for one batch."""

ANY_TIME = (-(1 << 63), (1 << 63) - 1)
"""Bounds that every timestamp satisfies."""

RECORD_BYTES_MIN = 7
"""Size of the shortest record: length, attributes, two deltas, two lengths, header count."""

_INT64_MIN, _INT64_MAX = ANY_TIME
_NO_TIMESTAMP = -1
_ATTRIBUTE_GOES_ON = 0x80
"""No attribute has a meaning, and kafka-python reads the byte as a varint."""


class Fault(IntEnum):
    """Reason why records cannot be read. The numbers are those of `_walk.c`."""

    NONE = 0
    CUT_OFF = 1
    VARINT = 2
    MISSING = 3
    RECORD_LENGTH = 4
    OFFSET_DELTA = 5
    TIMESTAMP = 6
    FIELD_LENGTH = 7
    HEADER_COUNT = 8
    HEADER_NAME = 9
    UNREAD_BYTES = 10
    TRAILING_BYTES = 11
    ATTRIBUTES = 12


FAULT_TEXTS: dict[int, str] = {
    Fault.CUT_OFF: "the record is truncated",
    Fault.VARINT: "a variable-length number is too long for its type",
    Fault.MISSING: "there are fewer records than in the batch header",
    Fault.RECORD_LENGTH: "its length exceeds the batch",
    Fault.OFFSET_DELTA: "its offset delta is not its position in the batch",
    Fault.TIMESTAMP: "its timestamp does not fit in 64 bits",
    Fault.FIELD_LENGTH: "a field exceeds the record",
    Fault.HEADER_COUNT: "its number of headers exceeds its length",
    Fault.HEADER_NAME: "the name of a header is missing or not UTF-8",
    Fault.UNREAD_BYTES: "it is longer than its fields",
    Fault.TRAILING_BYTES: "bytes follow the last record",
    Fault.ATTRIBUTES: "the highest bit of its attributes must not be set",
}

WITHOUT_KEY = 0
OUT_OF_TIME = 1

Refused = tuple[int, int, int]
"""A record that is not accepted: its index, WITHOUT_KEY or OUT_OF_TIME, its timestamp (ms)."""

Walked = tuple[int, int, int, tuple[Refused, ...]]
"""(fault, index, max timestamp, refused).

After a fault the last two are meaningless; without one the index is the number of records. The
largest timestamp is never below -1, which means none.
"""

Walk = Callable[[Buffer, int, int, int, int, bool, bool], Walked]
"""Walk `count` records: (records, count, base_timestamp, oldest, newest, keys_required, release).

Timestamps are relative to `base_timestamp` and should be within [oldest, newest] (ms); -1 is always
accepted. `release`: let other threads run meanwhile.
"""


WalkPart = Callable[[Buffer, "array[int]", bool], tuple[int, int, tuple[Refused, ...]]]
"""Continue a walk over the next bytes: (records, state, is_last).

`begin_parts` makes the initial `state`. The result is (fault, number of bytes walked, further
records that are not accepted). The caller must pass the remaining bytes again, followed by the next
ones; if none remain, more may still follow. A header's name is checked as a whole, so the buffer
must have room for one. `is_last`: nothing follows.
"""


class Slot(IntEnum):
    """Positions in the state of a walk by parts. The numbers are those of `_walk.c`."""

    COUNT = 0
    BASE_TIMESTAMP = 1
    OLDEST = 2
    NEWEST = 3
    KEYS_REQUIRED = 4
    INDEX = 5
    """Index of the next record, or of the one that has begun."""
    MAX_TIMESTAMP = 6
    REFUSED = 7
    """Number of records reported."""
    PHASE = 8
    LEFT = 9
    """Bytes of the current record not walked yet."""
    SKIP = 10
    """Bytes of the current field not walked yet."""
    HEADERS = 11
    """Number of headers still to come."""
    TIME = 12
    KEY = 13
    """Length of the key, or -1."""


_BEGINNING, _VALUE, _HEADER_NUMBER, _NAME, _HEADER_VALUE, _ENDING = range(6)
_BEGINNING_BYTES_MAX = 26
"""Maximum size of a record before its key."""
_LENGTH_BYTES_MAX = 5


def begin_parts(
    count: int, base_timestamp: int, oldest: int, newest: int, keys_required: bool
) -> array[int]:
    """Return the initial state of a walk by parts. The arguments are those of `Walk`."""
    state = array("q", bytes(8 * len(Slot)))
    state[Slot.COUNT] = count
    state[Slot.BASE_TIMESTAMP] = base_timestamp
    state[Slot.OLDEST], state[Slot.NEWEST] = oldest, newest
    state[Slot.KEYS_REQUIRED] = keys_required
    state[Slot.MAX_TIMESTAMP] = _NO_TIMESTAMP
    return state


PLACE = struct.Struct("=6i")
"""Positions of one record: start, end, offset delta, start of the key, lengths of key and value.

A length is -1 for a missing key or value.
"""

Places = Callable[[Buffer, int], tuple[bytes, int]]
"""Locate records: (records, count) → (places, is_complete).

The result has a `PLACE` for each of the `count` records before the first unreadable one, and 1 if
all can be read and nothing follows them, else 0.
"""


def places_in_python(records: Buffer, count: int) -> tuple[bytes, int]:
    """See `Places`."""
    position = 0
    found = bytearray()
    try:
        for _ in range(count):
            start = position
            if start == len(records):
                raise _Broken(Fault.MISSING)
            length, position = _read_number(records, start, len(records), 32)
            if not 0 <= length <= len(records) - position:
                raise _Broken(Fault.RECORD_LENGTH)
            end = position + length
            if position == end:
                raise _Broken(Fault.CUT_OFF)
            _, position = _read_number(records, position + 1, end, 64)
            offset_delta, position = _read_number(records, position, end, 32)
            key, position = _skip_field(records, position, end)
            key_at = position - max(0, key)
            value, position = _skip_field(records, position, end)
            found += PLACE.pack(start, end, offset_delta, key_at, key, value)
            position = end
    except _Broken:
        return bytes(found), 0
    return bytes(found), int(position == len(records))


def walk_in_python(
    records: Buffer,
    count: int,
    base_timestamp: int,
    oldest: int,
    newest: int,
    keys_required: bool,
    release: bool,
) -> Walked:
    """See `Walk`. Other threads run as Python schedules them, regardless of `release`."""
    del release
    position = 0
    max_timestamp = _NO_TIMESTAMP
    refused: list[Refused] = []
    for index in range(count):
        try:
            position, timestamp, has_key = _walk_record(records, position, index, base_timestamp)
        except _Broken as broken:
            return int(broken.fault), index, max_timestamp, tuple(refused)
        max_timestamp = max(max_timestamp, timestamp)
        if len(refused) >= REFUSED_MAX:
            continue
        if keys_required and not has_key:
            refused.append((index, WITHOUT_KEY, timestamp))
        elif timestamp != _NO_TIMESTAMP and not oldest <= timestamp <= newest:
            refused.append((index, OUT_OF_TIME, timestamp))
    fault = Fault.NONE if position == len(records) else Fault.TRAILING_BYTES
    return int(fault), max(0, count), max_timestamp, tuple(refused)


def walk_part_in_python(
    records: Buffer, state: array[int], is_last: bool
) -> tuple[int, int, tuple[Refused, ...]]:
    """See `WalkPart`."""
    refused: list[Refused] = []
    position = 0
    try:
        while True:
            passed = min(state[Slot.SKIP], len(records) - position)
            position += passed
            state[Slot.SKIP] -= passed
            state[Slot.LEFT] -= passed
            after = _walk_field(records, position, state, refused, is_last=is_last)
            if after is None:
                return int(Fault.NONE), position, tuple(refused)
            position = after
    except _Broken as broken:
        return int(broken.fault), position, tuple(refused)


def _walk_field(
    records: Buffer, position: int, state: array[int], refused: list[Refused], *, is_last: bool
) -> int | None:
    """Walk the next field. Return its end, or None if it is incomplete.

    Raise _Broken if it is invalid.
    """
    phase, there = state[Slot.PHASE], len(records) - position
    if phase == _BEGINNING:
        if state[Slot.INDEX] >= state[Slot.COUNT]:
            if there:
                raise _Broken(Fault.TRAILING_BYTES)
            return None
        if not is_last and there < _BEGINNING_BYTES_MAX:
            return None
        return _begin_record(records, position, state, is_last=is_last)
    left = state[Slot.LEFT]
    if left > there and is_last:
        raise _Broken(Fault.RECORD_LENGTH)
    if state[Slot.SKIP] or (left > there and there < _LENGTH_BYTES_MAX):
        return None
    if phase == _ENDING:
        if left:
            raise _Broken(Fault.UNREAD_BYTES)
        _end_record(state, refused)
        return position
    number, after = _read_number(records, position, position + min(left, there), 32)
    left -= after - position
    if phase == _HEADER_NUMBER:
        if not 0 <= number <= left // 2:
            raise _Broken(Fault.HEADER_COUNT)
        state[Slot.HEADERS] = number
        state[Slot.PHASE] = _NAME if number else _ENDING
    elif not -1 <= number <= left:
        raise _Broken(Fault.FIELD_LENGTH)
    elif phase == _NAME:
        if number > len(records) - after:
            return None
        after = _pass_name(records, after, number)
        left -= number
        state[Slot.PHASE] = _HEADER_VALUE
    else:
        state[Slot.SKIP] = max(0, number)
        if phase == _VALUE:
            state[Slot.PHASE] = _HEADER_NUMBER
        else:
            state[Slot.HEADERS] -= 1
            state[Slot.PHASE] = _NAME if state[Slot.HEADERS] else _ENDING
    state[Slot.LEFT] = left
    return after


def _begin_record(records: Buffer, position: int, state: array[int], *, is_last: bool) -> int:
    """Walk a record up to its key. Raise _Broken if it is invalid."""
    there = len(records)
    if position == there:
        raise _Broken(Fault.MISSING)
    length, body = _read_number(records, position, there, 32)
    if length < 0 or (is_last and length > there - body):
        raise _Broken(Fault.RECORD_LENGTH)
    end = min(there, body + length)
    if body == end:
        raise _Broken(Fault.CUT_OFF)
    if records[body] & _ATTRIBUTE_GOES_ON:
        raise _Broken(Fault.ATTRIBUTES)
    delta, position = _read_number(records, body + 1, end, 64)
    timestamp = state[Slot.BASE_TIMESTAMP] + delta
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise _Broken(Fault.TIMESTAMP)
    offset_delta, position = _read_number(records, position, end, 32)
    if offset_delta != state[Slot.INDEX]:
        raise _Broken(Fault.OFFSET_DELTA)
    key, position = _read_number(records, position, end, 32)
    left = length - (position - body)
    if not -1 <= key <= left:
        raise _Broken(Fault.FIELD_LENGTH)
    state[Slot.LEFT], state[Slot.SKIP] = left, max(0, key)
    state[Slot.TIME], state[Slot.KEY] = timestamp, key
    state[Slot.PHASE] = _VALUE
    return position


def _end_record(state: array[int], refused: list[Refused]) -> None:
    """Finish a record that was walked completely."""
    timestamp = state[Slot.TIME]
    state[Slot.MAX_TIMESTAMP] = max(state[Slot.MAX_TIMESTAMP], timestamp)
    why = -1
    if state[Slot.KEYS_REQUIRED] and state[Slot.KEY] < 0:
        why = WITHOUT_KEY
    elif timestamp != _NO_TIMESTAMP and not (state[Slot.OLDEST] <= timestamp <= state[Slot.NEWEST]):
        why = OUT_OF_TIME
    if why >= 0 and state[Slot.REFUSED] < REFUSED_MAX:
        state[Slot.REFUSED] += 1
        refused.append((state[Slot.INDEX], why, timestamp))
    state[Slot.INDEX] += 1
    state[Slot.PHASE] = _BEGINNING


def _pass_name(records: Buffer, position: int, length: int) -> int:
    """Return the position after a header's name. Raise _Broken if the name is invalid."""
    end = position + length
    try:
        if length < 0:
            raise _Broken(Fault.HEADER_NAME)
        str(records[position:end], "utf-8")
    except UnicodeDecodeError:
        raise _Broken(Fault.HEADER_NAME) from None
    return end


class _Broken(Exception):
    """Raised when a rule is broken."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _walk_record(
    records: Buffer, position: int, index: int, base_timestamp: int
) -> tuple[int, int, bool]:
    """Return (start of the next record, timestamp, has a key). Raise _Broken if it is invalid."""
    size = len(records)
    if position == size:
        raise _Broken(Fault.MISSING)
    length, position = _read_number(records, position, size, 32)
    if not 0 <= length <= size - position:
        raise _Broken(Fault.RECORD_LENGTH)
    end = position + length
    if position == end:
        raise _Broken(Fault.CUT_OFF)
    if records[position] & _ATTRIBUTE_GOES_ON:
        raise _Broken(Fault.ATTRIBUTES)
    delta, position = _read_number(records, position + 1, end, 64)
    timestamp = base_timestamp + delta
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise _Broken(Fault.TIMESTAMP)
    offset_delta, position = _read_number(records, position, end, 32)
    if offset_delta != index:
        raise _Broken(Fault.OFFSET_DELTA)
    key_length, position = _skip_field(records, position, end)
    _, position = _skip_field(records, position, end)
    position = _skip_headers(records, position, end)
    if position != end:
        raise _Broken(Fault.UNREAD_BYTES)
    return end, timestamp, key_length >= 0


def _skip_headers(records: Buffer, position: int, end: int) -> int:
    count, position = _read_number(records, position, end, 32)
    if not 0 <= count <= (end - position) // 2:
        raise _Broken(Fault.HEADER_COUNT)
    for _ in range(count):
        length, position = _skip_field(records, position, end)
        position = _pass_name(records, position - max(0, length), length)
        _, position = _skip_field(records, position, end)
    return position


def _skip_field(records: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return (length or -1, position after the field)."""
    length, position = _read_number(records, position, end, 32)
    if not -1 <= length <= end - position:
        raise _Broken(Fault.FIELD_LENGTH)
    return length, position + max(0, length)


def _read_number(records: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    """Return (value, position after it) of a zigzag varint of `bits` bits."""
    raw = shift = 0
    while True:
        if position == end:
            raise _Broken(Fault.CUT_OFF)
        byte = records[position]
        position += 1
        if shift + 7 > bits and byte >> (bits - shift):
            raise _Broken(Fault.VARINT)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7


def _choose() -> tuple[Walk, bool]:
    try:
        from vdl.records._walk import walk as native
    except ImportError:
        return walk_in_python, False
    return native, True


def _choose_places() -> Places:
    try:
        from vdl.records._walk import places as native
    except ImportError:  # none was built, or an older one
        return places_in_python
    return native


def _choose_part() -> WalkPart:
    try:
        from vdl.records._walk import walk_part as native
    except ImportError:  # the same
        return walk_part_in_python
    return native


walk, IS_NATIVE = _choose()
walk_part = _choose_part()
places = _choose_places()
