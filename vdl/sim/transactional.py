"""Transactional producers, and READ_COMMITTED readers, in a topic of their own.

Each producer writes a few batches to several partitions and ends the transaction, or crashes in the
middle of it and comes back as another instance of the same transactional id. Some transactions also
commit an offset of a consumer group (`transaction_positions.py`). Half of the producers use the
first version of the protocol (KIP-98), half the second (KIP-890). A transaction is one operation of
the history: ok if its commit was answered, fail if it can never be committed, otherwise unknown.
`vdl.check` decides which records readers may see, and when.

At the end all transactions have ended on every replica, and each replica's list of aborted ones
matches its own log. Does not depend on faults or on how transactions are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import ModuleType

import segments.api as storage
from vdl.check.history import Op, Send
from vdl.check.history import Record as Seen
from vdl.check.transactions import READ_COMMITTED
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import (
    add_partitions_to_txn,
    create_topics,
    end_txn,
    find_coordinator,
    init_producer_id,
    produce,
)
from vdl.logstream.group.log_stream import LogStream
from vdl.records.batch import BatchFields, Record, build_batch, read_header
from vdl.records.markers import read_marker
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.consumer import Consumer, ConsumerOptions, Fetched
from vdl.sim.machine import Machine
from vdl.sim.recorder import Invoked, make_record, value_of
from vdl.sim.subscription import ResetStrategy, SubscriptionState, TopicPartition
from vdl.sim.transaction_positions import NONE as NO_POSITION
from vdl.sim.transaction_positions import TransactionPositions
from vdl.sim.workload import Env, note_poll

TOPIC = "exact"
READERS = 2
TIMEOUT_MS = 4_000
"""Transaction timeout: a coordinator then aborts a transaction left open."""
ATTEMPT_MS = 2_500
"""Time for which one batch, or adding its partitions, is tried."""
BATCHES_MAX = 5
DIES = 0.1
COMMITS = 0.6
_PAUSE_MS = 400
_ALREADY_THERE = 36
_KEY_IS_TRANSACTIONAL_ID = 1
_READ_BYTES = 1 << 20

POSITIONS = 0.3
"""Share of transactions that commit an offset, and share of those before which the offset is
checked.
"""

OLD_PRODUCER = {0: 11, 24: 3, 25: 3, 26: 4, 28: 4}
"""API version caps of a producer of the first version of the protocol."""

_ELSEWHERE = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    )
)  # fmt: skip
_AGAIN = _ELSEWHERE | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.FENCED_LEADER_EPOCH,
}
"""Errors that pass, or follow from one that does: the batch before may be in flight."""


@dataclass(slots=True)
class _Transaction:
    """One transaction, from its first batch to its end."""

    invoked: Invoked
    commits: bool
    sends: list[Send] = field(default_factory=list)
    waiting: int = 0
    """Batches that are not answered yet."""
    is_broken: bool = False
    """True if a batch failed: the transaction can only be aborted."""
    ended_ns: int = -1
    """Time at which its commit was requested."""
    is_open: bool = False
    """True if an answer to its end was lost."""
    position: int = NO_POSITION
    """Offset that it commits in the producer's group."""


@dataclass(slots=True)
class _Batch:
    tp: TopicPartition
    records: list[Record]
    sequence: int
    deadline_ns: int
    attempts: int = 0


