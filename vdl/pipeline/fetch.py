"""Reading a range of offsets as the batches in which a broker keeps it. Runs on executors.

A client library makes an object of every record, which costs more than all else a task does with
it. Here a Fetch answer's batches become columns as they are (`columns.py`), as those of segment
files do. Small ranges are had from a leader with one Fetch for many: each answer costs a moment,
and a task may have a thousand partitions with a record each. It is a reader for the good case only:
one connection to the partition's leader, nothing repeated. Whatever is not as it should be ends it
(`FAILURES`): a leader that moved, an offset that is gone, a transaction's batch, an answer with
nothing in it. What was not read yet is then had with librdkafka (`source.py`), which knows what to
do about it. It does not know what to do about a batch whose CRC holds and whose records are
garbage: it waits for ever, or goes on behind it and says nothing. So such a batch is named here, by
its offsets (`BatchUnreadable`).

Must not know: Spark, what comes after a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from struct import Struct

import pyarrow as pa

from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettingsError
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from vdl.pipeline.columns import Gathered, open_lane
from vdl.pipeline.errors import BatchUnreadable, PipelineError, UndecodableBatch
from vdl.pipeline.fast_client import PLAIN_CLIENT, FastClient
from vdl.pipeline.inflated import Inflated
from vdl.pipeline.positions import OffsetRange
from vdl.records.batch import Buffer, CorruptBatch, crc_matches, split_batches

METADATA_KEY, FETCH_KEY = 3, 1
KAFKA_PORT = 9092
FETCH_BYTES = 8 << 20
TOGETHER_RANGES = 128
"""Ranges that are read ahead with one Fetch to each leader: 64 KiB of the answer for each."""
TOGETHER_OFFSETS_MAX = 256
"""A longer range is read by itself."""
WAIT_MS = 500
TIMEOUT_SECONDS = 10.0
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
_LAST_DELTA = Struct(">i")
_LAST_DELTA_AT = 23
_BASE = Struct(">q")


class NotFetched(PipelineError):
    """An answer that is no good case."""


FAILURES = (Unreachable, NotFetched, UndecodableBatch, CorruptBatch, ClientSettingsError)
"""Nothing is wrong with what was yielded before."""


class Leaders:
    """Connections to the servers that lead partitions, for one task that reads some. Use in a
    `with`; not from two threads."""

    def __init__(self, bootstrap: str, client: FastClient = PLAIN_CLIENT) -> None:
        self._bootstrap = bootstrap
        self._client = client
        self._open = ExitStack()
        self._topics: dict[str, tuple[bytes, dict[int, tuple[str, int]]]] = {}
        self._clients: dict[tuple[str, int], KafkaClient] = {}
        self._ahead: dict[tuple[str, int, int], Buffer] = {}
        """(topic, partition, offset) → batches from there on; at most one answer of each leader."""

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    def of(self, wanted: OffsetRange) -> tuple[bytes, KafkaClient]:
        """The topic's id, and a connection to who leads the partition. Raises FAILURES."""
        if wanted.topic not in self._topics:
            self._topics[wanted.topic] = _leaders(wanted.topic, self._bootstrap, self._client)
        topic_id, places = self._topics[wanted.topic]
        if wanted.partition not in places:
            raise NotFetched(f"{wanted.topic} {wanted.partition} has no leader")
        place = places[wanted.partition]
        if place not in self._clients:
            self._clients[place] = self._open.enter_context(connect(*place, self._client))
        return topic_id, self._clients[place]

    def read_ahead(self, ranges: Sequence[OffsetRange], *, isolation: str) -> None:
        """Have the beginnings of TOGETHER_RANGES at most; what was had before is dropped. What is
        no good case is left to who reads the range."""
        self._ahead.clear()
        wanted: dict[int, tuple[KafkaClient, dict[str, FetchTopic]]] = {}
        names: dict[bytes, str] = {}
        offsets: dict[tuple[str, int], int] = {}
        each = FETCH_BYTES // TOGETHER_RANGES
        try:
            for one in ranges[:TOGETHER_RANGES]:
                if one.end - one.start > TOGETHER_OFFSETS_MAX:
                    continue
                try:
                    topic_id, client = self.of(one)
                except NotFetched:
                    continue
                names[topic_id] = one.topic
                offsets[one.topic, one.partition] = one.start
                _, topics = wanted.setdefault(id(client), (client, {}))
                topic = topics.setdefault(
                    one.topic, FetchTopic(topic=one.topic, topic_id=topic_id, partitions=[])
                )
                topic.partitions.append(
                    FetchPartition(
                        partition=one.partition, fetch_offset=one.start, partition_max_bytes=each
                    )
                )
            for client, topics in wanted.values():
                answer = client.request(
                    FETCH_KEY, _request(list(topics.values()), ISOLATION[isolation])
                )
                for found in answer.responses:
                    name = found.topic or names[found.topic_id]
                    for row in found.partitions:
                        place = name, row.partition_index
                        if row.error_code or not row.records or place not in offsets:
                            continue
                        records = _joined(row)
                        if split_batches(memoryview(records)):
                            self._ahead[*place, offsets[place]] = records
        except FAILURES:
            self.forget()

    def taken(self, wanted: OffsetRange, position: int) -> Buffer | None:
        """What was read ahead of the partition from this offset on, once."""
        return self._ahead.pop((wanted.topic, wanted.partition, position), None)

    def forget(self) -> None:
        """After a failure: ask anew, over new connections."""
        self._ahead.clear()
        self._open.close()
        self._topics.clear()
        self._clients.clear()


