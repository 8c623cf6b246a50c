"""Reading of a range of offsets over the Kafka protocol into Arrow batches. Runs on executors.

A consumer of an unmodified librdkafka is assigned one partition, without a group. A range ends with
the record before `end`, or at the partition's end as the broker reports it: the last offsets of a
range may be control records or compacted away, and then no record has them.

An unreadable batch stops the reading at once (`BatchUnreadable`): librdkafka reports it again and
again, and the records that it returns after it are incomplete. If the records of a batch are
malformed, librdkafka reports nothing and waits; the range then makes no progress.

A range that makes no progress for `stall_seconds` fails instead of waiting forever, and the job
stops with the reason: at once with local cores, because Spark then tries a task once (four times
with `local[2,4]`), and after four failures of the task on a cluster.

Columns are made from lists that `map` fills from methods of C: no Python frame per record. Types
are exactly those that Spark expects (`binary`, never `large_binary`).

Does not depend on Spark or on the driver's side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from vdl.pipeline.errors import (
    BatchUnreadable,
    LogShrank,
    PipelineError,
    RowsGone,
    Stalled,
    unreadable_text,
)
from vdl.pipeline.positions import OffsetRange

BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
"""Limits on the records and, approximately, the bytes of one Arrow batch."""
FIRST_ROWS = 100
"""Limit on the first batch, when the size of records is not yet known."""
POLL_SECONDS = 0.5
QUEUE_KIBIBYTES = 64 << 10
"""Limit on memory for records that librdkafka has prefetched, per task."""
FETCH_BYTES = 4 << 20
WATERMARKS_SECONDS = 5.0
GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""Errors of librdkafka for an offset that the broker does not have; it then reads no further."""

BAD = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
"""Errors of librdkafka for a batch that it cannot read."""
BAD_SEEN = 3
"""Consecutive errors at one offset before it counts as unreadable.

A single error may come from a bit that flipped in transit.
"""

LOST = "they were removed before they were read, by retention or DeleteRecords"

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
"""Column → its Arrow type."""

DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Column → its type as Spark writes it."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


