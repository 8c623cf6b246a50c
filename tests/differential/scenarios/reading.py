"""Fetch, ListOffsets, OffsetForLeaderEpoch: valid requests and invalid ones."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import TIME_MS, batch
from tests.differential.side import Side
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.records.batch import BatchFields, Record, build_batch
from vdl.records.compression import Compression

IDS_SINCE = 13
"""Fetch names topics by id from this version on (KIP-516)."""
MIB = 1 << 20
FAR_EPOCH = 1_000_000


def _fetch(
    topic: str, topic_id: bytes, version: int, *partitions: FetchPartition, **fields: Any
) -> FetchRequest:
    row = FetchTopic(partitions=list(partitions))
    if version < IDS_SINCE:
        row.topic = topic
    else:
        row.topic_id = topic_id
    fields = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": MIB} | fields
    return FetchRequest(topics=[row], **fields)


def _at(offset: int, *, partition: int = 0, size: int = MIB, **fields: Any) -> FetchPartition:
    return FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=size, **fields
    )


def _written(side: Side, name: str) -> tuple[str, bytes, int]:
    """Return (topic, id, leader); partition 0 has records 3 to 8 of 9, in batches of three."""
    topic = side.topic(name, 2)
    for number in range(3):
        side.produce(topic, batch(f"{number}-{at}".encode() for at in range(3)))
    leader = side.leader(topic)
    rows = [DeleteRecordsPartition(0, 3)]
    request = DeleteRecordsRequest([DeleteRecordsTopic(topic, rows)], 20_000)
    side.retry(request, lambda answer: answer.topics[0].partitions[0].error_code, to=leader)
    return topic, side.topic_id(topic), leader


def fetch(side: Side) -> None:
    topic, topic_id, leader = _written(side, "read")
    empty_leader = side.leader(topic, 1)

    def ask(label: str, *partitions: FetchPartition, to: int = leader, **fields: Any) -> None:
        side.each(label, lambda v: _fetch(topic, topic_id, v, *partitions, **fields), to=to)

    ask("from the start", _at(3))
    ask("from the middle of a batch", _at(4))
    ask("from the last batch", _at(8))
    ask("at the end", _at(9))
    ask("beyond the end", _at(10))
    ask("far beyond the end", _at(1 << 60))
    ask("below the start", _at(0))
    ask("below nought", _at(-1))
    ask("far below nought", _at(-(1 << 60)))
    ask("empty partition", _at(0, partition=1), to=empty_leader)
    ask("partition that is not there", _at(0, partition=2))
    ask("negative partition", _at(0, partition=-1))
    ask("not the leader", _at(3), to=side.other(topic))
    ask("twice the same partition", _at(3), _at(6))
    ask("nothing of the topic")
    ask("at most nought bytes", _at(3), max_bytes=0)
    ask("at most nought bytes of the partition", _at(3, size=0))
    ask("negative bytes", _at(3), max_bytes=-1)
    ask("negative bytes of the partition", _at(3, size=-1))
    ask("one batch at most", _at(3, size=100))
    ask("two batches at most", _at(3, size=200))
    ask("negative time", _at(9), max_wait_ms=-1, min_bytes=1)
    ask("negative least", _at(9), min_bytes=-1)
    ask("waits in vain", _at(9), max_wait_ms=100, min_bytes=1)
    ask("read committed", _at(3), isolation_level=1)
    ask("unknown isolation level", _at(3), isolation_level=7)
    ask("a rack", _at(3), rack_id="r")
    ask("epoch of the future", _at(3, current_leader_epoch=FAR_EPOCH))
    ask("present epoch", _at(3, current_leader_epoch=side.epoch(topic)))
    ask("negative epoch", _at(3, current_leader_epoch=-2))
    ask("last fetched epoch", _at(6, last_fetched_epoch=side.epoch(topic)))
    ask("last fetched epoch of the future", _at(6, last_fetched_epoch=FAR_EPOCH))
    ask("known log start", _at(3, log_start_offset=3))
    side.each("nothing at all", FetchRequest(max_bytes=MIB), to=leader)
    side.each(
        "unknown topic",
        lambda v: _fetch(f"{side.prefix}.none", bytes(15) + b"\7", v, _at(0)),
        to=leader,
    )
    side.each("no topic", lambda v: _fetch("", bytes(16), v, _at(0)), to=leader)
    side.each("name too long", lambda v: _fetch("n" * 250, bytes(15) + b"\7", v, _at(0)), to=leader)


def fetch_several(side: Side) -> None:
    """Fetch two partitions in one request: how its limits are shared."""
    topics = [side.topic(name, on=[1, 2, 3]) for name in ("several.a", "several.b")]
    ids = [side.topic_id(topic) for topic in topics]
    for topic in topics:
        for number in range(3):
            side.produce(topic, batch([f"{number}".encode() * 50]))

    def ask(label: str, *sizes: int, offsets: tuple[int, int] = (0, 0), **fields: Any) -> None:
        def make(version: int) -> FetchRequest:
            rows = [_at(offset, size=size) for offset, size in zip(offsets, sizes, strict=True)]
            asked = _fetch(topics[0], ids[0], version, rows[0], **fields)
            asked.topics += _fetch(topics[1], ids[1], version, rows[1]).topics
            return asked

        side.each(label, make, to=1)

    ask("all", MIB, MIB)
    ask("one byte", MIB, MIB, max_bytes=1)
    ask("one byte of each", 1, 1)
    ask("a batch and a half", MIB, MIB, max_bytes=170)
    ask("two batches of the first", 250, MIB)
    ask("more than the bound", MIB, MIB, max_bytes=400)
    ask("the first at its end", MIB, MIB, offsets=(3, 0), max_bytes=1)
    ask("the first out of range", MIB, MIB, offsets=(9, 0), max_wait_ms=5_000, min_bytes=MIB)
    ask("both at their ends", MIB, MIB, offsets=(3, 3))


def recreated(side: Side) -> None:
    """Fetch from a deleted topic, and from another one with the same name."""
    topic = side.topic("again", on=[1, 2, 3])
    old_id = side.topic_id(topic)
    side.produce(topic, batch([b"old"]))
    request = DeleteTopicsRequest([DeleteTopicState(topic)], timeout_ms=20_000)
    side.retry(request, lambda answer: int(answer.responses[0].error_code))
    side.await_gone(topic)

    def ask(label: str) -> None:
        side.each(f"fetch {label}", lambda v: _fetch(topic, old_id, v, _at(0)), to=1)
        side.each(
            f"list {label}",
            ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, -1)])]),
            to=1,
        )
        rows = [PartitionProduceData(0, batch([b"new"]))]
        data = [TopicProduceData(topic_id=old_id, partition_data=rows)]
        produced = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data)
        side.ask(f"produce by id {label}", produced, version=13, to=1)
        asked = [MetadataRequestTopic(old_id, None)]
        side.each(f"metadata by id {label}", MetadataRequest(asked, False), first=12)

    ask("of what is gone")
    side.topic("again", on=[1, 2, 3])
    side.symbols.learn(old_id, "the old id")
    ask("of what was there")


def fetch_sessions(side: Side) -> None:
    topic, topic_id, leader = _written(side, "session")

    def ask(label: str, version: int, *partitions: FetchPartition, **fields: Any) -> Any:
        request = _fetch(topic, topic_id, version, *partitions, **fields)
        if not partitions:
            request.topics = []
        return side.ask(f"{label} v{version}", request, version=version, to=leader)

    for version in side.versions(1):
        if version < 7:
            continue
        both = _at(3), _at(0, partition=2)
        opened = ask("opens", version, *both, session_id=0, session_epoch=0)
        session = opened.session_id
        ask("goes on", version, session_id=session, session_epoch=1)
        ask("goes on with another offset", version, _at(9), session_id=session, session_epoch=2)
        ask("finds nothing new", version, session_id=session, session_epoch=3)
        ask("repeats an epoch", version, session_id=session, session_epoch=3)
        ask("skips an epoch", version, session_id=session, session_epoch=9)
        gone = ForgottenTopic(partitions=[2])
        if version < IDS_SINCE:
            gone.topic = topic
        else:
            gone.topic_id = topic_id
        ask(
            "forgets a partition",
            version,
            session_id=session,
            session_epoch=4,
            forgotten_topics_data=[gone],
        )
        ask("closes", version, _at(3), session_id=session, session_epoch=-1)
        ask("goes on with a closed one", version, session_id=session, session_epoch=5)
        ask("an unknown session", version, session_id=123_456_789, session_epoch=1)
        ask("an unknown session, from anew", version, _at(3), session_id=12_345, session_epoch=0)
        ask("a negative session", version, session_id=-5, session_epoch=1)
        ask("no session and an epoch", version, _at(3), session_id=0, session_epoch=1)
        ask("a negative epoch", version, _at(3), session_id=0, session_epoch=-2)
        ask("opens with nothing", version, session_id=0, session_epoch=0)


def list_offsets(side: Side) -> None:
    topic, _, leader = _written(side, "list")

    def request(*rows: ListOffsetsPartition, name: str = topic, **fields: int) -> Any:
        fields = {"replica_id": -1} | fields
        return ListOffsetsRequest(topics=[ListOffsetsTopic(name, list(rows))], **fields)

    def row(timestamp: int, partition: int = 0, epoch: int = -1) -> ListOffsetsPartition:
        return ListOffsetsPartition(partition, epoch, timestamp)

    def ask(label: str, *rows: ListOffsetsPartition, to: int = leader, **fields: Any) -> None:
        side.each(label, request(*rows, **fields), to=to)

    times = {"latest": -1, "earliest": -2, "largest timestamp": -3, "local": -4, "tiered": -5}
    times |= {"pending": -6, "no such constant": -7, "far below nought": -(1 << 60)}
    times |= {"nought": 0, "of a record": 1_700_000_000_001, "between": 1_700_000_000_000 - 1}
    times |= {"after all": 1 << 50}
    for name, timestamp in times.items():
        ask(name, row(timestamp))
        ask(f"{name}, of nothing", row(timestamp, 1), to=side.leader(topic, 1))
    ask("partition that is not there", row(-1, 9))
    ask("negative partition", row(-1, -1))
    ask("not the leader", row(-1), to=side.other(topic))
    ask("twice", row(-1), row(-2))
    ask("thrice", row(-1), row(-1), row(-1))
    ask("no partition")
    ask("epoch of the future", row(-1, 0, FAR_EPOCH))
    ask("present epoch", row(-1, 0, side.epoch(topic)))
    ask("read committed", row(-1), isolation_level=1)
    ask("unknown isolation level", row(-1), isolation_level=5)
    ask("as a debugging replica", row(-1), replica_id=-2)
    ask("as a debugging replica, not the leader", row(-1), replica_id=-2, to=side.other(topic))
    ask("unknown topic", row(-1), name=f"{side.prefix}.none")
    ask("no name", row(-1), name="")
    ask("name too long", row(-1), name="n" * 250)
    side.each("nothing", ListOffsetsRequest(replica_id=-1), to=leader)


TIMES_MS = ((10, 30, 20), (5, 50, 40), (50, 7, 8))
"""Timestamps of the records of three batches, relative to that of the first.

