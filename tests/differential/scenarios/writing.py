"""Produce and InitProducerId: valid and invalid batches, plain, idempotent and transactional."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import BROKEN, GOOD, TIME_MS, batch
from tests.differential.side import Side
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.init_producer_id import InitProducerIdRequest
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from vdl.records.batch import BatchFields, Record, build_batch
from vdl.records.compression import Compression

IDS_SINCE = 13
BATCHES_SINCE = 3
"""Older versions of Produce carry the formats before record batches."""


def _request(
    version: int, topic: str, topic_id: bytes, *rows: PartitionProduceData, **fields: Any
) -> ProduceRequest:
    data = TopicProduceData(partition_data=list(rows))
    if version < IDS_SINCE:
        data.name = topic
    else:
        data.topic_id = topic_id
    fields = {"acks": -1, "timeout_ms": 10_000} | fields
    return ProduceRequest(topic_data=[data], **fields)


def _row(records: bytes | None = GOOD, partition: int = 0) -> PartitionProduceData:
    return PartitionProduceData(partition, records)


def _code(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def produce(side: Side) -> None:
    topic = side.topic("written", 2)
    topic_id, leader = side.topic_id(topic), side.leader(topic)

    def ask(label: str, *rows: PartitionProduceData, to: int = leader, **fields: Any) -> None:
        side.each(
            label,
            lambda v: _request(v, topic, topic_id, *rows, **fields),
            to=to,
            first=BATCHES_SINCE,
        )

    def ask_own(label: str, **fields: Any) -> None:
        """Send the request to a topic of its own.

        If only one of the two refuses it, all later offsets differ.
        """
        own = side.topic(label.replace(" ", "-"))
        own_id = side.topic_id(own)
        side.each(
            label,
            lambda v: _request(v, own, own_id, _row(), **fields),
            to=side.leader(own),
            first=BATCHES_SINCE,
        )

    ask("good", _row())
    ask("acks of the leader", _row(), acks=1)
    ask("acks of two", _row(), acks=2)
    ask("acks below all", _row(), acks=-2)
    ask("partition that is not there", _row(partition=9))
    ask("negative partition", _row(partition=-1))
    ask("twice the same partition", _row(), _row())
    ask("one good, one bad", _row(), _row(partition=9))
    ask("no partition")
    ask("not the leader", _row(), to=side.other(topic))
    ask_own("a transactional id for a plain batch", transactional_id=f"{side.prefix}.t")
    ask_own("an empty transactional id", transactional_id="")
    side.each("nothing", ProduceRequest(acks=-1, timeout_ms=1_000), to=leader, first=BATCHES_SINCE)
    for label, name in {"unknown": f"{side.prefix}.none", "no": "", "long": "n" * 250}.items():
        side.each(
            f"{label} topic",
            lambda v, name=name: _request(v, name, bytes(15) + b"\7", _row()),
            to=leader,
            first=BATCHES_SINCE,
        )
    side.each(
        "no topic id", lambda v: _request(v, "", bytes(16), _row()), to=leader, first=IDS_SINCE
    )


def produce_old(side: Side) -> None:
    """Send a batch in versions before record batches, to which the format does not belong."""
    topic = side.topic("old")
    leader = side.leader(topic)
    for version in side.versions(0):
        if version < BATCHES_SINCE:
            request = _request(version, topic, b"", _row())
            side.ask(f"a batch v{version}", request, version=version, to=leader)


def produce_broken(side: Side) -> None:
    topic = side.topic("broken", len(BROKEN))
    topic_id = side.topic_id(topic)
    for partition, (label, make) in enumerate(BROKEN.items()):
        row = _row(make(), partition)
        side.each(
            label,
            lambda v, row=row: _request(v, topic, topic_id, row),
            to=side.leader(topic, partition),
            first=BATCHES_SINCE,
        )


def produce_null(side: Side) -> None:
    """Kafka does not answer this one, so it is sent once."""
    topic = side.topic("null")
    version = side.versions(0)[-1]
    request = _request(version, topic, side.topic_id(topic), _row(None))
    side.ask(f"no records v{version}", request, version=version, to=side.leader(topic))


def produce_codecs(side: Side) -> None:
    topic = side.topic("codecs")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    for codec in Compression:
        data = batch([b"a" * 100, b"b" * 100], compression=codec)
        side.each(
            codec.name.lower(),
            lambda v, data=data: _request(v, topic, topic_id, _row(data)),
            to=leader,
            first=BATCHES_SINCE,
        )


def produce_with_settings(side: Side) -> None:
    """Produce to topics with settings against which batches are checked."""
    settings: dict[str, dict[str, str]] = {
        "stamped": {"message_timestamp_type": "LogAppendTime"},
        "small": {"max_message_bytes": "100"},
        "past": {"message_timestamp_before_max_ms": "1000"},
        "copied more often than there are copies": {"min_insync_replicas": "4"},
        "future": {"message_timestamp_after_max_ms": "1000"},
    }
    batches = {
        "good": GOOD,
        "ahead": batch([b"a"], time_ms=1 << 42),
        "untimed": batch([b"a"], time_ms=-1),
    }
    for name, configs in settings.items():
        topic = side.topic(name.replace(" ", "-"), **configs)
        topic_id, leader = side.topic_id(topic), side.leader(topic)
        for label, records in batches.items():
            side.each(
                f"{name}: {label}",
                lambda v, t=topic, i=topic_id, r=records: _request(v, t, i, _row(r)),
                to=leader,
                first=BATCHES_SINCE,
            )


def produce_recompressed(side: Side) -> None:
    """Produce to topics with a codec of their own (KIP-780), and read the records back."""
    for codec in ("gzip", "lz4", "snappy", "zstd", "uncompressed"):
        topic = side.topic(codec, compression_type=codec)
        topic_id, leader = side.topic_id(topic), side.leader(topic)
        for sent in (Compression.NONE, Compression.LZ4):
            data = batch([b"a" * 300, b"b" * 300], compression=sent)
            side.ask(
                f"{sent.name} to {codec}",
                _request(13, topic, topic_id, _row(data)),
                version=13,
                to=leader,
            )
        row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic("", topic_id, [row])])
        side.ask(f"what is read from {codec}", request, version=17, to=leader)


def produce_compacted(side: Side) -> None:
    """Produce to a compacted topic."""
    topic = side.topic("compacted", cleanup_policy="compact")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    records = {
        "a key": [Record(b"k", b"v", timestamp=TIME_MS)],
        "no key": [Record(None, b"v", timestamp=TIME_MS)],
        "an empty key": [Record(b"", b"v", timestamp=TIME_MS)],
        "no value": [Record(b"k", None, timestamp=TIME_MS)],
        "a key and none": [
            Record(b"k", b"v", timestamp=TIME_MS),
            Record(None, b"v", timestamp=TIME_MS),
        ],
    }
    for label, found in records.items():
        for codec in (Compression.NONE, Compression.ZSTD):
            data = bytes(build_batch(found, BatchFields(compression=codec)))
            side.each(
                f"{label}, {codec.name.lower()}",
                lambda v, data=data: _request(v, topic, topic_id, _row(data)),
                to=leader,
                first=8,
            )


def produce_unanswered(side: Side) -> None:
    """acks=0 gets no answer in any case; a later request does.

    Kafka closes the connection where the batch was refused, so that the producer refreshes its
    metadata.
    """
    topic = side.topic("unanswered")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    others: dict[str, tuple[int, PartitionProduceData]] = {
        "good": (leader, _row()),
        "broken": (leader, _row(GOOD[:-3])),
        "partition that is not there": (leader, _row(partition=9)),
        "not the leader": (side.other(topic), _row()),
    }
    for label, (to, row) in others.items():
        for version in side.versions(0):
            if version < BATCHES_SINCE:
                continue
            with side.own_connections():
                request = _request(version, topic, topic_id, row, acks=0)
                side.send(request, version=version, to=to)
                answer = side.ask(
                    f"behind {label} v{version}",
                    MetadataRequest(topics=[]),
                    version=1,
                    to=to,
                )
                assert answer is None or len(answer.brokers) == 3


def produce_idempotent(side: Side) -> None:
    topic = side.topic("idempotent")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    version = side.versions(0)[-1]
    producer = side.retry(
        InitProducerIdRequest(None, 60_000), lambda answer: answer.error_code, to=leader
    )

    def ask(label: str, records: bytes, *, version: int = version) -> None:
        request = _request(version, topic, topic_id, _row(records))
        side.ask(f"{label} v{version}", request, version=version, to=leader)

    def of(
        sequence: int, *, epoch: int = 0, pid: int = producer.producer_id, count: int = 2
    ) -> bytes:
        values = [b"v"] * count
        return batch(values, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)

    ask("first", of(0))
    ask("first, again", of(0))
    ask("second", of(2))
    ask("first, after the second", of(0))
    ask("a gap", of(9))
    ask("overlapping", of(3))
    ask("negative sequence", of(-1))
    ask("negative epoch", of(4, epoch=-1))
    ask("next epoch in the middle", of(4, epoch=1))
    ask("next epoch from its start", of(0, epoch=1))
    ask("the epoch before", of(2, epoch=0))
    ask("an epoch far on", of(0, epoch=30_000))
    for old in (3, 8, 12):
        ask("an unknown producer from its start", of(0, pid=900_000 + old), version=old)
    ask("a negative producer", of(0, pid=-5))
    ask("two batches", of(0, pid=700_000) + of(2, pid=700_000))
    ask("an unknown producer in the middle", of(7, pid=800_000))


def produce_to_a_topic_made_anew(side: Side) -> None:
    """The producer's sequence numbers continue: it does not know that the topic was replaced."""
    topic = side.topic("anew")
    version = side.versions(0)[-1]
    producer = side.retry(InitProducerIdRequest(None, 60_000), lambda answer: answer.error_code)

    def request(sequence: int) -> ProduceRequest:
        record = batch(
            [b"v"], producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence
        )
        return _request(version, topic, side.topic_id(topic), _row(record))

    def ask(label: str, sequence: int) -> None:
        side.ask(label, request(sequence), version=version, to=side.leader(topic))

    for sequence in range(7):
        ask(f"number {sequence}", sequence)
    ask("the last but four, again", 2)
    ask("the last but five, again", 1)
    side.quiet(DeleteTopicsRequest([DeleteTopicState(topic)], timeout_ms=10_000))
    side.await_gone(topic)
    side.topic("anew")
    # A VDL server refuses it once, as earlier batches may be on their way: clients retry it.
    side.retry(request(7), _code, version=version, to=side.leader(topic))
    ask("the next number, again", 7)
    ask("one of the topic before", 6)
    ask("the one after it", 8)
    ask("a gap", 10)


