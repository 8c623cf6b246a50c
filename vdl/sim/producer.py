"""A producer: ordered batches per partition, pipelined, retried, idempotent or not.

A batch keeps its sequence from its first attempt to its end, so the server recognises a retry
(KIP-98). Up to `in_flight_max` batches of a partition are in flight at once, and a batch is sent
only after all earlier ones. When a batch's result can no longer be determined, the producer takes a
new producer id: batches sent under the old one end as unknown and are never sent again, because
under a new id the server could not recognise them.

Each batch ends once, as a `Delivery`: DELIVERED with its offset, FAILED if every attempt was
provably not appended, UNKNOWN otherwise. `DEFINITE` lists the errors that prove it. Does not depend
on readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vdl.clock import MS, NEVER
from vdl.errors import ErrorCode
from vdl.kafka.wire import init_producer_id, produce
from vdl.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchFields, Record, build_batch
from vdl.records.compression import Compression
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.subscription import TopicPartition
from vdl.state.producers import WINDOW_BATCHES

DEFINITE = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP, ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )
)  # fmt: skip
"""Errors that prove that this attempt appended nothing."""

RETRIABLE = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH,
    )
)  # fmt: skip

EXPIRY_PAUSE_NS = 100 * MS
EXPIRY_MARGIN = 0.9
"""Share of the expiry time after which a server whose clock runs fast may expire a producer."""
_RESET = frozenset(
    (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.PRODUCER_FENCED)
)


class Fate(Enum):
    """Result of a batch."""

    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Delivery:
    """End of one batch. `offset` is that of its first record; `attempts` counts requests sent."""

    fate: Fate
    offset: int = -1
    error: int = 0
    attempts: int = 0
    node: int = -1
    producer_id: int = NO_PRODUCER_ID
    log_append_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """A producer's settings, named as in Kafka."""

    idempotent: bool = True
    acks: int = -1
    in_flight_max: int = 5
    retries: int = 1_000
    delivery_timeout_ms: int = 10_000
    request_timeout_ms: int = 2_000
    compression: Compression = Compression.NONE
    expiry_ms: int = 86_400_000
    """Time for which servers remember an idle producer (`producer.id.expiration.ms`)."""


@dataclass(slots=True, eq=False)
class _Batch:
    records: Sequence[Record]
    done: Callable[[Delivery], None]
    deadline_ns: int
    sequence: int = NO_SEQUENCE
    producer_id: int = NO_PRODUCER_ID
    attempts: int = 0
    first_sent_ns: int = 0
    in_flight: bool = False
    sent_to: int = -1
    """The server of the newest attempt."""
    uncertain: bool = False
    """True if the result of an attempt is unknown."""
    last_error: int = 0
    later_delivered: int = 0
    """Later batches that were acknowledged while this one was unfinished."""


@dataclass(slots=True)
class _Partition:
    """One partition's unfinished batches, in order. Those in flight come first."""

    batches: list[_Batch] = field(default_factory=list)
    next_sequence: int = 0
    appended_ns: int = -NEVER
    """Earliest time at which the newest acknowledged batch of this producer id was appended."""
    appended_offset: int = -1
    """Offset of that batch; -1: unknown."""
    failures: int = 0
    muted: bool = False
    """True during a back-off."""