They are out of order, as producers send them.
"""


def list_offsets_by_time(side: Side) -> None:
    for codec in (Compression.NONE, Compression.GZIP):
        topic = side.topic(codec.name.lower())
        leader = side.leader(topic)
        for times in TIMES_MS:
            records = [Record(b"k", b"v", timestamp=TIME_MS + at) for at in times]
            side.produce(topic, bytes(build_batch(records, BatchFields(compression=codec))))
        for at in (-1, 0, 1, 5, 9, 10, 11, 20, 21, 29, 30, 31, 40, 41, 49, 50, 51):
            rows = [ListOffsetsPartition(0, -1, TIME_MS + at)]
            request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, rows)])
            side.each(f"{codec.name.lower()}, {at} ms", request, to=leader)
        rows = [ListOffsetsPartition(0, -1, -3)]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, rows)])
        side.each(f"{codec.name.lower()}, largest", request, to=leader)


def offset_for_leader_epoch(side: Side) -> None:
    topic, _, leader = _written(side, "epochs")
    epoch = side.epoch(topic)

    def request(*rows: OffsetForLeaderPartition, name: str = topic, replica: int = -1) -> Any:
        topics = [OffsetForLeaderTopic(name, list(rows))]
        return OffsetForLeaderEpochRequest(replica, topics)

    def ask(label: str, *rows: OffsetForLeaderPartition, to: int = leader, **fields: Any) -> None:
        side.each(label, request(*rows, **fields), to=to)

    row = OffsetForLeaderPartition
    ask("present epoch", row(0, -1, epoch))
    ask("present epoch, twice", row(0, epoch, epoch))
    ask("epoch of the future", row(0, -1, FAR_EPOCH))
    ask("no epoch", row(0, -1, -1))
    ask("negative epoch", row(0, -1, -2))
    ask("the client is ahead", row(0, FAR_EPOCH, epoch))
    ask("partition that is not there", row(9, -1, epoch))
    ask("negative partition", row(-1, -1, epoch))
    ask("not the leader", row(0, -1, epoch), to=side.other(topic))
    ask("twice", row(0, -1, epoch), row(0, -1, epoch))
    ask("no partition")
    ask("empty partition", row(1, -1, side.epoch(topic, 1)), to=side.leader(topic, 1))
    ask("debugging replica", row(0, -1, epoch), replica=-2)
    ask("unknown topic", row(0, -1, 0), name=f"{side.prefix}.none")
    ask("no name", row(0, -1, 0), name="")
    side.each("nothing", OffsetForLeaderEpochRequest(-1), to=leader)


SCENARIOS = (
    fetch,
    fetch_several,
    recreated,
    fetch_sessions,
    list_offsets,
    list_offsets_by_time,
    offset_for_leader_epoch,
)
