"""Frames of ranges, entries and conditions: small, exact shapes."""

from __future__ import annotations

import pytest

from raft.types import ConfState, Entry, Snapshot
from rpc.condition import GROUPS_MAX, Condition, decode_condition, encode_condition
from rpc.errors import MalformedFrame
from rpc.hello import PROTOCOL_VERSION, VERSION_OF_COMPACTED_COPIES
from rpc.ranges import (
    RangeAnswer,
    RangeRequest,
    decode_answer,
    decode_range,
    encode_answer,
    encode_range,
)
from rpc.reader import Buffer

ENTRIES = [
    Entry(term=3, index=7, data=b"seven", base_offset=40, records=2, timestamp=99),
    Entry(term=4, index=8, data=b"", base_offset=42),
    Entry(term=4, index=9, data=b"nine" * 500, base_offset=42, records=1),
]


VERSIONS = pytest.mark.parametrize(
    "version", [VERSION_OF_COMPACTED_COPIES - 1, PROTOCOL_VERSION], ids=["before", "now"]
)


def joined(buffers: list[Buffer]) -> memoryview:
    return memoryview(b"".join(buffers))


def test_range_comes_back() -> None:
    for wants_state in (False, True):
        asked = RangeRequest(5, 1 << 40, 7, 10, wants_state)
        assert decode_range(joined(encode_range(asked))) == asked


@pytest.mark.parametrize(("first", "end"), [(0, 3), (3, 3), (4, 3)])
def test_range_of_nothing_is_malformed(first: int, end: int) -> None:
    """Index 0 is before the log; a range has at least one entry."""
    with pytest.raises(MalformedFrame):
        decode_range(joined(encode_range(RangeRequest(1, 1, first, end))))


def test_range_cut_is_malformed() -> None:
    frame = joined(encode_range(RangeRequest(5, 1, 7, 10)))
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode_range(frame[:end])


@VERSIONS
def test_entries_come_back_whole(version: int) -> None:
    """Entries keep their terms, offsets and payloads; payloads are sent from their memory."""
    buffers = encode_answer(RangeAnswer(5, 3, 9, ENTRIES), version)
    assert any(buffer is ENTRIES[2].data for buffer in buffers)
    found = decode_answer(joined(buffers), version)
    for entry in found.entries:
        entry.data = bytes(entry.data)
    assert found == RangeAnswer(5, 3, 9, ENTRIES)


@VERSIONS
def test_a_state_comes_back_whole(version: int) -> None:
    """A state, which replaces trimmed entries, is transferred unchanged."""
    state = Snapshot(20, 4, ConfState(voters=(1, 2, 3)), 77, b"what the entries did")
    found = decode_answer(
        joined(encode_answer(RangeAnswer(5, 21, 9, state=state), version)), version
    )
    assert found.state is not None
    found.state.data = bytes(found.state.data)
    assert found == RangeAnswer(5, 21, 9, state=state)


@VERSIONS
def test_regrets_come_back(version: int) -> None:
    """A replica may be unable to help."""
    assert decode_answer(joined(encode_answer(RangeAnswer(5, 3), version)), version) == RangeAnswer(
        5, 3
    )


@VERSIONS
def test_entries_cut_are_malformed(version: int) -> None:
    """Except for a cut right behind the numbers, which is a regret."""
    head = 16 if version < VERSION_OF_COMPACTED_COPIES else 24
    frame = joined(encode_answer(RangeAnswer(5, 3, 9, ENTRIES), version))
    for end in [*range(head), *range(head + 1, len(frame), 97)]:
        with pytest.raises(MalformedFrame):
            decode_answer(frame[:end], version)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("unavailable", [True, False])
@pytest.mark.parametrize("stalled", [True, False])
def test_condition_comes_back(full: bool, unavailable: bool, stalled: bool) -> None:
    """Flags of later versions are ignored."""
    condition = Condition(disk_full=full, unavailable=unavailable, stalled=stalled)
    frame = joined(encode_condition(condition))
    assert decode_condition(frame) == condition
    assert decode_condition(memoryview(bytes([frame[0] | 0xF8]))) == condition


@pytest.mark.parametrize(
    ("incomplete", "damaged"),
    [((7,), ()), ((), (1 << 63, 8)), ((1, 2), (3,)), (tuple(range(GROUPS_MAX)), ())],
)
def test_groups_with_damage_come_back(
    incomplete: tuple[int, ...], damaged: tuple[int, ...]
) -> None:
    condition = Condition(stalled=True, incomplete=incomplete, damaged=damaged)
    frame = joined(encode_condition(condition))
    assert decode_condition(frame) == condition
    for end in range(1, min(len(frame), 40)):
        if end == 1 or (end >= 5 and (end - 5) % 8 == 0 and (end - 5) // 8 >= len(incomplete)):
            assert decode_condition(frame[:end]).stalled
        else:
            with pytest.raises(MalformedFrame):
                decode_condition(frame[:end])


def test_more_groups_than_can_be_named_are_those_with_less_damage() -> None:
    """The one past the limit is not sent, and would not be accepted."""
    many = tuple(range(GROUPS_MAX))
    condition = decode_condition(joined(encode_condition(Condition(incomplete=many, damaged=(9,)))))
    assert condition == Condition(incomplete=many)
    frame = bytes(joined(encode_condition(condition))) + bytes(8)
    with pytest.raises(MalformedFrame):
        decode_condition(memoryview(frame))


@pytest.mark.parametrize("payload", [b"", b"\0\0"])
def test_condition_of_another_shape_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_condition(memoryview(payload))


def test_range_of_a_compacted_log_says_how_far() -> None:
    """Other ranges are as before compaction existed, for peers without it."""
    asked = RangeRequest(5, 1, 7, 10, compacted=(9, 4))
    assert decode_range(joined(encode_range(asked))) == asked
    plain = joined(encode_range(RangeRequest(5, 1, 7, 10)))
    assert len(joined(encode_range(asked))) == len(plain) + 16
    with pytest.raises(MalformedFrame):
        decode_range(joined(encode_range(asked))[:-1])


@VERSIONS
def test_how_far_copies_are_compacted_is_told_to_who_understands(version: int) -> None:
    """Other peers get the frame that they know."""
    found = decode_answer(
        joined(encode_answer(RangeAnswer(5, 3, 9, ENTRIES, compacted_upto=8), version)), version
    )
    assert found.compacted_upto == (8 if version >= VERSION_OF_COMPACTED_COPIES else 0)
    assert [entry.index for entry in found.entries] == [7, 8, 9]
