"""A consumer: finds positions and fetches records, in the manner of Kafka's own.

It fetches continuously, one request at a time from each leader, and passes the records to
`on_fetched`. Positions come from the committed offset (through a group `member`, if there is one),
otherwise from the reset strategy by ListOffsets. Every fetch carries leader epochs (KIP-320); an
epoch error makes the client look for the leader again.

A fetch returns whole batches; only records from the requested position on are passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vdl.errors import ErrorCode
from vdl.kafka.wire import fetch, list_offsets
from vdl.kafka.wire.runtime import ZERO_UUID
from vdl.records.batch import (
    BatchHeader,
    CorruptBatch,
    Record,
    crc_matches,
    iter_records,
    read_header,
    split_batches,
)
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.fetch_session import FetchSession
from vdl.sim.subscription import (
    ResetStrategy,
    SubscriptionState,
    SubscriptionType,
    TopicPartition,
)

_FETCH_WITH_SESSIONS = 7
_FETCH_WITH_EPOCHS = 9
_FETCH_WITH_TOPIC_IDS = 13


@dataclass(slots=True)
class Fetched:
    """One partition's part of a fetch: records from the position on, and the log's offsets then.

    `epochs` has the leader epoch of the batch of each record; `leader_epoch` is the one the server
    accepted, -1 in versions without it. `asked_ns` is the client's clock.
    """

    tp: TopicPartition
    records: list[Record]
    epochs: list[int]
    high_watermark: int
    leader_epoch: int
    node: int
    asked_ns: int
    position: int
    stable_offset: int = -1
    end: int = -1
    """Offset after the last batch that came; -1 if none did."""
    end_epoch: int = -1
    """Leader epoch of that batch."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """A consumer's settings, named as in Kafka."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    fetch_bytes_max: int = 1 << 20
    partition_bytes_max: int = 64 << 10
    poll_interval_ms: int = 0
    """Pause after each answer, for a slow consumer."""
    fetch_sessions: bool = False
    """True to use KIP-227, where the server's version has it."""
    read_committed: bool = False
    """`isolation.level`: records of aborted transactions are dropped, and those of open ones are
    not returned (KIP-98).
    """


@dataclass(slots=True)
class _Asked:
    tp: TopicPartition
    position: int
    incarnation: int
    epoch: int


class CommittedOffsets(Protocol):
    """Source of the committed offsets of the consumer's group."""

    def fetch_committed(self, partitions: list[TopicPartition]) -> None:
        """Fetch the committed offsets of these partitions and pass them to `committed_known`."""


