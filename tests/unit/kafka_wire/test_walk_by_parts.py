"""Walk over records that arrive in pieces.

Its result equals that of a walk over all of them, wherever they are cut.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.records import walk as record_walk
from vdl.records.batch import HEADER_BYTES, Record, build_batch
from vdl.records.walk import (
    REFUSED_MAX,
    Fault,
    Refused,
    Slot,
    WalkPart,
    begin_parts,
    walk_in_python,
    walk_part_in_python,
)

PARTS: list[WalkPart] = [walk_part_in_python]
if record_walk.walk_part is not walk_part_in_python:
    PARTS.append(record_walk.walk_part)

RECORDS = [
    Record(b"key", bytes(300), [("name", b"value"), ("", None)], timestamp=1_000),
    Record(None, None, [], timestamp=-1),
    Record(b"", b"v" * 5, [("é" * 20, bytes(40))] * 3, timestamp=2_000),
    Record(None, bytes(7), [], timestamp=3_000),
]


def walked_by(
    part: WalkPart, data: bytes, state: array[int], sizes: list[int]
) -> tuple[int, list[Refused]]:
    """Pass the walk further bytes in pieces, cycling through the sizes."""
    refused: list[Refused] = []
    rest, position, turn = b"", 0, 0
    while True:
        size = sizes[turn % len(sizes)]
        turn += 1
        rest += data[position : position + size]
        position += size
        is_last = position >= len(data)
        fault, walked, more = part(rest, state, is_last)
        refused += more
        rest = rest[walked:]
        if fault or is_last:
            return fault, refused


@settings(deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=6), st.booleans(), st.data())
def test_pieces_give_what_the_whole_gives(
    sizes: list[int], keys: bool, data: st.DataObject
) -> None:
    """Covers valid records, and records in which one byte was changed."""
    records = bytearray(build_batch(RECORDS)[HEADER_BYTES:])
    if data.draw(st.booleans()):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    arguments = (len(RECORDS), 1_000, 0, 2_500, keys)
    fault, index, latest, refused = walk_in_python(bytes(records), *arguments, False)
    for part in PARTS:
        state = begin_parts(*arguments)
        found, named = walked_by(part, bytes(records), state, sizes)
        assert bool(found) == bool(fault), (found, fault)
        if fault:
            # A record that extends beyond the end is detected only when the end arrives.
            assert fault in (found, Fault.RECORD_LENGTH), (found, fault)
            assert state[Slot.INDEX] == index or fault == Fault.TRAILING_BYTES
        else:
            assert (state[Slot.INDEX], state[Slot.MAX_TIMESTAMP]) == (index, latest)
            assert tuple(named) == refused


@settings(deadline=None)
@given(st.binary(max_size=80), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_any_bytes_are_walked_alike_by_both(data: bytes, sizes: list[int]) -> None:
    """Covers the walks in C and Python."""
    outcomes = []
    for part in PARTS:
        state = begin_parts(2, 0, 0, 10, keys_required=True)
        found = walked_by(part, data, state, sizes)
        outcomes.append((found, state[: Slot.PHASE]))
    assert outcomes.count(outcomes[0]) == len(outcomes)


@pytest.mark.parametrize("part", PARTS)
def test_pieces_name_no_more_refused_records_than_the_limit(part: WalkPart) -> None:
    """For any number of parts."""
    records = bytes(build_batch([Record(None, b"v")] * (REFUSED_MAX + 50))[HEADER_BYTES:])
    state = begin_parts(REFUSED_MAX + 50, 0, 0, 10, keys_required=True)
    fault, refused = walked_by(part, records, state, [64])
    assert not fault
    assert [index for index, _, _ in refused] == list(range(REFUSED_MAX))


@pytest.mark.parametrize("part", PARTS)
def test_name_that_is_not_whole_is_left_until_it_is(part: WalkPart) -> None:
    """A letter of two bytes is not refused because a piece ends within it."""
    records = bytes(build_batch([Record(b"k", b"v", [("é" * 30, b"")])])[HEADER_BYTES:])
    for size in range(1, len(records)):
        state = begin_parts(1, 0, 0, 10, keys_required=False)
        assert walked_by(part, records, state, [size]) == (0, [])