def init_producer_id(side: Side) -> None:
    # A Kafka server fetches its first ids at the first request.
    side.retry(InitProducerIdRequest(None, 60_000), lambda answer: answer.error_code)

    def ask(label: str, *, first: int = 0, **fields: Any) -> None:
        fields = {"transactional_id": None, "transaction_timeout_ms": 60_000} | fields
        side.each(label, InitProducerIdRequest(**fields), first=first)

    ask("plain")
    ask("no time", transaction_timeout_ms=0)
    ask("negative time", transaction_timeout_ms=-1)
    ask("largest time", transaction_timeout_ms=(1 << 31) - 1)
    ask("empty transactional id", transactional_id="")
    ask("a producer and an epoch", producer_id=5, producer_epoch=3, first=3)
    ask("a producer without an epoch", producer_id=5, first=3)
    ask("an epoch without a producer", producer_epoch=3, first=3)
    ask("a negative producer", producer_id=-7, producer_epoch=0, first=3)


SCENARIOS = (
    produce,
    produce_old,
    produce_broken,
    produce_null,
    produce_codecs,
    produce_with_settings,
    produce_recompressed,
    produce_compacted,
    produce_unanswered,
    produce_idempotent,
    produce_to_a_topic_made_anew,
    init_producer_id,
)
