"""Batches with a valid CRC and unreadable contents: named by their offsets, never skipped silently.

A server refuses such batches, so this one is configured not to check them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from confluent_kafka import KafkaError

from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.test_reading import create, topics_of
from tests.wire import AnyApiClient
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.pipeline.decode import range_end
from vdl.pipeline.errors import BatchUnreadable, unreadable_text
from vdl.pipeline.options import parse
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.read import BatchDamaged, _unreadable
from vdl.pipeline.source import read_broker
from vdl.records.batch import HEADER_BYTES, BatchFields, Record, build_batch, seal
from vdl.records.compression import Compression

LENIENT = """
from vdl.kafka.partitions.record_checks import RecordChecks
RecordChecks.check = lambda self, batch, header, bounds, wanted=None: header.max_timestamp
"""
PRODUCE_KEY = 0
GOOD, BAD = 3, 40
LAST_DELTA, COUNT = slice(23, 27), slice(57, 61)
KINDS = ("length", "field", "count", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    folder = tmp_path_factory.mktemp("lenient")
    (folder / "sitecustomize.py").write_text(LENIENT, encoding="utf-8")
    servers = ReplicaSet(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        servers.up()
    try:
        yield servers
    finally:
        servers.close()


def batch_of(count: int, name: str = "NONE") -> bytearray:
    records = [Record(value=b'{"n":%d}' % n, timestamp=1000) for n in range(count)]
    return build_batch(records, BatchFields(compression=Compression[name]))


def garbage(kind: str) -> bytearray:
    """Return BAD unreadable offsets with a recomputed CRC."""
    if kind.upper() in Compression.__members__:
        batch = batch_of(BAD, kind.upper())
        for n in range(HEADER_BYTES + 2, len(batch)):
            batch[n] ^= 0x55
    else:
        batch = batch_of(BAD)
        if kind == "length":
            batch[HEADER_BYTES] = 0x7E
        elif kind == "field":
            batch[HEADER_BYTES + 4] = 0x7E
        else:
            batch = batch_of(BAD - 5)
            batch[LAST_DELTA] = (BAD - 1).to_bytes(4)
            batch[COUNT] = BAD.to_bytes(4)
    seal(batch)
    return batch


def filled(servers: ReplicaSet, topic: str, kind: str) -> str:
    """Create a topic of GOOD records, BAD offsets of garbage, GOOD records and garbage again."""
    create(servers.bootstrap, topic, partitions=1)
    with closing(topics_of(servers.bootstrap, topic)) as topics:
        topic_id = base64.urlsafe_b64decode(topics.ids()[topic][0] + "==")
    host, port = servers.bootstrap.split(":")
    with AnyApiClient(host, int(port)) as client:
        for batch in (batch_of(GOOD), garbage(kind), batch_of(GOOD), garbage(kind)):
            rows = [PartitionProduceData(index=0, records=memoryview(batch))]
            told = [TopicProduceData(name=topic, topic_id=topic_id, partition_data=rows)]
            request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=told)
            answer = client.request(PRODUCE_KEY, request)
            assert answer.responses[0].partition_responses[0].error_code == 0
    return topic


def rows_of(servers: ReplicaSet, topic: str, end: int, **more: str) -> list[dict[str, Any]]:
    given = {"bootstrap": servers.bootstrap, "topics": topic, "headers": "true", **more}
    return [
        row
        for batch in read_broker(OffsetRange(topic, 0, 0, end), parse(given))
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_is_one_letter_of_its_offsets(lenient: ReplicaSet, kind: str) -> None:
    """The records around it are read, each once, to the end of the range."""
    topic = filled(lenient, f"letters-{kind}", kind)
    end = 2 * (GOOD + BAD)
    found = rows_of(lenient, topic, end, unreadable="letter")
    records = [row for row in found if row["headers"] is None]
    assert [row["offset"] for row in records] == [0, 1, 2, 43, 44, 45]
    letters = [row for row in found if row["headers"] is not None]
    assert [row["offset"] for row in letters] == [GOOD, 2 * GOOD + BAD]
    for row in letters:
        ((header,), start) = row["headers"], row["offset"]
        assert header["key"] is None
        assert range_end(header["value"].decode()) == start + BAD
        assert len(row["value"]) > HEADER_BYTES


@pytest.mark.parametrize("kind", ["field", "zstd"])
def test_garbage_stops_a_reader_that_wants_no_letters(lenient: ReplicaSet, kind: str) -> None:
    """It stops at once, with the offsets and the reason."""
    topic = filled(lenient, f"stops-{kind}", kind)
    with pytest.raises(BatchUnreadable, match=rf"stops-{kind}/0: offsets \[3, 43\): ") as stopped:
        rows_of(lenient, topic, 2 * (GOOD + BAD))
    assert (stopped.value.start, stopped.value.end) == (GOOD, GOOD + BAD)


def test_garbage_that_only_a_library_reads_is_found_out(lenient: ReplicaSet) -> None:
    """It reports the offset at which it cannot continue, but not the end of the batch."""
    topic = filled(lenient, "library", "zstd")
    settings = {"client.check.crcs": "true"}
    with pytest.raises(BatchUnreadable, match=r"Decompression"):
        rows_of(lenient, topic, 2 * (GOOD + BAD), **settings)
    found = rows_of(lenient, topic, 2 * (GOOD + BAD), unreadable="letter", **settings)
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 43, 44, 45, 46]
    ends = [range_end(row["headers"][0]["value"].decode()) for row in found if row["headers"]]
    assert ends == [GOOD + BAD, 2 * (GOOD + BAD)]


def test_damage_on_the_way_is_not_garbage() -> None:
    """If the CRC does not match there may be a good copy, so the records must not be skipped."""
    wanted = OffsetRange("t", 0, 0, 9)
    crc = KafkaError(KafkaError._BAD_MSG, "MessageSet failed CRC32C check")
    assert isinstance(_unreadable(wanted, 4, crc), BatchDamaged)
    other = KafkaError(KafkaError._BAD_MSG, "cannot be parsed")
    assert isinstance(_unreadable(wanted, 4, other), BatchUnreadable)


def test_end_of_a_letter_is_told_by_its_reason_only() -> None:
    assert range_end(unreadable_text(3, 43, "why")) == 43
    assert range_end("the record has no value") is None
    assert range_end("the value is not a JSON object of the schema: offsets [1, 2): x") is None


@pytest.mark.spark
def test_job_over_garbage_keeps_its_offsets_as_dead_letters(
    spark: Any, lenient: ReplicaSet, tmp_path: Path
) -> None:
    """It continues, and a recount finds every record and every letter once."""
    from tests.pipeline.test_spark import job_of, run_once
    from vdl.pipeline.dead_letters import read_letters
    from vdl.pipeline.verify import verify

    topic = filled(lenient, "job-over-garbage", "field")
    job = job_of(tmp_path, lenient.bootstrap, topic)
    totals = run_once(job, spark)
    assert (totals.rows, totals.dead) == (2 * GOOD, 2)
    letters = sorted(read_letters(job), key=lambda letter: int(letter["offset"]))
    assert [(one["offset"], one["offset_end"]) for one in letters] == [(3, 43), (46, 86)]
    assert all(one["headers"] is None for one in letters)
    verdict = verify(job, spark)
    assert verdict.is_good
    assert (verdict.source, verdict.rows, verdict.dead) == (2 * GOOD + 2, 2 * GOOD, 2)
