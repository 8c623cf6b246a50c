"""Transaction marker of a partition: a control batch of one record (KIP-98).

```
key     version i16 (0), type i16: 0 abort, 1 commit
value   version i16 (0), coordinator epoch i32, and after these fields of Kafka's:
        the transaction's number i64
```

By the number a replica distinguishes the marker of an ended transaction from that of the next one
in the same epoch, however late it arrives and whichever replica leads by then. Clients read no
further than the fields they know.

Clients receive a marker like any other batch. It takes an offset, and no client shows it to its
user. It has its producer's id and epoch, and no sequence number.

Does not depend on logs, or on which transactions are open.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from vdl.records.batch import (
    CONTROL_FLAG,
    HEADER_BYTES,
    TRANSACTIONAL_FLAG,
    BatchFields,
    CorruptBatch,
    Record,
    build_batch,
    iter_records,
    read_header,
)

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_NUMBER = Struct(">q")
NO_NUMBER = 0
_AS_BUILT = Struct(">h4xq8xqhiiBBBBBhhBhi")
"""Fixed layout of a marker made by `build_marker`, from its attributes on.

Header: attributes, time, producer, epoch, sequence number, count. Record: its length, the bytes
before its key, key, and value up to the number.
"""
_AS_BUILT_FROM = 21
_UNNUMBERED_BYTES = HEADER_BYTES + 17
_NUMBERED_BYTES = _UNNUMBERED_BYTES + _NUMBER.size
_RECORD_BYTES = {_UNNUMBERED_BYTES: (32, 12), _NUMBERED_BYTES: (48, 28)}
"""Batch size → (encoded record length, encoded value length)."""
_VERSION = 0
_ABORT = 0
_COMMIT = 1


class Marker(NamedTuple):
    """Outcome of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    timestamp: int
    """ms since 1970, from the leader that appended it."""
    number: int = NO_NUMBER
    """Number of the transaction within its transactional id; 0 if unknown."""


def build_marker(marker: Marker) -> bytearray:
    """Build the batch, without its place in the log."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.commit else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    if marker.number != NO_NUMBER:
        value += _NUMBER.pack(marker.number)
    fields = BatchFields(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    return build_batch([Record(key, value, timestamp=marker.timestamp)], fields)


def read_marker(batch: memoryview) -> Marker | None:
    """Decode a control batch as a transaction marker; None if it is of another type.

    Raise CorruptBatch if it is invalid.
    """
    lengths = _RECORD_BYTES.get(len(batch))
    if lengths is not None:
        # Every replica reads every marker, so one with our fixed layout is decoded in one step.
        (
            attributes, time_ms, producer_id, epoch, _, count, record_bytes, zero1, zero2, zero3,
            key_bytes, _, kind, value_bytes, _, coordinator_epoch,
        ) = _AS_BUILT.unpack_from(batch, _AS_BUILT_FROM)  # fmt: skip
        if (
            attributes == CONTROL_FLAG | TRANSACTIONAL_FLAG
            and count == 1
            and (record_bytes, value_bytes) == lengths
            and key_bytes == _KEY.size << 1
            and not (zero1 | zero2 | zero3 | batch[-1])
            and kind in (_ABORT, _COMMIT)
        ):
            number = NO_NUMBER
            if len(batch) == _NUMBERED_BYTES:
                (number,) = _NUMBER.unpack_from(batch, _UNNUMBERED_BYTES - 1)
            return Marker(producer_id, epoch, coordinator_epoch, kind == _COMMIT, time_ms, number)
    return _read_any(batch)


def _read_any(batch: memoryview) -> Marker | None:
    header = read_header(batch)
    record = next(iter_records(batch), None)
    if record is None or record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("control record", len(batch))
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatch("marker", len(batch))
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    number = NO_NUMBER
    if len(record.value) >= _VALUE.size + _NUMBER.size:
        (number,) = _NUMBER.unpack_from(record.value, _VALUE.size)
    return Marker(
        header.producer_id,
        header.producer_epoch,
        coordinator_epoch,
        kind == _COMMIT,
        record.timestamp,
        number,
    )