class Producer:
    """Sender of batches through a client."""

    def __init__(self, client: KafkaClient, options: ProducerOptions | None = None) -> None:
        self.client = client
        self.options = options or ProducerOptions()
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.closed = False
        self.order_lost: list[TopicPartition] = []
        """Partitions whose oldest batch was called out of order although no earlier one had failed:
        a server either has that batch, or expects it.
        """
        self.who_forgot: Callable[[TopicPartition, int, int], str] | None = None
        """Called with a partition, the producer id, and the offset of an appended batch.

        Returns a replica that has applied the batch and does not know the producer, if there is
        one.
        """
        self.forgotten_early: list[str] = []
        """Replicas that did not know this producer although it was active shortly before."""
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._asking = False
        self._resetting = False
        self._pump_due = False
        self._expiry_armed = False
        client.on_metadata.append(self._pump)
        if self.options.idempotent:
            self._ask_producer_id(0)

    @property
    def unfinished(self) -> int:
        """Number of unfinished batches."""
        return sum(len(p.batches) for p in self._partitions.values())

    def send(
        self, tp: TopicPartition, records: Sequence[Record], done: Callable[[Delivery], None]
    ) -> None:
        """Append one batch to the partition. `done` is called once, with its result."""
        assert not self.closed, "the producer is closed"
        now_ns = self.client.clock.now_ns()
        deadline_ns = now_ns + self.options.delivery_timeout_ms * MS
        batch = _Batch(records, done, deadline_ns)
        self._partitions.setdefault(tp, _Partition()).batches.append(batch)
        self.client.want([tp.topic])
        self._arm_expiry()
        self._schedule()

    def close(self) -> None:
        """End every batch with its current result."""
        self.closed = True
        for tp in sorted(self._partitions):
            partition = self._partitions[tp]
            for batch in list(partition.batches):
                self._finish(partition, batch, self._given_up(batch))

    # --- producer id ----------------------------------------------------------------------------
    def _ask_producer_id(self, attempts: int) -> None:
        if self.closed:
            return
        self._asking = True

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure) or response.error_code:
                self.client.backoff(attempts, lambda: self._ask_producer_id(attempts + 1))
                return
            self._asking = False
            self.producer_id = response.producer_id
            self.producer_epoch = response.producer_epoch
            self._schedule()

        self.client.call_any(
            init_producer_id,
            lambda _: init_producer_id.InitProducerIdRequest(transactional_id=None),
            answered,
        )

    def _reset_when_quiet(self) -> None:
        """Take a new producer id once nothing is in flight under the old one."""
        self._resetting = True
        if any(b.in_flight for p in self._partitions.values() for b in p.batches):
            return
        self._resetting = False
        for tp in sorted(self._partitions):
            partition = self._partitions[tp]
            partition.next_sequence = 0
            partition.appended_ns = -NEVER
            partition.appended_offset = -1
            for batch in list(partition.batches):
                if batch.uncertain:
                    self._finish(partition, batch, self._given_up(batch))
                else:
                    batch.sequence = NO_SEQUENCE
        self.producer_id = NO_PRODUCER_ID
        self._ask_producer_id(0)

    # --- sending --------------------------------------------------------------------------------
    def _schedule(self) -> None:
        if not self._pump_due and not self.closed:
            self._pump_due = True
            self.client.clock.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_due = False
        self._pump()

    def _pump(self) -> None:
        """Send to each leader, in one request, the next batch of each of its partitions."""
        if self.closed or self._resetting or (self.options.idempotent and self._asking):
            return
        while True:
            requests: dict[int, list[tuple[TopicPartition, _Batch]]] = {}
            leaderless = False
            for tp in sorted(self._partitions):
                batch = self._next(self._partitions[tp])
                if batch is None:
                    continue
                leader = self.client.metadata.leader(tp)
                if leader < 0:
                    leaderless = True
                elif not self._awaits_another(self._partitions[tp], leader):
                    requests.setdefault(leader, []).append((tp, batch))
            if leaderless:
                self.client.refresh()
            if not requests:
                return
            for leader in sorted(requests):
                self._send(leader, requests[leader])

    def _next(self, partition: _Partition) -> _Batch | None:
        """Return the batch to send now, if there is room: all before it are in flight."""
        if partition.muted:
            return None
        for i, batch in enumerate(partition.batches):
            if i >= self.options.in_flight_max:
                return None
            if not batch.in_flight:
                return batch
        return None

    def _awaits_another(self, partition: _Partition, leader: int) -> bool:
        """Return True if batches are still in flight to an earlier leader.

        Only sequence numbers keep the order over several connections, so a plain producer waits for
        the answers.
        """
        return not self.options.idempotent and any(
            batch.in_flight and batch.sent_to != leader for batch in partition.batches
        )

    def _send(self, leader: int, chosen: list[tuple[TopicPartition, _Batch]]) -> None:
        idempotent = self.options.idempotent
        payloads: list[tuple[TopicPartition, bytearray]] = []
        for tp, batch in chosen:
            partition = self._partitions[tp]
            batch.in_flight = True
            batch.sent_to = leader
            batch.attempts += 1
            if batch.attempts == 1:
                batch.first_sent_ns = self.client.clock.now_ns()
                self._note_forgotten(tp, partition)
            if idempotent and batch.sequence == NO_SEQUENCE:
                batch.sequence = partition.next_sequence
                batch.producer_id = self.producer_id
                partition.next_sequence += len(batch.records)
            fields = BatchFields(
                compression=self.options.compression,
                producer_id=self.producer_id if idempotent else NO_PRODUCER_ID,
                producer_epoch=self.producer_epoch if idempotent else -1,
                base_sequence=batch.sequence,
            )
            payloads.append((tp, build_batch(batch.records, fields)))

        def build(version: int) -> produce.ProduceRequest:
            topics: dict[str, produce.TopicProduceData] = {}
            for tp, payload in payloads:
                topic = topics.get(tp.topic)
                if topic is None:
                    topic_id = self.client.metadata.topic_id(tp.topic)
                    topic = topics[tp.topic] = produce.TopicProduceData(tp.topic, topic_id)
                topic.partition_data.append(produce.PartitionProduceData(tp.partition, payload))
            return produce.ProduceRequest(
                acks=self.options.acks,
                timeout_ms=self.options.request_timeout_ms // 2,
                topic_data=list(topics.values()),
            )

        if self.options.acks == 0:
            self.client.call(leader, produce, build, None)
            for tp, batch in chosen:
                batch.uncertain = True
                self._finish(self._partitions[tp], batch, self._given_up(batch))
            return
        self.client.call(
            leader,
            produce,
            build,
            lambda response: self._answered(leader, chosen, response),
            self.options.request_timeout_ms,
        )

    # --- answers --------------------------------------------------------------------------------
    def _answered(
        self, node: int, chosen: list[tuple[TopicPartition, _Batch]], response: Message | Failure
    ) -> None:
        results: dict[TopicPartition, produce.PartitionProduceResponse] = {}
        if not isinstance(response, Failure):
            names = self.client.metadata.names
            for topic in response.responses:
                name = topic.name or names.get(topic.topic_id, "")
                for row in topic.partition_responses:
                    results[TopicPartition(name, row.index)] = row
        for tp, batch in chosen:
            partition = self._partitions[tp]
            batch.in_flight = False
            if batch not in partition.batches:
                continue
            row = results.get(tp)
            if row is None:
                sent = not isinstance(response, Failure) or response.sent
                self._attempt_failed(
                    tp, batch, ErrorCode.NETWORK_EXCEPTION, node, definite=not sent
                )
            elif row.error_code in {0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
                partition.failures = 0
                offset = row.base_offset if row.error_code == 0 else -1
                if batch.producer_id == self.producer_id and offset >= partition.appended_offset:
                    partition.appended_ns = batch.first_sent_ns
                    partition.appended_offset = offset
                for earlier in partition.batches[: partition.batches.index(batch)]:
                    earlier.later_delivered += 1
                delivery = Delivery(Fate.DELIVERED, offset, 0, batch.attempts, node)
                delivery.log_append_time_ms = row.log_append_time_ms
                self._finish(partition, batch, delivery)
            else:
                definite = row.error_code in DEFINITE
                self._attempt_failed(tp, batch, row.error_code, node, definite=definite)
        if self._resetting:
            self._reset_when_quiet()
        self._schedule()

    def _attempt_failed(
        self, tp: TopicPartition, batch: _Batch, error: int, node: int, *, definite: bool
    ) -> None:
        partition = self._partitions[tp]
        batch.last_error = error
        batch.uncertain |= not definite
        if error == ErrorCode.UNKNOWN_PRODUCER_ID:
            # Servers return this only with more producers than a world has.
            self.forgotten_early.append(f"{tp} called producer {self.producer_id} unknown")
        # While an earlier batch is being retried, "out of order" is the correct answer.
        waits_for_earlier = (
            error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and partition.batches[0] is not batch
        )
        lost_order = error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not waits_for_earlier
        retriable = error in RETRIABLE or waits_for_earlier
        # Servers remember only the last batches of a producer. If an answer of a former leader was
        # lost, and as many later batches were appended, there or by the new leader, a retry is out
        # of order, as with Kafka.
        later = partition.batches[partition.batches.index(batch) + 1 :]
        later_appended = batch.later_delivered + sum(one.uncertain for one in later)
        is_remembered = later_appended < WINDOW_BATCHES
        if lost_order and is_remembered and not self._resetting:
            self.order_lost.append(tp)
        if self.options.idempotent and (error in _RESET or lost_order):
            if error in _RESET and not batch.uncertain:
                batch.sequence = NO_SEQUENCE
            else:
                self._finish(partition, batch, self._given_up(batch, node))
            self._reset_when_quiet()
            return
        if not retriable or batch.attempts > self.options.retries:
            self._finish(partition, batch, self._given_up(batch, node))
            if self.options.idempotent:
                # Its sequence may have been used or not: start a new one.
                self._reset_when_quiet()
            return
        self.client.refresh()
        if not partition.muted:
            partition.muted = True
            partition.failures += 1
            self.client.backoff(partition.failures, lambda: self._unmute(partition))

    def _note_forgotten(self, tp: TopicPartition, partition: _Partition) -> None:
        """Check that no replica forgot the producer before its expiry, by clocks that drift."""
        if self.who_forgot is None or partition.appended_offset < 0:
            return
        idle_ms = (self.client.clock.now_ns() - partition.appended_ns) // MS
        if idle_ms < self.options.expiry_ms * EXPIRY_MARGIN:
            who = self.who_forgot(tp, self.producer_id, partition.appended_offset)
            if who:
                what = f"{who} forgot producer {self.producer_id}, idle for {idle_ms} ms at most"
                self.forgotten_early.append(what)

    def _unmute(self, partition: _Partition) -> None:
        # A batch is retried only after those behind it have been answered too: on a new connection
        # they would otherwise overtake it.
        if any(batch.in_flight for batch in partition.batches):
            self.client.backoff(0, lambda: self._unmute(partition))
            return
        partition.muted = False
        self._schedule()

    def _arm_expiry(self) -> None:
        """Arm one timer for the earliest deadline. Batches in flight past it are checked again."""
        if self._expiry_armed or not self.unfinished:
            return
        self._expiry_armed = True
        first_ns = min(p.batches[0].deadline_ns for p in self._partitions.values() if p.batches)
        delay_ns = max(first_ns - self.client.clock.now_ns(), EXPIRY_PAUSE_NS)
        self.client.clock.call_later(delay_ns, self._expire)

    def _expire(self) -> None:
        """End batches past their deadline, unless they are in flight.

        For those the answer, or the request's own timeout, comes first.
        """
        self._expiry_armed = False
        now_ns = self.client.clock.now_ns()
        gap = False
        for tp in sorted(self._partitions):
            partition = self._partitions[tp]
            for batch in list(partition.batches):
                if batch.deadline_ns <= now_ns and not batch.in_flight:
                    gap |= batch.sequence != NO_SEQUENCE
                    self._finish(partition, batch, self._given_up(batch))
        if gap and self.options.idempotent and not self.closed:
            self._reset_when_quiet()
        self._arm_expiry()

    def _given_up(self, batch: _Batch, node: int = -1) -> Delivery:
        unknown = batch.uncertain or batch.in_flight
        fate = Fate.UNKNOWN if unknown else Fate.FAILED
        return Delivery(fate, -1, batch.last_error, batch.attempts, node)

    def _finish(self, partition: _Partition, batch: _Batch, delivery: Delivery) -> None:
        if batch not in partition.batches:
            return
        partition.batches.remove(batch)
        delivery.producer_id = batch.producer_id
        batch.done(delivery)
