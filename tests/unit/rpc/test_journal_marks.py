"""Frames by which servers exchange marks of their journals."""

import pytest

from ids import DirectoryId
from rpc.errors import MalformedFrame
from rpc.hello import INFO_BYTES_MAX
from rpc.journal_marks import (
    BOOTS_MAX,
    BootRow,
    Remembered,
    decode_boots,
    decode_journal,
    decode_remembered,
    encode_boots,
    encode_journal,
    encode_remembered,
)
from rpc.peer import FrameType
from segments import boots

ROWS = [BootRow(3, 7, 500), BootRow(4, (1 << 64) - 1, boots.GOES_ON)]


def test_boots_round_trip_byte_by_byte() -> None:
    """24 bytes each, oldest first; HELLO has room for the maximum number."""
    data = encode_boots(ROWS)
    assert data.hex() == (
        "03000000000000000700000000000000f401000000000000"
        "0400000000000000ffffffffffffffffffffffffffffffff"
    )
    assert decode_boots(data) == ROWS
    assert decode_boots(b"") == []
    assert BOOTS_MAX == boots.BOOTS_MAX
    most = [BootRow(n + 1, n, n) for n in range(BOOTS_MAX)]
    assert decode_boots(encode_boots(most)) == most
    assert len(encode_boots(most)) <= INFO_BYTES_MAX


@pytest.mark.parametrize(
    "info",
    [
        b"\x01",
        encode_boots(ROWS)[:-1],
        encode_boots(ROWS[::-1]),
        encode_boots([ROWS[0], ROWS[0]]),
        encode_boots([BootRow(0, 1, 1)]),
        b"".join(encode_boots([BootRow(n + 1, 0, 0)]) for n in range(BOOTS_MAX + 1)),
    ],
)
def test_boots_that_cannot_be_are_malformed(info: bytes) -> None:
    """Rows that are truncated, too many, or not in ascending order."""
    with pytest.raises(MalformedFrame):
        decode_boots(info)


def test_journal_and_remembered_round_trip_byte_by_byte() -> None:
    """The frames have fixed numbers on the wire."""
    (journal,) = encode_journal(1 << 40)
    assert bytes(journal).hex() == "0000000000010000"
    assert decode_journal(memoryview(journal)) == 1 << 40
    remembered = Remembered(DirectoryId(bytes(range(16))), 5, 6, 7)
    (data,) = encode_remembered(remembered)
    assert bytes(data).hex() == (
        "000102030405060708090a0b0c0d0e0f050000000000000006000000000000000700000000000000"
    )
    assert decode_remembered(memoryview(data)) == remembered
    assert (FrameType.JOURNAL, FrameType.REMEMBERED) == (23, 24)
    for decode, payload in ((decode_journal, journal), (decode_remembered, data)):
        for wrong in (b"", bytes(payload)[:-1], bytes(payload) + b"\0"):
            with pytest.raises(MalformedFrame):
                decode(memoryview(wrong))
