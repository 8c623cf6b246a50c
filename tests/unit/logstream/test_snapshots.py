"""Snapshots as they travel and are kept."""

import random
from struct import pack

import cramjam
import pytest

from segments.api import INSTALLED_STATE_BYTES_MAX
from vdl.logstream.group.snapshots import (
    STATE_BYTES_MAX,
    DecodeError,
    Members,
    SnapshotWriter,
    decode_snapshot,
    encode_snapshot,
)

MEMBERS = Members(7, (1, 2, 3), learners=(4,))


def test_snapshot_is_what_was_encoded() -> None:
    """Members and items, whatever the buffer."""
    items = [(b"a", b"1"), (b"b", b"")]
    data = encode_snapshot(MEMBERS, items)
    for buffer in (data, bytearray(data), memoryview(data)):
        found = decode_snapshot(buffer)
        assert (found.members, found.items) == (MEMBERS, items)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_snapshot_in_pieces_is_read_as_one_that_was_made_at_once(count: int) -> None:
    """Whatever the version that reads it: what is decompressed are the same values."""
    items = [(number.to_bytes(4, "big"), b"v" * (number % 300)) for number in range(count)]
    writer = SnapshotWriter(MEMBERS, count)
    for start in range(0, count, 999):
        writer.add(items[start : start + 999])
    data = writer.finish()
    found = decode_snapshot(data)
    assert (found.members, found.items) == (MEMBERS, items)
    plain = bytearray(int.from_bytes(data[:4], "little"))
    assert cramjam.zstd.decompress_into(data[4:], plain) == len(plain)
    if count == 70_000:  # else the number of items takes fewer bytes
        at_once = encode_snapshot(MEMBERS, items)
        assert plain == bytes(cramjam.zstd.decompress(at_once[4:]))
        assert len(data) < len(at_once) * 1.1


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01\x00", pack("<I", STATE_BYTES_MAX + 1), pack("<I", 5) + b"no zstd frame"],
)
def test_snapshot_that_cannot_be_read_is_refused(data: bytes) -> None:
    """Cut short, larger than any may be, or not one at all."""
    with pytest.raises(DecodeError):
        decode_snapshot(data)


def test_snapshot_with_members_that_cannot_be_is_refused() -> None:
    """It would be kept, and no start would get past it."""
    data = encode_snapshot(Members(7, (1, 2, 3), learners=(3,)), [])
    with pytest.raises(DecodeError):
        decode_snapshot(data)


def test_snapshot_too_large_for_a_journal_record_is_refused() -> None:
    """A peer's may not be larger than what the store takes."""
    rng = random.Random(1)
    fits = encode_snapshot(MEMBERS, [(b"k", rng.randbytes(INSTALLED_STATE_BYTES_MAX - 4096))])
    assert len(fits) <= INSTALLED_STATE_BYTES_MAX
    assert decode_snapshot(fits).members == MEMBERS
    larger = encode_snapshot(MEMBERS, [(b"k", rng.randbytes(INSTALLED_STATE_BYTES_MAX))])
    with pytest.raises(DecodeError):
        decode_snapshot(larger)
