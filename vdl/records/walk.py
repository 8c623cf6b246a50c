"""One walk over the records of a batch, uncompressed: whether any client could read them.

The records are a stranger's bytes. The walk goes through each length, number and header once and
stops at the first that cannot be: `Fault` says which rule was broken, the index which record broke
it. Records that are well formed and still not wanted (no key where one is required, a timestamp out
of bounds) are listed, because Kafka names them to the producer one by one (KIP-467).

There are two walks with equal answers. `vdl/records/_walk.c` takes some 10 ns a record and is built
where there is a C compiler; `walk_in_python` takes a hundred times as long and is used where there
was none. `IS_NATIVE` says which one this process has.

Where it is stricter than Kafka's broker, a consumer of some client would otherwise stop at the
record for good: offset deltas must be 0, 1, 2, …, numbers must fit their type, a length is never
below -1, the highest bit of a record's attributes is not set, header names are UTF-8.

Records that come piece by piece, because all of them would take too much memory, are walked on from
where the last piece ended: `walk_part`, by the same rules.

Beside it there is a shorter walk that says where each record lies, and its key: `places`. It goes
over what was accepted before, so it looks at no more than it needs.

Must not know: batch headers, codecs, error codes, threads.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from enum import IntEnum

Buffer = bytes | bytearray | memoryview

REFUSED_MAX = 100
"""So many records of one batch are named at most."""

ANY_TIME = (-(1 << 63), (1 << 63) - 1)
"""Bounds that each timestamp keeps."""

RECORD_BYTES_MIN = 7
"""The shortest record: its length, attributes, two deltas, two lengths, the number of headers."""

_INT64_MIN, _INT64_MAX = ANY_TIME
_NO_TIMESTAMP = -1
_ATTRIBUTE_GOES_ON = 0x80
"""No attribute has a meaning, and kafka-python reads the byte as a varint."""


class Fault(IntEnum):
    """Why records cannot be read. The numbers are those of `_walk.c`."""

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
    Fault.CUT_OFF: "it ends in the middle",
    Fault.VARINT: "a number is too long for its type",
    Fault.MISSING: "there are fewer records than the batch says",
    Fault.RECORD_LENGTH: "its length goes beyond the batch",
    Fault.OFFSET_DELTA: "its offset delta is not its place in the batch",
    Fault.TIMESTAMP: "its timestamp does not fit 64 bits",
    Fault.FIELD_LENGTH: "a field goes beyond the record",
    Fault.HEADER_COUNT: "it cannot hold so many headers",
    Fault.HEADER_NAME: "a header's name is missing or not UTF-8",
    Fault.UNREAD_BYTES: "it is longer than what is in it",
    Fault.TRAILING_BYTES: "bytes follow the last record",
    Fault.ATTRIBUTES: "the highest bit of its attributes is set",
}

WITHOUT_KEY = 0
OUT_OF_TIME = 1

Refused = tuple[int, int, int]
"""A record that is not wanted: its index, WITHOUT_KEY or OUT_OF_TIME, its timestamp (ms)."""

Walked = tuple[int, int, int, tuple[Refused, ...]]
"""`(fault, index, max timestamp, refused)`. With a fault the last two say nothing; without one the
index is the number of records. The largest timestamp is never below -1, which is none."""

Walk = Callable[[Buffer, int, int, int, int, bool, bool], Walked]
"""`(records, count, base_timestamp, oldest, newest, keys_required, release)`: walk `count` records
whose timestamps count from `base_timestamp` and should be within [oldest, newest] (ms), -1 always
excepted. `release`: let other threads run meanwhile."""


WalkPart = Callable[[Buffer, "array[int]", bool], tuple[int, int, tuple[Refused, ...]]]
"""`(records, state, is_last)`: walk on from what `state` says, which `begin_parts` made, over the
next bytes: (fault, how many of them were walked, further records that are not wanted). The rest is
to come again, in front of what follows it; without a rest there may be more to come. A header's
name is looked at as a whole, so there must be room for one. `is_last`: nothing follows."""


class Slot(IntEnum):
    """Places in the state of a walk by parts. The numbers are those of `_walk.c`."""

    COUNT = 0
    BASE_TIMESTAMP = 1
    OLDEST = 2
    NEWEST = 3
    KEYS_REQUIRED = 4
    INDEX = 5
    """Of the next record, or the one that has begun."""
    MAX_TIMESTAMP = 6
    REFUSED = 7
    """How many were named."""
    PHASE = 8
    LEFT = 9
    """Bytes of the record that has begun which were not walked."""
    SKIP = 10
    """And of its field."""
    HEADERS = 11
    """How many of them are to come."""
    TIME = 12
    KEY = 13
    """Its length, or -1."""


_BEGINNING, _VALUE, _HEADER_NUMBER, _NAME, _HEADER_VALUE, _ENDING = range(6)
_BEGINNING_BYTES_MAX = 26
"""No record takes more before its key."""
_LENGTH_BYTES_MAX = 5


def begin_parts(
    count: int, base_timestamp: int, oldest: int, newest: int, keys_required: bool
) -> array[int]:
    """The state of a walk that has not begun. The arguments are those of `Walk`."""
    state = array("q", bytes(8 * len(Slot)))
    state[Slot.COUNT] = count
    state[Slot.BASE_TIMESTAMP] = base_timestamp
    state[Slot.OLDEST], state[Slot.NEWEST] = oldest, newest
    state[Slot.KEYS_REQUIRED] = keys_required
    state[Slot.MAX_TIMESTAMP] = _NO_TIMESTAMP
    return state


PLACE = struct.Struct("=6i")
"""One record, positions in the records: where it begins, where it ends, its offset delta, where its
key begins, the length of the key and of the value, -1 where there is none."""

Places = Callable[[Buffer, int], tuple[bytes, int]]
"""`(records, count)`: (`PLACE` of each of the `count` records before the first that cannot be read;
1 when all can, and nothing follows them, else 0)."""


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
    """See `Walk`. Other threads run when Python lets them, whatever `release` says."""
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
    """Walk what comes next; where that ends, or None if it is not there. Raises _Broken."""
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
    """Walk a record up to its key. Raises _Broken."""
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
    """A record was walked as a whole."""
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
    """The position behind a header's name. Raises _Broken."""
    end = position + length
    try:
        if length < 0:
            raise _Broken(Fault.HEADER_NAME)
        str(records[position:end], "utf-8")
    except UnicodeDecodeError:
        raise _Broken(Fault.HEADER_NAME) from None
    return end


class _Broken(Exception):
    """A rule is broken."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _walk_record(
    records: Buffer, position: int, index: int, base_timestamp: int
) -> tuple[int, int, bool]:
    """(where the next record begins, its timestamp, whether it has a key). Raises _Broken."""
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
    """`(length or -1, position behind the field)`."""
    length, position = _read_number(records, position, end, 32)
    if not -1 <= length <= end - position:
        raise _Broken(Fault.FIELD_LENGTH)
    return length, position + max(0, length)


def _read_number(records: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    """`(value, position behind it)` of a zigzag varint of so many bits."""
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
    except ImportError:  # likewise
        return walk_part_in_python
    return native


walk, IS_NATIVE = _choose()
walk_part = _choose_part()
places = _choose_places()
