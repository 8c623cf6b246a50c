"""Bytes on disk, fixed: a change here is a change of format and needs a new version."""

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from segments.api import (
    CorruptRecord,
    HardState,
    MetaBatch,
    SegmentLimits,
    StorageError,
    StoredEntry,
)
from segments.boots import Boot
from segments.directory import identity
from segments.format import block
from segments.format.frame import read_frame
from segments.log import index, segment_header
from segments.log.log import Batch, DiskLog
from segments.log.placement import Placement, Room
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo
from segments.log.tail_cache import TailCache
from segments.meta.file import Meta

FRAME = (
    "846bce77050000000900000003000000000100000200000007000000000000006400000000000000"
    "b168de3a00000000"
)
BLOCK = (
    "56444c426b69c658887766554433221100200000000000000010000000000000b500000002000000"
    "feca0000000000000000000000000000000000000000000004000000000000000100000003000000"
    "070000000000000035000000846bce77040000000100000002000000030000000700000000000000"
    "0000000000010000"
)
IDX = "6400000000000000b168de3a0000000040000000350000000100000003000000020000000000b835"
SEGMENT = (
    "56444c534547303130ed60120300000004000000000000000900000000000000f401000000000000"
    "282300000000000000000000000000000000000000000000"
)
IDENTITY = (
    "56444c49444e543315173f37d2000000000102030405060708090a0b0c0d0e0f0600000002000000"
    "06000000020000007265636f72640200000009000000010000000000000001000000000000000000"
    "0000000000000000000000000000050000000000000003000000010000000b000000000000004600"
    "0000000000000400000000000000030000000200000001000000000000004d000000000000008813"
    "00000000000002000000000000005800000000000000ffffffffffffffff01000000101112131415"
    "161718191a1b1c1d1e1f"
)
IDENTITY_1 = (
    "56444c49444e543136410f2d86000000000102030405060708090a0b0c0d0e0f0600000002000000"
    "06000000000000007265636f72640200000009000000010000000000000001000000000000000000"
    "0000000000000000000000000000050000000000000003000000010000000b000000000000004600"
    "0000000000000400000000000000"
)


def staged():
    """Return (log, batch) with one entry staged into the batch."""
    files = LogFiles(None, "nowhere", 4, 9, 64)
    log = DiskLog(files, 1, TailCache(1 << 20), first_index=7, prev_term=2, next_offset=100)
    batch = Batch(1)
    log.stage([StoredEntry(3, 7, 0, b"hello", 100, 2, 987654321)], batch)
    return log, batch


def test_frame_bytes_are_as_documented():
    """48-byte header, payload, CRC over all but itself."""
    _, batch = staged()
    frame = bytes(batch.buffers[0])
    assert frame.hex() == FRAME + b"hello".hex()
    entry = read_frame(memoryview(frame), 0, 9, 0)
    assert (entry.term, entry.index, entry.kind, bytes(entry.data)) == (3, 7, 0, b"hello")
    assert (entry.base_offset, entry.records, entry.timestamp) == (100, 2, 987654321)


def test_frame_with_any_bit_flipped_is_refused():
    """Every bit of a frame is covered."""
    _, batch = staged()
    frame = bytes(batch.buffers[0])
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            read_frame(memoryview(damaged), 0, 9, 0)