def read_batches(
    wanted: OffsetRange, *, leaders: Leaders, columns: Sequence[str], isolation: str
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(the offset behind it, records of the range), as far as it goes. Raises FAILURES, and
    BatchUnreadable at the first batch that nobody can read; one that may only be too large for this
    reader has a TooLarge as its cause."""
    topic_id, client = leaders.of(wanted)
    chunk = _Chunk(wanted, columns)
    try:
        while chunk.position < wanted.end:
            asked = chunk.position
            records = leaders.taken(wanted, asked)
            if records is None:
                batches = _fetch(client, wanted, topic_id, asked, ISOLATION[isolation])
            else:
                batches = _whole(records, wanted)
            for batch in batches:
                chunk.add(batch)
                if chunk.is_enough:
                    yield from chunk.take()
            if chunk.position == asked:
                raise NotFetched(f"{wanted.topic} {wanted.partition}: nothing from {asked} on")
    except BatchUnreadable:
        yield from chunk.take()  # none when it was this that found the batch
        raise
    except FAILURES:
        yield from chunk.take()
        raise
    yield from chunk.take()


class _Chunk:
    """Whole batches, one behind the other, that are decoded together. `position`: behind the last
    one that was added."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str]) -> None:
        self.position = wanted.start
        self._wanted = wanted
        self._gathered = Gathered(wanted, columns, Inflated())
        self._batches: list[memoryview] = []

    @property
    def is_enough(self) -> bool:
        return self._gathered.is_enough

    def add(self, batch: memoryview) -> None:
        """Unless it lies outside the range. Raises BatchUnreadable, UndecodableBatch."""
        behind = _behind(batch)
        if behind <= self.position or self.position >= self._wanted.end:
            return
        lane = open_lane(batch)
        if lane is not None and lane.count:
            try:
                self._gathered.add(lane)
            except UndecodableBatch as error:
                raise self._unreadable(batch, self.position, error) from error
            self._batches.append(batch)
        self.position = behind

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(the offset behind, records) of what was added since. Raises BatchUnreadable after those
        that come before such a batch."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        try:
            found = self._gathered.take()
        except UndecodableBatch:
            yield from self._one_by_one(batches)
        else:
            yield min(self.position, self._wanted.end), found

    def _one_by_one(self, batches: Sequence[memoryview]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            lane = open_lane(batch)
            assert lane is not None, batch.nbytes
            self._gathered.add(lane)
            try:
                found = self._gathered.take()
            except UndecodableBatch as error:
                (base,) = _BASE.unpack_from(batch)
                raise self._unreadable(batch, base, error) from error
            yield min(_behind(batch), self._wanted.end), found

    def _unreadable(
        self, batch: memoryview, start: int, error: UndecodableBatch
    ) -> BatchUnreadable:
        (base,) = _BASE.unpack_from(batch)
        return BatchUnreadable(
            self._wanted.topic, self._wanted.partition, start=max(base, start, self._wanted.start),
            end=min(_behind(batch), self._wanted.end), reason=str(error), data=bytes(batch),
        )  # fmt: skip


def _behind(batch: memoryview) -> int:
    """The offset behind a batch."""
    (base,) = _BASE.unpack_from(batch)
    (delta,) = _LAST_DELTA.unpack_from(batch, _LAST_DELTA_AT)
    return int(base + delta + 1)


def connect(host: str, port: int, client: FastClient) -> KafkaClient:
    """As it is: for use in a `with`."""
    return KafkaClient(
        host, port, timeout_seconds=TIMEOUT_SECONDS, client_id=client.client_id,
        settings=client.settings,
    )  # fmt: skip


def _host_and_port(address: str) -> tuple[str, int]:
    """As librdkafka takes them: `host`, `host:port` or `[host]:port`. Raises NotFetched."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address.strip(), str(KAFKA_PORT)
    if not port.isdecimal():
        raise NotFetched(f"no address: {address}")
    return host.strip("[]"), int(port)


def ask_metadata(
    topics: Sequence[str], bootstrap: str, client: FastClient = PLAIN_CLIENT
) -> MetadataResponse:
    """What the first server that answers says of these topics. Raises FAILURES."""
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
    )
    reason: Exception = NotFetched("there is no server to ask")
    for address in bootstrap.split(","):
        try:
            with connect(*_host_and_port(address), client) as server:
                metadata: MetadataResponse = server.request(METADATA_KEY, asked)
        except Unreachable as error:
            reason = error
        else:
            return metadata
    raise reason


def _leaders(
    topic: str, bootstrap: str, client: FastClient = PLAIN_CLIENT
) -> tuple[bytes, dict[int, tuple[str, int]]]:
    """A topic's id, and by partition where the server is that leads it. Raises FAILURES."""
    metadata = ask_metadata([topic], bootstrap, client)
    places = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
    for found in metadata.topics:
        leaders = {
            row.partition_index: places[row.leader_id]
            for row in found.partitions
            if row.leader_id in places
        }
        return found.topic_id, leaders
    raise NotFetched(f"there is no topic {topic}")


def _request(topics: list[FetchTopic], isolation: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=isolation,
        topics=topics,
    )  # fmt: skip


def _fetch(
    client: KafkaClient, wanted: OffsetRange, topic_id: bytes, position: int, isolation: int
) -> list[memoryview]:
    """Batches from the one with `position` on; at least one."""
    asked = FetchPartition(
        partition=wanted.partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
    )
    topic = FetchTopic(topic=wanted.topic, topic_id=topic_id, partitions=[asked])
    answer = client.request(FETCH_KEY, _request([topic], isolation))
    found: list[PartitionData] = [row for topic in answer.responses for row in topic.partitions]
    if answer.error_code or len(found) != 1 or found[0].error_code or not found[0].records:
        raise NotFetched(f"{wanted.topic} {wanted.partition} from {position}")
    return _whole(_joined(found[0]), wanted)


def _joined(row: PartitionData) -> Buffer:
    """Its records, of which there are some, in one buffer."""
    records = row.records
    assert records is not None, row
    return b"".join(records) if isinstance(records, list) else records


def _whole(records: Buffer, wanted: OffsetRange) -> list[memoryview]:
    """The batches; at least one. What is left of a last one is dropped."""
    batches = split_batches(memoryview(records))
    if not batches:
        raise NotFetched(f"{wanted.topic} {wanted.partition}: a batch larger than {FETCH_BYTES}")
    for batch in batches:
        if not crc_matches(batch):
            raise CorruptBatch("CRC", 0)
    return batches