class Consumer:
    """Consumer that fetches the partitions of its subscription."""

    def __init__(
        self,
        client: KafkaClient,
        subscription: SubscriptionState,
        on_fetched: Callable[[Fetched], None],
        options: ConsumerOptions | None = None,
    ) -> None:
        self.client = client
        self.subscription = subscription
        self.options = options or ConsumerOptions()
        self.member: CommittedOffsets | None = None
        self.on_fetched = on_fetched
        self.on_no_position: Callable[[TopicPartition], None] = _ignore
        """Called if a position is needed and the reset strategy is NONE."""
        self.on_position: Callable[[TopicPartition, int], None] = _ignore_position
        """Called with a position found by a reset or from the committed offset."""
        self.corrupt: list[str] = []
        """Batches with a wrong CRC or content that contradicts the header: must stay empty."""
        self.told: dict[TopicPartition, tuple[int, int]] = {}
        """(high watermark, log start) as last reported by servers: with a session they report only
        changes.
        """
        self.closed = False
        self._fetching: dict[int, int] = {}
        self._turn = 0
        self._sessions: dict[int, FetchSession] = {}
        self._listing: set[TopicPartition] = set()
        self._failures = 0
        self._pump_due = False
        self._retrying = False
        client.on_metadata.append(self.wake)

    def close(self) -> None:
        self.closed = True

    def subscribe(self, topics: Sequence[str]) -> None:
        self.subscription.subscribe(topics)
        self.client.want(topics)

    def subscribe_pattern(self, pattern: str) -> None:
        self.subscription.subscribe_pattern(pattern)
        self.client.want_all()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.subscription.assign(partitions)
        self.client.want(sorted({tp.topic for tp in partitions}))
        self.wake()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.subscription.seek(tp, offset)
        self.wake()

    def wake(self) -> None:
        """Schedule a check for work."""
        if not self._pump_due and not self.closed:
            self._pump_due = True
            self.client.clock.call_soon(self._pump)

    # --- work -----------------------------------------------------------------------------------
    def _pump(self) -> None:
        self._pump_due = False
        if self.closed:
            return
        subscription = self.subscription
        if subscription.type is SubscriptionType.AUTO_PATTERN:
            subscription.match(sorted(self.client.metadata.topics))
        needed = subscription.needing_committed()
        if needed:
            if self.member is None:
                for tp in needed:
                    subscription.need_reset(tp)
            else:
                self.member.fetch_committed(needed)
        self._list_offsets(subscription.needing_reset())
        self._fetch(subscription.fetchable())

    def _again(self) -> None:
        """Look for leaders after a failure, and retry after a pause."""
        self._failures += 1
        self.client.refresh()
        if not self._retrying:
            self._retrying = True
            self.client.backoff(self._failures, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self.wake()

    # --- positions ------------------------------------------------------------------------------
    def committed_known(self, tp: TopicPartition, offset: int, epoch: int) -> None:
        """Take the committed offset of an assigned partition, -1 if there is none."""
        state = self.subscription.assignment.get(tp)
        if state is None or state.position >= 0 or state.reset is not None:
            return
        state.committed = offset
        if offset >= 0:
            self.subscription.seek(tp, offset, epoch)
            self.on_position(tp, offset)
        else:
            self.subscription.need_reset(tp)
        self.wake()

    def _list_offsets(self, partitions: list[TopicPartition]) -> None:
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            state = self.subscription.assignment[tp]
            if state.reset is ResetStrategy.NONE:
                self.on_no_position(tp)
            elif tp not in self._listing and not self._retrying:
                leader = self.client.metadata.leader(tp)
                if leader < 0:
                    self._again()
                else:
                    by_leader.setdefault(leader, []).append(tp)
        for leader in sorted(by_leader):
            self._list(leader, by_leader[leader])

    def _list(self, leader: int, partitions: list[TopicPartition]) -> None:
        asked: list[tuple[TopicPartition, int]] = []
        timestamps: dict[TopicPartition, int] = {}
        for tp in partitions:
            state = self.subscription.assignment[tp]
            assert state.reset is not None, tp
            asked.append((tp, state.incarnation))
            timestamps[tp] = state.reset.value
            self._listing.add(tp)

        def answered(response: Message | Failure) -> None:
            for tp, _ in asked:
                self._listing.discard(tp)
            if self.closed:
                return
            rows = listed(response)
            for tp, incarnation in asked:
                row = rows.get(tp)
                if row is None or row.error_code:
                    self._again()
                elif self._is_current(tp, incarnation):
                    self.subscription.seek(tp, row.offset, row.leader_epoch)
                    self.on_position(tp, row.offset)
            self.wake()

        self.client.call(leader, list_offsets, list_request(self.client, timestamps), answered)

    # --- fetching -------------------------------------------------------------------------------
    def _fetch(self, partitions: list[TopicPartition]) -> None:
        by_leader: dict[int, list[_Asked]] = {}
        leaderless = False
        for tp in partitions:
            info = self.client.metadata.partition(tp)
            if info is None or info.leader < 0:
                leaderless = True
                continue
            if info.leader not in self._fetching:
                state = self.subscription.assignment[tp]
                asked = _Asked(tp, state.position, state.incarnation, info.epoch)
                by_leader.setdefault(info.leader, []).append(asked)
        if leaderless:
            self._again()
        if self._retrying:
            return
        self._turn += 1
        for leader in sorted(by_leader):
            # Partitions take turns: an answer may have room for the first one alone.
            row = by_leader[leader]
            first = self._turn % len(row)
            self._fetch_from(leader, row[first:] + row[:first])

    def _fetch_from(self, leader: int, asked: list[_Asked]) -> None:
        self._fetching[leader] = asked_ns = self.client.clock.now_ns()
        versions = [0]

        def answered(response: Message | Failure) -> None:
            del self._fetching[leader]
            if self.closed:
                return
            if isinstance(response, Failure) or response.error_code:
                self._sessions.pop(leader, None)
                self._again()
                return
            if leader in self._sessions:
                self._sessions[leader].answered(response.session_id)
            self._failures = 0
            rows: dict[TopicPartition, fetch.PartitionData] = {}
            for topic in response.responses:
                name = topic.topic or self.client.metadata.names.get(topic.topic_id, "")
                for row in topic.partitions:
                    found = TopicPartition(name, row.partition_index)
                    rows[found] = row
                    if not row.error_code:
                        self.told[found] = row.high_watermark, row.log_start_offset
            for want in asked:
                if want.tp in rows:
                    if versions[0] < _FETCH_WITH_EPOCHS:
                        want.epoch = -1
                    self._take(leader, want, rows[want.tp], asked_ns)
            pause_ms = self.options.poll_interval_ms
            if pause_ms:
                self.client.clock.call_later(pause_ms * 1_000_000, self.wake)
            else:
                self.wake()

        options = self.options
        timeout_ms = options.max_wait_ms + self.client.options.request_timeout_ms
        build = self._request(leader, asked, versions)
        self.client.call(leader, fetch, build, answered, timeout_ms)

    def _request(
        self, leader: int, asked: list[_Asked], versions: list[int]
    ) -> Callable[[int], fetch.FetchRequest]:
        """Return the request builder; it stores the version it was called with in `versions`."""
        options = self.options

        def build(version: int) -> fetch.FetchRequest:
            versions[0] = version
            topics: dict[str, fetch.FetchTopic] = {}
            for want in asked:
                name = want.tp.topic
                topic = topics.get(name)
                if topic is None:
                    topic = fetch.FetchTopic(name, self.client.metadata.topic_id(name))
                    topics[name] = topic
                topic.partitions.append(
                    fetch.FetchPartition(
                        partition=want.tp.partition,
                        current_leader_epoch=want.epoch,
                        fetch_offset=want.position,
                        partition_max_bytes=options.partition_bytes_max,
                    )
                )
            if version >= _FETCH_WITH_TOPIC_IDS:
                topics = {n: t for n, t in topics.items() if t.topic_id != ZERO_UUID}
            request = fetch.FetchRequest(
                max_wait_ms=options.max_wait_ms,
                min_bytes=options.min_bytes,
                max_bytes=options.fetch_bytes_max,
                isolation_level=int(options.read_committed),
                topics=list(topics.values()),
            )
            if options.fetch_sessions and version >= _FETCH_WITH_SESSIONS:
                by_id = version >= _FETCH_WITH_TOPIC_IDS
                session = self._sessions.setdefault(leader, FetchSession())
                session.reduce(request, by_id=by_id)
            return request

        return build

    def _take(self, leader: int, want: _Asked, row: fetch.PartitionData, asked_ns: int) -> None:
        # The position has also moved on if a fetch from an earlier leader was overtaken.
        if not self._is_current(want.tp, want.incarnation, want.position):
            return
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.subscription.need_reset(want.tp)
            return
        if row.error_code:
            self._again()
            return
        fetched = Fetched(
            want.tp, [], [], row.high_watermark, want.epoch, leader, asked_ns, want.position,
            row.last_stable_offset,
        )  # fmt: skip
        dropping = _Dropping(row.aborted_transactions or [])
        for batch in split_batches(memoryview(_joined(row.records))):
            if not crc_matches(batch):
                self.corrupt.append(f"{want.tp} from server {leader}")
                return
            header = read_header(batch)
            fetched.end, fetched.end_epoch = header.last_offset + 1, header.leader_epoch
            if header.is_control:
                dropping.ended(header)
                continue
            records = _records_of(batch)
            if not _is_what_it_says(header, records):
                self.corrupt.append(f"{want.tp} at {header.base_offset}: {header}")
                return
            if dropping.drops(header):
                continue
            for record in records:
                if record.offset >= want.position:
                    fetched.records.append(record)
                    fetched.epochs.append(header.leader_epoch)
        self.on_fetched(fetched)
        is_further = fetched.end > want.position
        if is_further and self._is_current(want.tp, want.incarnation, want.position):
            self.subscription.consumed(want.tp, fetched.end, fetched.end_epoch)

    def _is_current(self, tp: TopicPartition, incarnation: int, position: int = -1) -> bool:
        """Return True if the partition is still assigned and still at the position."""
        state = self.subscription.assignment.get(tp)
        if state is None or state.incarnation != incarnation:
            return False
        return position < 0 or state.position == position


class _Dropping:
    """Filter for batches of aborted transactions in one answer, as in all Kafka clients."""

    def __init__(self, listed: Sequence[fetch.AbortedTransaction]) -> None:
        self._coming = sorted(((one.first_offset, one.producer_id) for one in listed), reverse=True)
        self._producers: set[int] = set()

    def drops(self, header: BatchHeader) -> bool:
        self._begin(header)
        return header.is_transactional and header.producer_id in self._producers

    def ended(self, header: BatchHeader) -> None:
        self._begin(header)
        self._producers.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._producers.add(self._coming.pop()[1])


def _records_of(batch: memoryview) -> list[Record]:
    """Return the records of a batch, or none if they cannot be read."""
    try:
        return list(iter_records(batch))
    except CorruptBatch:
        return []


def _is_what_it_says(header: BatchHeader, records: list[Record]) -> bool:
    """Return True if the records match the header: dense offsets, count, largest timestamp."""
    count = len(records)
    return (
        0 < count == header.count == header.last_offset_delta + 1
        and [record.offset - header.base_offset for record in records] == list(range(count))
        and header.max_timestamp == max(record.timestamp for record in records)
    )


def list_request(
    client: KafkaClient, timestamps: dict[TopicPartition, int]
) -> Callable[[int], list_offsets.ListOffsetsRequest]:
    """Return a builder of requests for the first offset at or after each timestamp.

    -1: latest, -2: earliest.
    """

    def build(_version: int) -> list_offsets.ListOffsetsRequest:
        topics: dict[str, list_offsets.ListOffsetsTopic] = {}
        for tp, timestamp in timestamps.items():
            info = client.metadata.partition(tp)
            topic = topics.setdefault(tp.topic, list_offsets.ListOffsetsTopic(tp.topic))
            topic.partitions.append(
                list_offsets.ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=info.epoch if info is not None else -1,
                    timestamp=timestamp,
                )
            )
        return list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=list(topics.values()), timeout_ms=2_000
        )

    return build


def listed(
    response: Message | Failure,
) -> dict[TopicPartition, list_offsets.ListOffsetsPartitionResponse]:
    """Return the rows of a ListOffsets answer."""
    if isinstance(response, Failure):
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): row
        for topic in response.topics
        for row in topic.partitions
    }


def _joined(records: object) -> bytes | memoryview:
    if records is None:
        return b""
    if isinstance(records, list):
        return b"".join(records)
    assert isinstance(records, bytes | bytearray | memoryview), type(records)
    return memoryview(records)


def _ignore(tp: TopicPartition) -> None:
    """Ignore it: the default of `on_no_position`."""


def _ignore_position(tp: TopicPartition, offset: int) -> None:
    """Ignore it: the default of `on_position`."""