def test_block_with_any_bit_of_header_or_table_flipped_is_refused():
    """The block's CRC covers header and table, chained from the previous block."""
    log, batch = staged()
    log.stage_hard(HardState(3, 1 << 40, 7), batch)
    head, crc = block.encode_block(
        salt=0x1122334455667788, lsn=8192, durable=4096, chain=0xCAFE, flags=0,
        table=b"".join(batch.records), frames_bytes=batch.bytes,
    )  # fmt: skip
    assert head.hex() == BLOCK
    assert block.block_bytes(head[:64], salt=0x1122334455667788, lsn=8192) == len(head)
    found = block.decode_block(head, 4096)
    assert found is not None
    assert (found.crc, found.chain, found.durable, found.length) == (crc, 0xCAFE, 4096, 181)
    for bit in range(32, len(head) * 8):
        damaged = bytearray(head)
        damaged[bit // 8] ^= 1 << bit % 8
        size = block.block_bytes(bytes(damaged[:64]), salt=0x1122334455667788, lsn=8192)
        assert size == 0 or block.decode_block(bytes(damaged), 4096) is None, bit


def test_file_header_round_trips_and_refuses_damage():
    """Marks carry the state of every log."""
    log, _ = staged()
    header = block.FileHeader(5, 77, 1 << 33, 4, 99, [log.mark(), log.mark()])
    data = block.encode_file_header(header)
    assert len(data) == block.file_header_bytes(2) == 8192
    assert data[:8] == b"VDLJRNL2"
    assert data[:4096] == data[4096:]  # with one page the parity is a copy
    old = b"VDLJRNL1" + data[8:4096]
    assert block.decode_file_header(old).bytes == 4096
    found = block.decode_file_header(data)
    assert found is not None
    assert (found.sequence, found.salt, found.start_lsn) == (5, 77, 1 << 33)
    assert (found.previous, found.chain, found.marks) == (4, 99, header.marks)
    for bit in range(0, 240 * 8, 7):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert block.decode_file_header(bytes(damaged)) is None, bit


def test_idx_bytes_are_as_documented_and_zeros_fail():
    """40 bytes; the check is seeded by entry and log, so a misplaced Idx fails too."""
    out = bytearray(40)
    index.pack_idx(out, 0, 4, 7, 100, 987654321, 64, 53, 1, 3, 2, 0)
    assert out.hex() == IDX
    assert index.read_idx(bytes(out), 0, 4, 7).base_offset == 100
    for log_id, entry in ((4, 8), (5, 7)):
        with pytest.raises(CorruptRecord):
            index.read_idx(bytes(out), 0, log_id, entry)
    for entry in range(1, 100_000, 17):
        with pytest.raises(CorruptRecord):
            index.read_idx(bytes(40), 0, 4, entry)


def test_idx_place_is_arithmetic():
    """Entry X in index file X // M at 64 + X % M * 40."""
    assert index.place(0, 100) == (0, 64)
    assert index.place(99, 100) == (0, 64 + 99 * 40)
    assert index.place(100, 100) == (1, 64)


def test_segment_header_round_trips_and_refuses_damage():
    """64 bytes, its own CRC, and its log."""
    data = segment_header.encode_segment_header(SegmentInfo(3, 500, 9000), 4, 9)
    assert data.hex() == SEGMENT
    assert segment_header.decode_segment_header(data, 4) == SegmentInfo(3, 500, 9000)
    with pytest.raises(CorruptRecord):
        segment_header.decode_segment_header(data, 5)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            segment_header.decode_segment_header(bytes(damaged), 4)


def test_identity_round_trips_and_refuses_damage():
    """Cluster record, directory id, logs, server and boots, under one CRC."""
    made = identity.Identity(
        bytes(range(16)), b"record", 6, has_places=True, server_id=3,
        boots=[Boot(1, 77, 5000), Boot(2, 88)], former_ids=[bytes(range(16, 32))],
    )  # fmt: skip
    made.logs[2] = identity.LogIdentity(2, 9, 1, 1, 0, 0)
    made.logs[5] = identity.LogIdentity(5, 0, 3, 11, 70, 4, lost=True)
    data = identity.encode(made)
    half = bytes.fromhex(IDENTITY)
    assert data == 2 * (half + bytes(4096 - len(half)))
    assert identity.decode(data) == made
    assert identity.decode(half) == made
    for bit in range(len(half) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            identity.decode(bytes(damaged[: len(half)]))
        found = identity.decode(bytes(damaged))
        assert found.is_half_damaged
        assert found == replace(made, is_half_damaged=True)
        damaged[4096 + 20] ^= 1
        with pytest.raises(CorruptRecord):
            identity.decode(bytes(damaged))


@pytest.mark.parametrize("halves", [1, 2])
def test_identity_of_the_forms_before_is_read(halves):
    """Earlier identity formats name no server and no boots.

    The second one's magic has the meaning of a flag now.
    """
    half = bytes.fromhex(IDENTITY_1)
    data = half if halves == 1 else 2 * (half + bytes(4096 - len(half)))
    found = identity.decode(data)
    assert (found.server_id, found.boots, found.has_places) == (0, [], False)
    assert (found.cluster_record, sorted(found.logs), found.next_log_id) == (b"record", [2, 5], 6)
    assert identity.decode(data.replace(b"VDLIDNT1", b"VDLIDNT2")).has_places


def test_identity_that_is_begun_says_so():
    """An identity is marked as incomplete until the first start has created everything else."""
    data = identity.encode(identity.Identity(bytes(16), is_whole=False))
    assert data[44:48] == bytes((1, 0, 0, 0))
    assert not identity.decode(data).is_whole


@pytest.mark.parametrize("count", [0, 1, 45, 46, 200])
def test_file_header_follows_from_its_other_pages(count):
    """Any one page may be wrong, also the one with the number of pages; not two."""
    log, _ = staged()
    marks = [replace(log.mark(), log_id=n, commit=n * 7919) for n in range(count)]
    header = block.FileHeader(5, 77, 1 << 33, 4, 99, marks, replaced=512)
    data = block.encode_file_header(header)
    header = block.decode_file_header(data)
    reach = data + b"\xa5" * 3 * 4096
    for page in range(0, len(data), 4096):
        for wrong in (
            bytes(4096),
            b"\xff" * 4096,
            bytes((data[page] ^ 4,)) + data[page + 1 :][:4095],
        ):
            damaged = reach[:page] + wrong + reach[page + 4096 :]
            found = block.mend_file_header(damaged, 5)
            if page + 4096 < len(data):
                assert found == header
            assert found is None or found == header
            assert block.mend_file_header(damaged, 6) is None
    both = bytearray(reach)
    both[30] ^= 1
    both[len(data) - 4096 + 31] ^= 1
    assert block.mend_file_header(bytes(both), 5) is None


INSTALL_RECORD = "04000000010000000700000002000000090000000000000035000000d8f6e5ff"
STATE_RECORD = "04000000020000000800000002000000090000000000000035000000d8f6e5ff"


def test_install_record_and_frame_are_as_documented():
    """The reset's index, its next offset and its state are in one frame; STATE repeats it."""
    log, batch = staged()
    batch.records.clear()
    batch.buffers.clear()
    log.reset(9, 2, 500, b"state", batch)
    log.install_sequence = 3
    log.restage(3, batch, with_tail=True)
    assert [record.hex() for record in batch.records] == [INSTALL_RECORD, STATE_RECORD]
    frame = b"".join(batch.buffers[:2])
    assert frame == b"".join(batch.buffers[2:])
    entry = read_frame(memoryview(frame), 0, 9, 0)
    assert (entry.term, entry.index, entry.base_offset) == (2, 9, 500)
    assert (entry.timestamp, entry.records, entry.kind) == (1, 0, 0)
    assert bytes(entry.data) == b"state"


META = {
    "0000000076": "010000007fe12295",
    "0000000461": "0800000000000000010000000000000057a8c78eff2c30b689a9d1a2",
    "000000046b6b6579": "bb31e3df03006b657976616c7565",
    "0000000472": "09000000000000000100000000000000ff69a1b6",
}


class Kept:
    """A meta file in memory."""

    def __init__(self):
        self.items = {}

    def get(self, key):
        return self.items.get(key)

    def get_all(self, keys):
        return [self.items.get(key) for key in keys]

    def scan(self, prefix):
        return sorted(item for item in self.items.items() if item[0].startswith(prefix))

    def sync(self):
        """Do nothing: the contents are in memory."""

    def commit(self, puts):
        self.items |= dict(puts)

    def exists(self, path):
        return False

    def open_meta(self, path, map_bytes, checks):
        return self


def test_meta_items_are_as_documented():
    """Version, applied index with count and digest, the covered reset, sealed items."""
    kept = Kept()
    meta = Meta(kept, "meta", 1)
    log, batch = staged()
    log.reset(9, 2, 500, b"state", batch)
    meta.commit([MetaBatch(4, 8, [(b"key", b"value")], clear=True)], {4: log.install})
    assert {k.hex(): v.hex() for k, v in kept.items.items()} == META
    assert meta.covers(4, log.install)
    kept.items[bytes(4) + b"v"] = struct.pack("<II", 2, crc32c(struct.pack("<I", 2)))
    with pytest.raises(StorageError, match="version 2"):
        Meta(kept, "meta", 1)


PLACE_RECORD = "040000000000000009000000020000000700000000000000c801000000000000"
DETAIL_RECORD = "04000000010000000a030000020000006400000000000000b168de3a00000000"
PLACED_RECORD = "04000000020000000b00000003000000070000000000000035000000938f8d73"


def test_records_of_a_placed_entry_are_as_documented():
    """A placed entry's records hold its position, its Idx's fields and its checksum, no frame."""
    files = LogFiles(None, "nowhere", 4, 9, 64)
    log = DiskLog(files, 1, TailCache(1 << 20), first_index=7, prev_term=2, next_offset=100)
    log.has_scrap = False
    log.segments = (SegmentInfo(2, 1, 0),)
    log.cursor.segment, log.cursor.position = 2, 456
    log.placement = Placement(6, 6, 2, 456, -1, rooms={2: Room(None, 4096)})
    batch = Batch(1)
    entry = StoredEntry(3, 7, 3, b"hello", 100, 2, 987654321)
    log.stage([entry], batch, place_bytes_min=1, limits=SegmentLimits(1 << 20))
    assert [record.hex() for record in batch.records] == [
        PLACE_RECORD, DETAIL_RECORD, PLACED_RECORD,
    ]  # fmt: skip
    assert (batch.buffers, batch.bytes, len(batch.payloads)) == ([], 0, 1)
    (payload,) = batch.payloads
    assert (payload.position, payload.bytes) == (456, 53)
    found = read_frame(memoryview(b"".join(payload.buffers)), 0, 9, 0)
    assert (found.index, found.kind, bytes(found.data)) == (7, 3, b"hello")