class TransactionalProducer:
    """One transactional producer. It runs one transaction at a time."""

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self.name = name
        self._env = env
        self._rng = rng
        self._is_old = rng.random() < 0.5
        self._client = env.client(name, host, rng, OLD_PRODUCER if self._is_old else {})
        self._client.want([TOPIC])
        self._producer_id, self._epoch = -1, -1
        self._coordinator = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._failures = 0
        self._is_stopping = False
        self.is_idle = False
        """True once it has stopped and has no transaction open."""
        self.ended = 0
        """Number of transactions whose end was answered."""
        self.positions = TransactionPositions(self._client, name, TOPIC)
        self._begin_instance()

    def stop(self) -> None:
        self._is_stopping = True

    def close(self) -> None:
        self._client.close()

    # --- instances -----------------------------------------------------------------------------
    def _begin_instance(self) -> None:
        """Begin a new instance of the transactional id.

        It fences the previous one, and aborts the transaction that this has left open.
        """

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure) or response.error_code:
                self._again(response, self._begin_instance)
                return
            self._failures = 0
            self._goes_on_with(response.producer_id, response.producer_epoch)
            self._next()

        request = init_producer_id.InitProducerIdRequest(self.name, TIMEOUT_MS)
        self._ask(init_producer_id, lambda _: request, answered)

    def _goes_on_with(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _next(self) -> None:
        """Begin the next transaction after a short pause."""
        if self._is_stopping:
            self.positions.look(self._stopped)
            return
        begin = self._begin
        if self._rng.random() < POSITIONS:
            begin = partial(self.positions.look, self._begin)
        self._client.clock.call_later(self._rng.randint(1, _PAUSE_MS) * MS, begin)

    def _stopped(self) -> None:
        self.is_idle = True

    def _ask(
        self,
        api: ModuleType,
        build: Callable[[int], Message],
        answered: Callable[[Message | Failure], None],
    ) -> None:
        """Send a request to the coordinator, once it is known."""
        if self._coordinator < 0:
            self._find(partial(self._ask, api, build, answered))
        else:
            self._client.call(self._coordinator, api, build, answered)

    def _find(self, then: Callable[[], None]) -> None:
        def build(version: int) -> find_coordinator.FindCoordinatorRequest:
            kind = _KEY_IS_TRANSACTIONAL_ID
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest("", kind, [self.name])
            return find_coordinator.FindCoordinatorRequest(self.name, kind)

        def answered(response: Message | Failure) -> None:
            row = response
            if not isinstance(response, Failure) and response.coordinators:
                row = response.coordinators[0]
            if isinstance(row, Failure) or row.error_code:
                self._again(row, partial(self._find, then))
                return
            self._coordinator = row.node_id
            self._client.refresh()
            then()

        self._client.call_any(find_coordinator, build, answered)

    def _again(self, response: Message | Failure, step: Callable[[], None]) -> None:
        if isinstance(response, Failure) or response.error_code in _ELSEWHERE:
            self._coordinator = -1
        self._failures += 1
        self._client.backoff(self._failures, step)

    # --- transactions --------------------------------------------------------------------------
    def _begin(self) -> None:
        rng = self._rng
        self._added.clear()
        transaction = _Transaction(self._env.recorder.invoke(), rng.random() < COMMITS)
        batches: list[_Batch] = []
        deadline_ns = self._client.clock.now_ns() + ATTEMPT_MS * MS
        for _ in range(rng.randint(1, BATCHES_MAX)):
            tp = TopicPartition(TOPIC, rng.randrange(self._env.options.transactional_partitions))
            records: list[Record] = []
            for _ in range(rng.randint(1, 3)):
                value = self._env.recorder.new_value()
                now_ms = self._client.clock.wall_ms()
                records.append(make_record(value, rng, bytes_max=200, timestamp=now_ms))
                transaction.sends.append(Send(str(tp), None, value))
            sequence = self._sequences.get(tp, 0)
            self._sequences[tp] = sequence + len(records)
            batches.append(_Batch(tp, records, sequence, deadline_ns))
        transaction.waiting = len(batches)
        if rng.random() < POSITIONS:
            transaction.waiting += 1
            transaction.position = self.positions.commit(
                self._producer_id,
                self._epoch,
                deadline_ns=deadline_ns,
                tell=self._ask if self._is_old else None,
                ended=partial(self._position_ended, transaction),
            )
        if self._is_old:
            self._add({batch.tp for batch in batches}, transaction, batches)
        else:
            self._send_all(transaction, batches)

    def _add(
        self, partitions: set[TopicPartition], transaction: _Transaction, batches: list[_Batch]
    ) -> None:
        """Add the partitions at the coordinator, as producers of the first version do."""
        deadline_ns = batches[0].deadline_ns
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(
            TOPIC, sorted(tp.partition for tp in partitions)
        )

        def build(version: int) -> add_partitions_to_txn.AddPartitionsToTxnRequest:
            return add_partitions_to_txn.AddPartitionsToTxnRequest(
                [], self.name, self._producer_id, self._epoch, [topic]
            )

        def answered(response: Message | Failure) -> None:
            codes = {ErrorCode.NETWORK_EXCEPTION}
            if not isinstance(response, Failure):
                rows = response.results_by_topic_v3_and_below
                codes = {r.partition_error_code for row in rows for r in row.results_by_partition}
            if codes == {ErrorCode.NONE}:
                self._failures = 0
                self._send_all(transaction, batches)
            elif codes <= _AGAIN | {ErrorCode.NONE} and self._client.clock.now_ns() < deadline_ns:
                if codes & _ELSEWHERE:
                    self._coordinator = -1
                self._failures += 1
                self._client.backoff(self._failures, ask)
            else:
                transaction.is_broken = True
                transaction.waiting -= len(batches)
                if not transaction.waiting:
                    self._end(transaction)

        def ask() -> None:
            self._ask(add_partitions_to_txn, build, answered)

        ask()

    def _send_all(self, transaction: _Transaction, batches: Sequence[_Batch]) -> None:
        """Send all batches at once: those of a partition follow one another on its connection."""
        for batch in batches:
            self._send(transaction, batch)

    def _send(self, transaction: _Transaction, batch: _Batch) -> None:
        leader = self._client.metadata.leader(batch.tp)
        if leader < 0:
            self._client.refresh()
            self._failed(transaction, batch, ErrorCode.LEADER_NOT_AVAILABLE)
            return
        fields = BatchFields(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.sequence,
            is_transactional=True,
        )
        data = build_batch(batch.records, fields)

        def build(version: int) -> produce.ProduceRequest:
            topic_id = self._client.metadata.topic_id(TOPIC)
            part = produce.PartitionProduceData(batch.tp.partition, data)
            topic = produce.TopicProduceData(TOPIC, topic_id, [part])
            return produce.ProduceRequest(self.name, -1, ATTEMPT_MS // 2, [topic])

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure):
                self._failed(transaction, batch, ErrorCode.NETWORK_EXCEPTION)
                return
            row = response.responses[0].partition_responses[0]
            if row.error_code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
                self._taken(transaction, batch, row.base_offset)
            else:
                self._failed(transaction, batch, row.error_code)

        self._client.call(leader, produce, build, answered, ATTEMPT_MS)

    def _taken(self, transaction: _Transaction, batch: _Batch, offset: int) -> None:
        values = {value_of(record): delta for delta, record in enumerate(batch.records)}
        for send in transaction.sends:
            if send.value in values and offset >= 0:
                send.offset = offset + values[send.value]
        self._batch_ended(transaction)

    def _failed(self, transaction: _Transaction, batch: _Batch, error: int) -> None:
        """Retry a failed batch, under its own sequence number, or break the transaction."""
        passes = error in _AGAIN or error == ErrorCode.LEADER_NOT_AVAILABLE
        if passes and self._client.clock.now_ns() < batch.deadline_ns:
            batch.attempts += 1
            self._client.refresh()
            self._client.backoff(batch.attempts, partial(self._send, transaction, batch))
        else:
            transaction.is_broken = True
            self._batch_ended(transaction)

    def _position_ended(self, transaction: _Transaction, is_in: bool) -> None:
        transaction.is_broken |= not is_in
        self._batch_ended(transaction)

    def _batch_ended(self, transaction: _Transaction) -> None:
        transaction.waiting -= 1
        if not transaction.waiting:
            self._end(transaction)

    # --- ends of transactions ------------------------------------------------------------------
    def _end(self, transaction: _Transaction) -> None:
        if self._rng.random() < DIES:
            # No commit was requested: the next instance, or the timeout, aborts it.
            self._over(transaction, "fail")
            self._client.clock.call_later(self._rng.randint(0, 300) * MS, self._begin_instance)
            return
        commits = transaction.commits and not transaction.is_broken
        if commits:
            transaction.ended_ns = self._env.recorder.invoke().t0
        else:
            self._over(transaction, "fail")
        self._ask_end(transaction, commits=commits)

    def _ask_end(self, transaction: _Transaction, *, commits: bool) -> None:
        request = end_txn.EndTxnRequest(self.name, self._producer_id, self._epoch, commits)

        def answered(response: Message | Failure) -> None:
            code = ErrorCode.NETWORK_EXCEPTION
            if not isinstance(response, Failure):
                code = response.error_code
            if code is not ErrorCode.NONE and code in _AGAIN:
                transaction.is_open |= code in _ELSEWHERE
                again = partial(self._ask_end, transaction, commits=commits)
                self._coordinator = -1 if code in _ELSEWHERE else self._coordinator
                self._failures += 1
                self._client.backoff(self._failures, again)
                return
            self._failures = 0
            if code == ErrorCode.NONE:
                self.ended += 1
                if commits:
                    self._over(transaction, "ok")
                if not isinstance(response, Failure) and response.producer_id >= 0:
                    self._goes_on_with(response.producer_id, response.producer_epoch)
                # If the epoch continues, sequence numbers of failed batches are missing.
                is_whole = not (transaction.is_broken and self._is_old)
                self._next() if is_whole else self._begin_instance()
                return
            if commits:
                # It took too long and was aborted, unless a commit was lost on its way.
                self._over(transaction, "info" if transaction.is_open else "fail")
            self._begin_instance()

        self._ask(end_txn, lambda _: request, answered)

    def _over(self, transaction: _Transaction, kind: str) -> None:
        if transaction.position != NO_POSITION:
            self.positions.over(transaction.position, kind)
        op: Op = self._env.recorder.returned(transaction.invoked, self.name, "txn", kind)
        op.pid, op.epoch = self._producer_id, self._epoch
        op.end = transaction.ended_ns
        op.sends = transaction.sends


class Rebuilt:
    """Transactions according to a log, rebuilt batch by batch."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """Producer id → first offset."""
        self.ranges: list[tuple[int, int, int]] = []
        """(producer id, first offset, offset of the marker) of aborted transactions."""

    def take(self, batch: memoryview, offset: int) -> None:
        header = read_header(batch)
        if not header.is_transactional:
            return
        if not header.is_control:
            self.open.setdefault(header.producer_id, offset)
            return
        marker = read_marker(batch)
        first = self.open.pop(header.producer_id, -1)
        if marker is not None and first >= 0 and not marker.commit:
            self.ranges.append((header.producer_id, first, offset))


class TransactionalTopic:
    """The topic with its producers and readers."""

    def __init__(
        self,
        env: Env,
        machines: Sequence[Machine],
        client: KafkaClient,
        host: str,
        rng: Random,
        *,
        count: int,
    ) -> None:
        """Create the topic. `count`: producers. `host`: machine of the producers and readers."""
        self._host = host
        self._env = env
        self._machines = machines
        self._client = client
        self._rng = rng
        self._count = count
        self._partitions = env.options.transactional_partitions
        self.producers: list[TransactionalProducer] = []
        self._readers: list[Consumer] = []
        self._is_ending = False
        self._invoked: Invoked | None = None
        self._final: Consumer | None = None
        self._found: dict[TopicPartition, list[Seen]] = {}
        self._create()

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, partition) for partition in range(self._partitions)]

    def _create(self) -> None:
        request = create_topics.CreateTopicsRequest(
            [create_topics.CreatableTopic(TOPIC, self._partitions, -1)], timeout_ms=2_000
        )

        def answered(response: Message | Failure) -> None:
            codes = {0, _ALREADY_THERE}
            if not isinstance(response, Failure) and response.topics[0].error_code in codes:
                self._begin()
            elif not self._is_ending:
                self._client.backoff(3, self._create)

        self._client.call_any(create_topics, lambda _: request, answered)

    def _begin(self) -> None:
        if self._is_ending:
            return
        for n in range(self._count):
            rng = Random(self._rng.getrandbits(64))
            self.producers.append(TransactionalProducer(self._env, f"tx{n}", self._host, rng))
        for n in range(READERS):
            self._readers.append(self._read(f"rc{n}", n))

    def _read(self, name: str, number: int) -> Consumer:
        client = self._env.client(name, self._host, Random(self._rng.getrandbits(64)), {})
        consumer = Consumer(
            client,
            SubscriptionState(ResetStrategy.EARLIEST),
            lambda fetched: note_poll(self._env, name, fetched, iso=READ_COMMITTED),
            ConsumerOptions(
                max_wait_ms=300,
                partition_bytes_max=(400, 64 << 10)[number],
                fetch_sessions=bool(number),
                read_committed=True,
            ),
        )
        self._env.consumers.append(consumer)
        assigned = self._env.recorder.happened(name, "assign")
        assigned.keys = [str(tp) for tp in self.partitions]
        consumer.assign(self.partitions)
        return consumer

    def end(self) -> None:
        """Begin no further transactions."""
        self._is_ending = True
        for producer in self.producers:
            producer.stop()

    # --- when it is over -------------------------------------------------------------------------
    def unfinished(self) -> str:
        """Describe a producer or replica with an unfinished transaction; empty if there is none."""
        for producer in self.producers:
            if not producer.is_idle:
                return f"{producer.name} has not come to an end"
        for machine, stream in self._streams():
            if stream.state.producers.open:
                open_ids = sorted(stream.state.producers.open)
                return f"{machine.name}: {TOPIC}-{stream.partition} has {open_ids} open"
            if stream.serving and stream.last_stable_offset != stream.high_watermark:
                return f"{machine.name}: {stream.last_stable_offset} of {stream.high_watermark}"
        return ""

    def _streams(self) -> Iterator[tuple[Machine, LogStream]]:
        for machine in self._machines:
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                stream = host.stream(group_id) if host is not None else None
                if stream is not None and stream.topic == TOPIC:
                    yield machine, stream

    def drain(self) -> None:
        """Read all committed records with a fresh client."""
        for consumer in self._readers:
            consumer.close()
        self._found = {tp: [] for tp in self.partitions}
        self._invoked = self._env.recorder.invoke()
        rng = Random(self._rng.getrandbits(64))
        client = self._env.client("rc-drain", self._host, rng, {})
        self._final = Consumer(
            client,
            SubscriptionState(ResetStrategy.EARLIEST),
            self._fetched,
            ConsumerOptions(max_wait_ms=50, read_committed=True),
        )
        self._env.consumers.append(self._final)
        self._final.assign(self.partitions)

    def _fetched(self, fetched: Fetched) -> None:
        for record, epoch in zip(fetched.records, fetched.epochs, strict=True):
            seen = Seen(record.offset, value_of(record), epoch, record.timestamp)
            self._found[fetched.tp].append(seen)

    def undrained(self) -> str:
        """Describe a partition that is not read to its end; empty if there is none."""
        assert self._final is not None, "drain comes first"
        for machine, stream in self._streams():
            tp = TopicPartition(TOPIC, stream.partition)
            position = self._final.subscription.state(tp).position
            if stream.serving and position != stream.last_stable_offset:
                return f"{machine.name}: {tp} is read to {position}"
        return ""

    def finish(self) -> None:
        assert self._invoked is not None, "drain comes first"
        assert self._final is not None, "drain comes first"
        op = self._env.recorder.returned(self._invoked, "rc-drain", "poll", "ok")
        op.final = True
        op.iso = READ_COMMITTED
        op.polls = [(str(tp), records) for tp, records in sorted(self._found.items())]
        self._final.close()
        for producer in self.producers:
            producer.close()

    def check(self, broken: Callable[[str], None], done: Callable[[], None]) -> None:
        """Rebuild each replica's transactions from its log.

        `broken` is called where they differ.
        """
        streams = list(self._streams())
        left = [len(streams)]

        def one_read() -> None:
            left[0] -= 1
            if not left[0]:
                done()

        for producer in self.producers:
            for problem in producer.positions.problems:
                broken(problem)
        for machine, stream in streams:
            self._rebuild(machine, stream, broken, one_read)
        if not streams:
            done()

    def _rebuild(
        self,
        machine: Machine,
        stream: LogStream,
        broken: Callable[[str], None],
        done: Callable[[], None],
    ) -> None:
        group = stream.group
        log = group.log
        made = Rebuilt()
        position = [log.first_index]
        if position[0] > 1:
            done()  # transactions before the log's start matter, too
            return

        def read_on() -> None:
            end = log.commit_index + 1
            if position[0] < end:
                group.store.entries_cold(log, position[0], end, _READ_BYTES, found)
                return
            wanted = made.ranges
            has = [
                (one.producer_id, one.first_offset, one.last_offset) for one in stream.state.aborted
            ]
            if has != wanted:
                broken(f"{machine.name}: {TOPIC}-{stream.partition} lists {has}, not {wanted}")
            if sorted(stream.state.producers.open) != sorted(made.open):
                broken(f"{machine.name}: {TOPIC}-{stream.partition} has others open")
            done()

        def found(entries: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(entries, storage.StorageError):
                broken(f"{machine.name}: unreadable: {entries!r}")
                done()
                return
            for entry in entries:
                position[0] = entry.index + 1
                if entry.records and len(entry.data):
                    made.take(memoryview(entry.data), entry.base_offset)
            read_on()

        read_on()
