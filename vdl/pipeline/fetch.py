"""Reading of a range of offsets as the batches that a broker stores. Runs on executors.

A client library creates an object for every record, which costs more than the rest of a task. Here
the batches of a Fetch response are converted to columns directly (`columns.py`), as those of
segment files are. Small ranges of one leader share a Fetch: each response has a fixed cost, and a
task may have a thousand partitions with a record each.

This reader handles only the normal case: one connection to the partition's leader, no retries. Any
irregularity ends it (`FAILURES`): a leader that moved, an offset that is out of range, a batch of a
transaction, an empty response. The rest of the range is then read with librdkafka (`source.py`),
which handles these. It does not handle a batch whose CRC matches and whose records are malformed:
it waits forever, or skips the batch silently. Such a batch is reported here, by its offsets
(`BatchUnreadable`).

Does not depend on Spark, or on what follows a failure.
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
"""Limit on ranges read ahead with one Fetch to each leader: 64 KiB of response for each range."""
TOGETHER_OFFSETS_MAX = 256
"""Limit on the offsets of a range that is read ahead; a longer one is read by itself."""
WAIT_MS = 500
TIMEOUT_SECONDS = 10.0
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
_LAST_DELTA = Struct(">i")
_LAST_DELTA_AT = 23
_BASE = Struct(">q")


class NotFetched(PipelineError):
    """Response that is not the normal case."""


FAILURES = (Unreachable, NotFetched, UndecodableBatch, CorruptBatch, ClientSettingsError)
"""Errors that end this reader; batches yielded before them are valid."""


class Leaders:
    """Connections of one task to the leaders of partitions. Use in a `with`, from one thread."""

    def __init__(self, bootstrap: str, client: FastClient = PLAIN_CLIENT) -> None:
        self._bootstrap = bootstrap
        self._client = client
        self._open = ExitStack()
        self._topics: dict[str, tuple[bytes, dict[int, tuple[str, int]]]] = {}
        self._clients: dict[tuple[str, int], KafkaClient] = {}
        self._ahead: dict[tuple[str, int, int], Buffer] = {}
        """(topic, partition, offset) → batches from there on; one response per leader."""

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    def of(self, wanted: OffsetRange) -> tuple[bytes, KafkaClient]:
        """Return the topic's id, and a connection to the partition's leader. Raises FAILURES."""
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
        """Fetch the beginnings of up to TOGETHER_RANGES ranges, and drop those fetched before.

        Failures are ignored here; they will show when the range is read.
        """
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
                    name = found.topic or names.get(found.topic_id, "")
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
        """Pop the batches read ahead of the partition from this offset on, or None."""
        return self._ahead.pop((wanted.topic, wanted.partition, position), None)

    def forget(self) -> None:
        """Drop connections and metadata after a failure, so that they are requested again."""
        self._ahead.clear()
        self._open.close()
        self._topics.clear()
        self._clients.clear()


def read_batches(
    wanted: OffsetRange, *, leaders: Leaders, columns: Sequence[str], isolation: str
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (end offset, records of the range), as far as possible.

    Raises FAILURES, and BatchUnreadable at the first malformed batch; its cause is a TooLarge if
    the batch may only be too large for this reader.
    """
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
                raise NotFetched(
                    f"{wanted.topic} {wanted.partition}: no records arrived from {asked}"
                )
    except BatchUnreadable:
        yield from chunk.take()  # none if this call found the batch
        raise
    except FAILURES:
        yield from chunk.take()
        raise
    yield from chunk.take()


class _Chunk:
    """Consecutive whole batches that are decoded together.

    `position`: offset after the last batch that was added.
    """

    def __init__(self, wanted: OffsetRange, columns: Sequence[str]) -> None:
        self.position = wanted.start
        self._wanted = wanted
        self._gathered = Gathered(wanted, columns, Inflated())
        self._batches: list[memoryview] = []

    @property
    def is_enough(self) -> bool:
        return self._gathered.is_enough

    def add(self, batch: memoryview) -> None:
        """Add a batch unless it is outside the range. Raises BatchUnreadable, UndecodableBatch."""
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
        """Yield (end offset, records) of the batches added since the last call.

        Raises BatchUnreadable after the records before such a batch.
        """
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
    """Return the offset after a batch."""
    (base,) = _BASE.unpack_from(batch)
    (delta,) = _LAST_DELTA.unpack_from(batch, _LAST_DELTA_AT)
    return int(base + delta + 1)


def connect(host: str, port: int, client: FastClient) -> KafkaClient:
    """Return a client that connects on entry to a `with`."""
    return KafkaClient(
        host, port, timeout_seconds=TIMEOUT_SECONDS, client_id=client.client_id,
        settings=client.settings,
    )  # fmt: skip


def _host_and_port(address: str) -> tuple[str, int]:
    """Parse `host`, `host:port` or `[host]:port`, as librdkafka does. Raises NotFetched."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = address.strip(), str(KAFKA_PORT)
    if not port.isdecimal():
        raise NotFetched(f"no address in {address}")
    return host.strip("[]"), int(port)


def ask_metadata(
    topics: Sequence[str], bootstrap: str, client: FastClient = PLAIN_CLIENT
) -> MetadataResponse:
    """Return the metadata of these topics from the first server that responds. Raises FAILURES."""
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
    )
    reason: Exception = NotFetched("no server is known")
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
    """Return a topic's id, and partition → address of its leader. Raises FAILURES."""
    metadata = ask_metadata([topic], bootstrap, client)
    places = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
    for found in metadata.topics:
        leaders = {
            row.partition_index: places[row.leader_id]
            for row in found.partitions
            if row.leader_id in places
        }
        return found.topic_id, leaders
    raise NotFetched(f"topic {topic} does not exist")


def _request(topics: list[FetchTopic], isolation: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=isolation,
        topics=topics,
    )  # fmt: skip


def _fetch(
    client: KafkaClient, wanted: OffsetRange, topic_id: bytes, position: int, isolation: int
) -> list[memoryview]:
    """Return batches, beginning with the one that contains `position`; at least one.

    Raises NotFetched, CorruptBatch.
    """
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
    """Return its records, which must not be None, in one buffer."""
    records = row.records
    assert records is not None, row
    return b"".join(records) if isinstance(records, list) else records


def _whole(records: Buffer, wanted: OffsetRange) -> list[memoryview]:
    """Return the whole batches, at least one; drop an incomplete last one.

    Raises NotFetched, CorruptBatch.
    """
    batches = split_batches(memoryview(records))
    if not batches:
        raise NotFetched(f"{wanted.topic} {wanted.partition}: a batch larger than {FETCH_BYTES}")
    for batch in batches:
        if not crc_matches(batch):
            raise CorruptBatch("CRC", 0)
    return batches
