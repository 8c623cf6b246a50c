"""Snapshots as they travel and are kept."""

import random
from struct import pack

import pytest

from segments.api import INSTALLED_STATE_BYTES_MAX
from vdl.logstream.group.snapshots import (
    STATE_BYTES_MAX,
    DecodeError,
    Members,
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


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01\x00", pack("<I", STATE_BYTES_MAX + 1), pack("<I", 5) + b"no zstd frame"],
)
def test_snapshot_that_cannot_be_read_is_refused(data: bytes) -> None:
    """Cut short, larger than any may be, or not one at all."""
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