def read_range(
    wanted: OffsetRange,
    *,
    bootstrap: str,
    columns: Sequence[str],
    stall_seconds: float,
    isolation: str = "read_committed",
    client: Mapping[str, str] | None = None,
    allow_loss: bool = False,
    letters: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range.

    With `allow_loss` records that were removed are skipped; with `letters` one row stands for them.
    Raises RowsGone, LogShrank, Stalled, BatchUnreadable, or BatchDamaged if the CRC does not match.
    """
    consumer = Consumer(_settings(wanted, bootstrap, isolation, client or {}))
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        make = _Columns(wanted, columns)
        position, heard = wanted.start, clock()
        reason, bad_seen, batch_rows = "", 0, FIRST_ROWS
        while position < wanted.end:
            count = min(batch_rows, wanted.end - position)
            if bad_seen:
                count = BAD_SEEN - bad_seen  # wait no longer than needed to be sure
            messages = consumer.consume(count, timeout=POLL_SECONDS)
            records, problem = _split(messages)
            if records:
                heard, reason, bad_seen = clock(), "", 0
                position = int(records[-1].offset() or 0) + 1
                if position > wanted.end:
                    records = list(takewhile(lambda m: (m.offset() or 0) < wanted.end, records))
                if records:
                    made = make.batch(records)
                    # Records may be a thousand times as large as others.
                    fits = BATCH_BYTES * made.num_rows // max(1, made.nbytes)
                    batch_rows = max(1, min(BATCH_ROWS, fits))
                    yield made
            if problem is not None:
                if problem.code() == KafkaError._PARTITION_EOF:
                    if _end_of(messages) >= wanted.end:
                        return
                    continue  # The follower of a new leader: the missing records will follow.
                reason = str(problem)
                errors = [e for m in messages if (e := m.error()) is not None]
                bad_seen += sum(error.code() in BAD for error in errors)
                if bad_seen >= BAD_SEEN:
                    raise _unreadable(wanted, position, problem)
                if problem.code() in GONE:
                    gone = position
                    position = _first_left(consumer, wanted, position, allow_loss=allow_loss)
                    if letters and position > gone:
                        end = min(position, wanted.end)
                        lost = OffsetRange(wanted.topic, wanted.partition, gone, end)
                        yield letter(lost, LOST, columns)
                    consumer.assign([TopicPartition(wanted.topic, wanted.partition, position)])
            if clock() - heard > stall_seconds:
                raise Stalled(
                    wanted.topic, wanted.partition,
                    offset=position, end=wanted.end, seconds=stall_seconds, reason=reason,
                )  # fmt: skip
    finally:
        consumer.close()


class BatchDamaged(PipelineError):
    """Batch that differs from the one its producer sent.

    Another replica of it may be intact, so it must not be skipped.
    """


def _unreadable(wanted: OffsetRange, position: int, problem: KafkaError) -> PipelineError:
    # librdkafka has one code for a wrong CRC and for a batch that it cannot parse.
    if problem.code() == KafkaError._BAD_MSG and "CRC" in problem.str():
        return BatchDamaged(f"{wanted.topic}/{wanted.partition} at {position}: {problem.str()}")
    return BatchUnreadable(
        wanted.topic, wanted.partition, start=position, end=-1, reason=problem.str()
    )


def letter(
    wanted: OffsetRange, reason: str, columns: Sequence[str], data: bytes = b""
) -> pa.RecordBatch:
    """Return a row that stands for a range without readable records, at its first offset.

    Its only header has the reason as its value and no name, which is impossible in a record of
    Kafka.
    """
    row = {
        "value": data or None,
        "topic": wanted.topic,
        "partition": wanted.partition,
        "offset": wanted.start,
    }
    return named_row(row, unreadable_text(wanted.start, wanted.end, reason), columns)


def named_row(row: Mapping[str, Any], told: str, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a row that is not a record; its only header has no name and the value `told`."""
    whole = {**row, "timestampType": 0, "headers": [{"key": None, "value": told.encode()}]}
    schema = schema_of(columns)
    return pa.RecordBatch.from_pylist([{n: whole.get(n) for n in columns}], schema=schema)


def _settings(
    wanted: OffsetRange, bootstrap: str, isolation: str, client: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "fetch.message.max.bytes": FETCH_BYTES,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
        "queued.max.messages.kbytes": QUEUE_KIBIBYTES,
        # Records fetched beyond the range are discarded.
        "queued.min.messages": max(1, min(100_000, wanted.count)),
        "check.crcs": True,
        "log_level": 0,
        **client,
        "bootstrap.servers": bootstrap,
        "group.id": "vdl-pipeline-read",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": isolation,
    }


def _split(messages: list[Message]) -> tuple[list[Message], KafkaError | None]:
    """Return (the records, the last error message or None)."""
    if not messages:
        return [], None
    if messages[-1].error() is None and not any(map(Message.error, messages)):
        return messages, None
    problem: KafkaError | None = None
    records: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        else:
            problem = error
    return records, problem


def _end_of(messages: list[Message]) -> int:
    """Return the offset that the broker reported as the partition's end, or -1."""
    ends = [
        int(m.offset() or 0)
        for m in messages
        if (error := m.error()) is not None and error.code() == KafkaError._PARTITION_EOF
    ]
    return max(ends, default=-1)


def _first_left(consumer: Consumer, wanted: OffsetRange, position: int, *, allow_loss: bool) -> int:
    """Return the position at which to continue after a broker reported `position` as out of range.

    With `allow_loss` it is the first offset that retention has left. It is `position` again if the
    log has it after all or cannot be queried. Raises RowsGone, LogShrank.
    """
    where = TopicPartition(wanted.topic, wanted.partition)
    try:
        first, end = consumer.get_watermark_offsets(where, timeout=WATERMARKS_SECONDS)
    except KafkaException:
        return position
    if position > end:
        raise LogShrank(wanted.topic, wanted.partition, known=position, end=end)
    if position < first and not allow_loss:
        raise RowsGone(wanted.topic, wanted.partition, wanted=position, first=first)
    return max(position, first)


class _Columns:
    """Builder of batches of the requested columns."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str]) -> None:
        self._wanted = wanted
        self._schema = schema_of(columns)

    def batch(self, records: list[Message]) -> pa.RecordBatch:
        arrays = [self._array(name, records) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, records: list[Message]) -> pa.Array:
        count, kind = len(records), TYPES[name]
        match name:
            case "key":
                return pa.array(map(Message.key, records), kind, size=count)
            case "value":
                return pa.array(map(Message.value, records), kind, size=count)
            case "offset":
                return pa.array(map(Message.offset, records), kind, size=count)
            case "topic":
                return constant(self._wanted.topic, kind, count)
            case "partition":
                return constant(self._wanted.partition, kind, count)
            case "timestamp":
                times = [m.timestamp() for m in records]
                micros = [None if t[0] == 0 else t[1] * 1000 for t in times]
                return pa.array(micros, pa.int64()).cast(kind)
            case "timestampType":
                # librdkafka counts from "none"; Kafka and Spark have 0 for CreateTime.
                return pa.array([m.timestamp()[0] - 1 for m in records], kind)
            case _:
                return headers_array(list(map(Message.headers, records)))


def constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of `count` equal values."""
    return pa.repeat(pa.scalar(value, kind), count)


def headers_array(headers: Sequence[Any]) -> pa.Array:
    """Return lists of (name, value), or None, as the column `headers`; NULL for empty lists."""
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
    rows = [
        [{"key": name, "value": value} for name, value in found] if found else None
        for found in headers
    ]
    return pa.array(rows, HEADERS)
