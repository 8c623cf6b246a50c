"""Transaction markers: the bytes that Kafka's clients know."""

from collections.abc import Callable

import pytest

from vdl.records import markers
from vdl.records.batch import (
    BatchFields,
    CorruptBatch,
    Record,
    build_batch,
    crc_matches,
    iter_records,
    read_header,
)
from vdl.records.markers import Marker, build_marker, read_marker


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_a_control_batch_of_one_record(commit: bool) -> None:
    """KIP-98: the key is version 0 and a type, the value version 0 and the coordinator's epoch."""
    marker = Marker(9, 3, 258, commit, 1_700_000_000_000)
    batch = memoryview(build_marker(marker))
    header = read_header(batch)
    assert crc_matches(batch)
    assert (header.is_control, header.is_transactional, header.count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    key = bytes([0, 0, 0, int(commit)])
    assert bytes(batch[-17:]) == bytes([32, 0, 0, 0, 8]) + key + bytes([12, 0, 0, 0, 0, 1, 2, 0])
    assert read_marker(batch) == marker


def test_number_of_a_transaction_stands_behind_what_clients_read() -> None:
    """Kafka's fields keep their positions."""
    marker = Marker(9, 3, 258, True, 1_700_000_000_000, 1 << 40)
    batch = memoryview(build_marker(marker))
    assert read_marker(batch) == marker
    record = next(iter_records(batch))
    assert bytes(record.value or b"") == bytes([0, 0, 0, 0, 1, 2]) + (1 << 40).to_bytes(8)


def test_control_batch_about_something_else_is_no_marker() -> None:
    fields = BatchFields(is_control=True)
    batch = build_batch([Record(bytes([0, 0, 0, 2]), b"leader", timestamp=1)], fields)
    assert read_marker(memoryview(batch)) is None
    short = build_batch([Record(b"x", b"", timestamp=1)], fields)
    with pytest.raises(CorruptBatch):
        read_marker(memoryview(short))


@pytest.mark.parametrize("number", [0, 7])
def test_marker_is_read_alike_as_a_whole_and_record_by_record(number: int) -> None:
    """Holds for a difference in any byte from how markers are built."""

    def outcome(read: Callable[[memoryview], Marker | None], batch: bytearray) -> object:
        try:
            return read(memoryview(batch))
        except CorruptBatch:
            return CorruptBatch

    batch = build_marker(Marker(9, 3, 258, True, 1_700_000_000_000, number))
    for position in range(21, len(batch)):
        for change in (1, 2, 64, 128):
            changed = bytearray(batch)
            changed[position] ^= change
            assert outcome(read_marker, changed) == outcome(markers._read_any, changed)
