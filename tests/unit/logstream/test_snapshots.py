"""Snapshots as they are sent and stored."""

import random
from struct import pack

import cramjam
import pytest

from vdl.logstream.group import snapshots
from vdl.logstream.group.snapshots import (
    PART_BYTES,
    SNAPSHOT_BYTES_MAX,
    STATE_BYTES_MAX,
    DecodeError,
    Items,
    Members,
    PartsWriter,
    SnapshotWriter,
    decode_snapshot,
    encode_snapshot,
    open_snapshot,
)

MEMBERS = Members(7, (1, 2, 3), learners=(4,))


def test_snapshot_is_what_was_encoded() -> None:
    """Members and items are equal, for any type of buffer."""
    items = [(b"a", b"1"), (b"b", b"")]
    data = encode_snapshot(MEMBERS, items)
    for buffer in (data, bytearray(data), memoryview(data)):
        found = decode_snapshot(buffer)
        assert (found.members, found.items) == (MEMBERS, items)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_snapshot_in_pieces_is_read_as_one_that_was_made_at_once(count: int) -> None:
    """By any version: the decompressed values are the same."""
    items = [(number.to_bytes(4, "big"), b"v" * (number % 300)) for number in range(count)]
    writer = SnapshotWriter(MEMBERS, count)
    for start in range(0, count, 999):
        writer.add(items[start : start + 999])
    data = writer.finish()
    found = decode_snapshot(data)
    assert (found.members, found.items) == (MEMBERS, items)
    plain = bytearray(int.from_bytes(data[:4], "little"))
    assert cramjam.zstd.decompress_into(data[4:], plain) == len(plain)
    if count == 70_000:  # otherwise the number of items takes fewer bytes
        at_once = encode_snapshot(MEMBERS, items)
        assert plain == bytes(cramjam.zstd.decompress(at_once[4:]))
        assert len(data) < len(at_once) * 1.1


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01\x00", pack("<I", STATE_BYTES_MAX + 1), pack("<I", 5) + b"no zstd frame"],
)
def test_snapshot_that_cannot_be_read_is_refused(data: bytes) -> None:
    """Cut short, too large, or no snapshot at all."""
    with pytest.raises(DecodeError):
        decode_snapshot(data)


def test_snapshot_with_members_that_cannot_be_is_refused() -> None:
    """It would be stored, and every start would fail on it."""
    data = encode_snapshot(Members(7, (1, 2, 3), learners=(3,)), [])
    with pytest.raises(DecodeError):
        decode_snapshot(data)


def test_snapshot_too_large_for_a_journal_record_is_refused() -> None:
    """A peer's snapshot may not be larger than the store's limit."""
    rng = random.Random(1)
    fits = encode_snapshot(MEMBERS, [(b"k", rng.randbytes(SNAPSHOT_BYTES_MAX - 4096))])
    assert len(fits) <= SNAPSHOT_BYTES_MAX
    assert decode_snapshot(fits).members == MEMBERS
    larger = encode_snapshot(MEMBERS, [(b"k", rng.randbytes(SNAPSHOT_BYTES_MAX))])
    with pytest.raises(DecodeError):
        decode_snapshot(larger)


def in_parts(items: Items) -> bytes:
    writer = PartsWriter(MEMBERS, len(items))
    for start in range(0, len(items), 777):
        writer.add(items[start : start + 777])
    return writer.finish()


@pytest.mark.parametrize("count", [0, 1, 4_000, 30_000])
def test_snapshot_in_parts_is_read_a_piece_at_a_time(count: int) -> None:
    """No piece is larger than a part may be; reading it at once gives the same."""
    items = [(number.to_bytes(4, "big"), b"v" * (number % 300)) for number in range(count)]
    data = in_parts(items)
    opened = open_snapshot(data)
    assert (opened.members, opened.is_in_parts, opened.count) == (MEMBERS, True, count)
    pieces = list(opened.pieces)
    assert [item for piece in pieces for item in piece] == items
    assert all(sum(len(k) + len(v) for k, v in piece) < PART_BYTES + 304 for piece in pieces)
    assert len(pieces) >= count * 150 // PART_BYTES
    found = decode_snapshot(memoryview(data))
    assert (found.members, found.items) == (MEMBERS, items)


def test_snapshot_in_one_piece_is_opened_as_one() -> None:
    """From peers whose states are small, or whose version does not know parts."""
    items = [(b"a", b"1"), (b"b", b"")]
    opened = open_snapshot(encode_snapshot(MEMBERS, items))
    assert (opened.members, opened.is_in_parts, opened.count) == (MEMBERS, False, 2)
    assert list(opened.pieces) == [items]


def test_snapshot_in_parts_means_nothing_to_a_version_that_does_not_know_them() -> None:
    """That version reads a plain length of 0, and refuses data that are no zstd frame."""
    data = in_parts([(b"a", b"1")])
    assert data[:4] == bytes(4)
    with pytest.raises(cramjam.DecompressionError):
        cramjam.zstd.decompress_into(memoryview(data)[4:], bytearray())


def test_snapshot_in_parts_that_is_not_laid_out_as_one_is_refused() -> None:
    """Before any of it is taken.

    Data cut short except between parts, a part that is too long, impossible members. A part that is
    no zstd frame is found when it is read.
    """
    items = [(bytes([number]), random.Random(number).randbytes(PART_BYTES)) for number in range(3)]
    data = in_parts(items)
    head = 12 + int.from_bytes(data[8:12], "little")
    whole = {head}
    at = head
    while at < len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "little")
        whole.add(at)
    for end in {*range(1, head + 20), *range(0, len(data), 9_973)} - whole:
        with pytest.raises(DecodeError):
            open_snapshot(data[:end])
    spoiled = bytearray(data)
    spoiled[head + 4 : head + 8] = pack("<I", STATE_BYTES_MAX + 1)
    with pytest.raises(DecodeError):
        open_snapshot(spoiled)
    spoiled = bytearray(data)
    spoiled[head + 8 : head + 12] = bytes(4)
    with pytest.raises(DecodeError):
        list(open_snapshot(spoiled).pieces)
    bad = PartsWriter(Members(7, (1, 2, 3), learners=(3,)), 0).finish()
    with pytest.raises(DecodeError):
        open_snapshot(bad)


def test_snapshot_in_parts_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the store's."""
    data = in_parts([(b"a", b"1")])
    monkeypatch.setattr(snapshots, "PARTS_BYTES_MAX", len(data))
    open_snapshot(data)
    monkeypatch.setattr(snapshots, "PARTS_BYTES_MAX", len(data) - 1)
    with pytest.raises(DecodeError):
        open_snapshot(data)
