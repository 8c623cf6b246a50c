"""Clients of a simulated world: producers, readers, group members, offset queries, topic churn.

Each is a process of its own on a client machine. It works until stopped and records all its
operations and results. All of it is drawn from the world's seed. Does not depend on faults or on
how the history is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

from rpc.streams import Address
from vdl.check.anomalies import RETRIED
from vdl.check.history import EARLIEST, EPOCHS, LATEST, MIXED, Mark, Send
from vdl.check.history import Record as Seen
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.configs.topic_configs import MIN_IN_SYNC_REPLICAS
from vdl.kafka.handlers.produce import ACKS_ALL
from vdl.kafka.wire import (
    create_partitions,
    create_topics,
    delete_topics,
    list_offsets,
    offset_fetch,
)
from vdl.records.compression import Compression
from vdl.sim.client import ClientOptions, Failure, KafkaClient, Message
from vdl.sim.clock import NodeClock
from vdl.sim.consumer import Consumer, ConsumerOptions, Fetched, list_request, listed
from vdl.sim.epoch_member import EpochMember
from vdl.sim.member import (
    GroupMember,
    MemberOptions,
    MemberState,
    committed_request,
    committed_rows,
)
from vdl.sim.network import Network, SimDialer
from vdl.sim.options import Options
from vdl.sim.producer import Delivery, Fate, Producer, ProducerOptions
from vdl.sim.recorder import Recorder, make_record, value_of
from vdl.sim.subscription import ResetStrategy, SubscriptionState, TopicPartition

S = 1_000 * MS
GROUP = "readers"
EPOCH_GROUP = "epochs"
"""Group whose coordinator assigns."""
MIXED_GROUP = "mixed"
"""Group with members of both protocols."""
CHURNED = "churn"
"""First part of the names of topics that are created and deleted."""
BACKLOG_MAX = 40
"""Unfinished batches at which a producer waits, like one with a full buffer.

Otherwise the backlog of an outage would be most of a world's work.
"""
STATIC = 0.5
"""Part of the members that have an instance id, where there are any."""
OVERLAPS, OVERLAP_NS = 0.4, 4 * S
"""Chance that the next process of an instance starts before the previous one ends, and the time
after which that one ends at last.
"""
LIFE_S = (1, 4)
"""Seconds that a member of a mixed group lives: so short that at times none of one protocol is
left, and the group is converted.
"""
QUIET = 0.01
"""Chance that a producer that can expire pauses, for about as long as its expiry."""
_KINDS = {Fate.DELIVERED: "ok", Fate.FAILED: "fail", Fate.UNKNOWN: "info"}

_THERE_ARE_SO_MANY = frozenset((ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS))
"""Errors of a growth that has taken effect: a refusal means that an earlier answer was lost."""

OLD_CLIENT = {0: 8, 1: 11, 2: 5, 3: 8, 8: 7, 9: 5, 10: 2, 11: 5, 12: 3, 13: 2, 14: 3, 22: 1}
"""API version caps of a client from before flexible messages and topic ids (Kafka 2.3)."""

Acknowledged = Callable[[TopicPartition, list[int], bool], None]
"""Called with a partition, values in it, and true if all in-sync replicas must have them."""


class Env:
    """Shared environment from which every client process is built."""

    def __init__(
        self,
        *,
        network: Network,
        make_clock: Callable[[], NodeClock],
        bootstrap: list[Address],
        recorder: Recorder,
        options: Options,
        topic: str,
        acknowledged: Acknowledged,
    ) -> None:
        self.network = network
        self.make_clock = make_clock
        self.bootstrap = bootstrap
        self.recorder = recorder
        self.options = options
        self.topic = topic
        self.acknowledged = acknowledged
        self.partition_count = options.partitions
        """Partitions of the topic. Only grows."""
        self.on_growth: list[Callable[[], None]] = []
        self.clients: list[KafkaClient] = []
        self.consumers: list[Consumer] = []
        self.producers: list[Producer] = []
        self.who_forgot: Callable[[TopicPartition, int, int], str] | None = None
        """See `Producer.who_forgot`. Set by the world."""

    def grown(self, count: int) -> None:
        """Record the topic's new partition count and notify the users of the topic."""
        self.partition_count = count
        for tell in self.on_growth:
            tell()

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, p) for p in range(self.partition_count)]

    def client(
        self, name: str, host: str, rng: Random, caps: dict[int, int] | None = None
    ) -> KafkaClient:
        """Return a new client. `caps`: see `ClientOptions.version_caps`; None: drawn."""
        clock = self.make_clock()
        if caps is None:
            caps = OLD_CLIENT if self.options.old_clients and rng.random() < 0.5 else {}
        client = KafkaClient(
            name,
            self.bootstrap,
            SimDialer(self.network, host, clock),
            clock,
            rng,
            ClientOptions(version_caps=caps, request_timeout_ms=3_000, allow_auto_create=False),
        )
        self.clients.append(client)
        return client


class ProducerLoad:
    """Producer that sends batches of new values to random partitions."""

    def __init__(self, env: Env, name: str, host: str, rng: Random, *, idempotent: bool) -> None:
        self.name = name
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        options = ProducerOptions(
            idempotent=idempotent,
            in_flight_max=rng.choice((1, 5)),
            retries=1_000 if idempotent else rng.choice((0, 5)),
            acks=-1 if idempotent else rng.choice((-1, -1, 1, 0)),
            compression=rng.choice(tuple(Compression)) if rng.random() < 0.2 else Compression.NONE,
        )
        self._expiry_ms = env.options.producer_expiry_ms if idempotent else 0
        if self._expiry_ms:
            # If a forgotten producer sent its first batch again, it would be stored twice. Retries
            # therefore end long before the expiry; the rest of it covers the time that a batch may
            # lie unread in a server.
            options = replace(options, delivery_timeout_ms=3_000, expiry_ms=self._expiry_ms)
        self.producer = Producer(self._client, options)
        if self._expiry_ms:
            self.producer.who_forgot = env.who_forgot
        env.producers.append(self.producer)
        self.refused: list[str] = []
        """Batches sent after `come_back` that were certainly not appended."""
        self._is_back = False
        self._sending = True
        self._schedule()

    def stop(self) -> None:
        self._sending = False

    def come_back(self) -> None:
        """Send one batch to each partition.

        All must be appended, even if the producer was forgotten.
        """
        if self.producer.options.idempotent:
            self._is_back = True
            for tp in self._env.partitions:
                self._send_batch(tp)

    def _schedule(self) -> None:
        delay_ns = int(self._rng.expovariate(self._env.options.sends_per_second) * S)
        if self._expiry_ms and self._rng.random() < QUIET:
            delay_ns += int(self._rng.uniform(0.3, 1.3) * self._expiry_ms * MS)
        self._client.clock.call_later(delay_ns, self._send)

    def _send(self) -> None:
        if not self._sending:
            return
        self._schedule()
        if self.producer.unfinished < BACKLOG_MAX:
            self._send_batch(self._rng.choice(self._env.partitions))

    def _send_batch(self, tp: TopicPartition) -> None:
        env, rng = self._env, self._rng
        values = [env.recorder.new_value() for _ in range(rng.randint(1, env.options.records_max))]
        now_ms = self._client.clock.wall_ms()
        env.recorder.sent_at(now_ms)
        bytes_max = env.options.record_bytes_max
        records = [make_record(v, rng, bytes_max=bytes_max, timestamp=now_ms) for v in values]
        invoked = env.recorder.invoke()
        options = self.producer.options

        def done(delivery: Delivery) -> None:
            op = env.recorder.returned(invoked, self.name, "send", _KINDS[delivery.fate])
            op.node = f"n{delivery.node}"
            op.err = delivery.error
            op.pid = delivery.producer_id
            if delivery.attempts > 1:
                op.note = RETRIED
            # A single server whose clock is an hour behind refuses all producers, as Kafka does.
            is_late = delivery.error == ErrorCode.INVALID_TIMESTAMP
            if self._is_back and delivery.fate is Fate.FAILED and not is_late:
                self.refused.append(f"{tp} refused {self.name}: error {delivery.error}")
            for i, value in enumerate(values):
                known = delivery.fate is Fate.DELIVERED and delivery.offset >= 0
                op.sends.append(Send(str(tp), delivery.offset + i if known else None, value))
            if delivery.fate is Fate.DELIVERED and options.compression is Compression.NONE:
                env.acknowledged(tp, values, options.acks == ACKS_ALL)

        self.producer.send(tp, records, done)


def note_poll(
    env: Env, name: str, fetched: Fetched, member: GroupMember | None = None, *, iso: str = ""
) -> None:
    """Record one partition's part of a fetch.

    An empty part below the high watermark means only that the response had no room or, for a
    READ_COMMITTED reader (`iso`), that nothing more is stable. It is recorded for the latter only,
    without records.
    """
    if not fetched.records and fetched.position < fetched.high_watermark and not iso:
        return
    key = str(fetched.tp)
    op = env.recorder.happened(name, "poll", fetched.asked_ns)
    op.node = f"n{fetched.node}"
    op.iso = iso
    if member is not None:
        op.group, op.gen, op.member = member.group, member.generation, member.member_id
    if fetched.records or fetched.high_watermark <= fetched.position:
        # Otherwise more records exist that had no room in the response; it does not mean the end.
        op.polls.append((key, [Seen(r.offset, value_of(r)) for r in fetched.records]))
    if fetched.leader_epoch >= 0:
        op.hw[key] = (fetched.leader_epoch, fetched.high_watermark)
        if iso:
            op.lso[key] = (fetched.leader_epoch, fetched.stable_offset)


class Reader:
    """Consumer that reads every partition from its beginning, and sometimes seeks or pauses."""

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self.name = name
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self.consumer = Consumer(
            self._client,
            SubscriptionState(ResetStrategy.EARLIEST),
            lambda fetched: note_poll(env, name, fetched),
            ConsumerOptions(
                max_wait_ms=rng.choice((50, 500)),
                poll_interval_ms=rng.choice((0, 20)),
                fetch_sessions=env.options.fetch_sessions,
            ),
        )
        env.consumers.append(self.consumer)
        self._settled = False
        self.consumer.on_position = self._positioned
        self._assign()
        env.on_growth.append(self._assign)
        self._schedule()

    def _assign(self) -> None:
        """Assign all existing partitions. Those already assigned keep their positions."""
        assigned = self._env.recorder.happened(self.name, "assign")
        assigned.keys = [str(tp) for tp in self._env.partitions]
        self.consumer.assign(self._env.partitions)

    def settle(self) -> None:
        """Stop seeking and pausing: read each partition to its end and stay there."""
        self._settled = True
        for tp in self._env.partitions:
            self.consumer.subscription.resume(tp)
        self.consumer.wake()

    def behind(self, stands: dict[TopicPartition, tuple[int, int]]) -> str:
        """Describe the partitions that the reader is behind on.

        These are partitions not read to their end, or whose `stands` a server has not reported.
        `stands` holds (high watermark, log start) for each partition. Empty if there are none.
        """
        found: list[str] = []
        for tp, stand in sorted(stands.items()):
            position = self.consumer.subscription.state(tp).position
            told = self.consumer.told.get(tp)
            if position != stand[0] or told != stand:
                found.append(
                    f"{self.name} is at {position} of {tp}, reported {told}, which is {stand}"
                )
        return ", ".join(found)

    def _positioned(self, tp: TopicPartition, offset: int) -> None:
        op = self._env.recorder.happened(self.name, "seek")
        op.marks.append(Mark(str(tp), offset))

    def _schedule(self) -> None:
        self._client.clock.call_later(self._rng.randint(200, 4_000) * MS, self._act)

    def _act(self) -> None:
        if self.consumer.closed or self._settled:
            return
        self._schedule()
        tp = self._rng.choice(self._env.partitions)
        subscription = self.consumer.subscription
        state = subscription.state(tp)
        if state.paused:
            subscription.resume(tp)
            self.consumer.wake()
        elif self._rng.random() < 0.3:
            subscription.pause(tp)
        elif state.position > 0 and self._rng.random() < 0.5:
            offset = self._rng.randrange(state.position)
            self._positioned(tp, offset)
            self.consumer.seek(tp, offset)


class MemberLoad:
    """Group member that consumes, commits, and sometimes leaves and rejoins.

    A static member has an instance id. Its next process may start while the previous one still
    runs.
    """

    def __init__(
        self, env: Env, name: str, host: str, rng: Random, *, by_epochs: bool = False
    ) -> None:
        """Start the member. `by_epochs`: the group's coordinator assigns (KIP-848)."""
        self.name = name
        self._env = env
        self._host = host
        self._rng = rng
        self._group = EPOCH_GROUP if by_epochs else GROUP
        if env.options.mixed_group:
            self._group = MIXED_GROUP
        self._by_epochs = by_epochs
        is_static = env.options.static_members and rng.random() < STATIC
        self._instance_id = name if is_static else None
        self._is_settling = False
        self._lives = 0
        self._stopped = False
        self._client: KafkaClient | None = None
        self._member: GroupMember | None = None
        self._consumer: Consumer | None = None
        self._before: tuple[dict[TopicPartition, int], int, str] | None = None
        """Offsets it would have committed in the previous generation, that generation, its member
        id.
        """
        self._clock = env.make_clock()
        self._join()

    @property
    def group(self) -> str:
        """Name of its group."""
        return self._group

    @property
    def held(self) -> dict[TopicPartition, int] | None:
        """Position in each partition that it has; None while it is not in its group."""
        member, consumer = self._member, self._consumer
        if member is None or consumer is None or member.state is not MemberState.STABLE:
            return None
        return {tp: state.position for tp, state in consumer.subscription.assignment.items()}

    def settle(self) -> None:
        """Stay in the group from now on, and return to it soon if it is not in it."""
        self._is_settling = True

    def stop(self) -> None:
        self._stopped = True
        if self._member is not None:
            self._member.leave()

    def _join(self) -> None:
        if self._stopped:
            return
        env, rng = self._env, self._rng
        self._lives += 1
        name = f"{self.name}.{self._lives}"
        caps: dict[int, int] | None = {} if self._by_epochs else None
        self._client = client = env.client(name, self._host, Random(rng.getrandbits(64)), caps)
        consumer = Consumer(
            client,
            SubscriptionState(ResetStrategy.EARLIEST),
            lambda fetched: self._polled(name, fetched, member),
            ConsumerOptions(
                max_wait_ms=100,
                poll_interval_ms=rng.choice((0, 30)),
                fetch_sessions=env.options.fetch_sessions,
            ),
        )
        env.consumers.append(consumer)
        options = MemberOptions(
            session_timeout_ms=2_000,
            rebalance_timeout_ms=3_000,
            group_instance_id=self._instance_id,
            keeps_heartbeats=env.options.groups_settle and not self._by_epochs,
        )
        if self._by_epochs:
            pattern = self._pattern() if rng.random() < 0.3 else ""
            if pattern and env.options.wide_patterns:
                client.want_all()
            member: GroupMember = EpochMember(
                client, consumer, self._group, options, pattern=pattern
            )
        else:
            member = GroupMember(client, consumer, self._group, options)
        # A static member of the classic protocol is replaced at once, so its partitions may have
        # two owners until its heartbeat is refused.
        if self._by_epochs or (env.options.mixed_group and self._instance_id is None):
            member.on_accepted = lambda gen, tps, sent_ns: self._accepted(
                name, member, gen, tps, sent_ns
            )
        member.on_assigned = lambda gen, tps, sent_ns: self._assigned(
            name, member, gen, tps, sent_ns
        )
        member.on_revoked = lambda: self._revoked(name, member)
        member.on_committed = lambda tp, offset, t0: self._committed(name, tp, offset, t0)
        self._member, self._consumer = member, consumer
        if rng.random() < 0.3:
            consumer.subscribe_pattern(self._pattern())
        else:
            consumer.subscribe([env.topic])
        member.start()
        life = rng.randint(*(LIFE_S if env.options.mixed_group else (2, 12)))
        self._clock.call_later(life * S, lambda: self._end(member, consumer, client))
        self._schedule_commit(name, member, consumer)

    def _pattern(self) -> str:
        env = self._env
        if env.options.wide_patterns:
            return f"({env.topic}|{CHURNED}).*"
        return f"{env.topic}.*"

    def _polled(self, name: str, fetched: Fetched, member: GroupMember) -> None:
        if fetched.tp.topic == self._env.topic:
            note_poll(self._env, name, fetched, member)

    def _keys(self, tps: Iterable[TopicPartition]) -> list[str]:
        """Return the names of partitions of the world's topic, for the history."""
        return [str(tp) for tp in tps if tp.topic == self._env.topic]

    def _positions(self, consumer: Consumer) -> dict[TopicPartition, int]:
        """Return the positions to commit: those in the world's topic."""
        positions = consumer.subscription.consumed_positions()
        return {tp: at for tp, at in positions.items() if tp.topic == self._env.topic}

    def _end(self, member: GroupMember, consumer: Consumer, client: KafkaClient) -> None:
        """Leave the group, or crash without leaving, and rejoin later as a new member."""
        stays = 0.0 if self._env.options.mixed_group else 0.4
        if self._stopped or self._is_settling or self._rng.random() < stays:
            return
        if self._instance_id is not None and self._rng.random() < OVERLAPS:
            self._clock.call_later(
                OVERLAP_NS, lambda: self._end_process(member, consumer, client, crashes=True)
            )
            self._join()
            return
        self._end_process(member, consumer, client, crashes=self._rng.random() >= 0.5)
        self._clock.call_later(self._rng.randint(100, 3_000) * MS, self._join)

    def _end_process(
        self, member: GroupMember, consumer: Consumer, client: KafkaClient, *, crashes: bool
    ) -> None:
        if crashes:
            member.crash()
        else:
            member.leave()
        consumer.close()
        self._clock.call_later(100 * MS, client.close)

    def _schedule_commit(self, name: str, member: GroupMember, consumer: Consumer) -> None:
        def commit() -> None:
            if consumer.closed or self._stopped:
                return
            self._clock.call_later(self._rng.randint(100, 1_000) * MS, commit)
            offsets = self._positions(consumer)
            if offsets and member.generation >= 0:
                self._commit(name, member, offsets, member.generation, member.member_id)
            if self._rng.random() < 0.5:
                # Ask the cached coordinator, which may have been deposed.
                member.fetch_committed(self._env.partitions)

        self._clock.call_later(300 * MS, commit)

    def _commit(
        self,
        name: str,
        member: GroupMember,
        offsets: dict[TopicPartition, int],
        generation: int,
        member_id: str,
    ) -> None:
        recorder = self._env.recorder
        t0 = recorder.invoke().t0

        def done(error: int, definite: bool, offsets: dict[TopicPartition, int]) -> None:
            op = recorder.happened(name, "commit", t0)
            op.type = "ok" if not error else "fail" if definite else "info"
            op.err = error
            op.group, op.gen, op.member = self._group, generation, self._name_of(member_id)
            op.marks.extend(Mark(str(tp), offset) for tp, offset in offsets.items())

        member.commit(offsets, done, generation=generation, member_id=member_id)

    def _assigned(
        self, name: str, member: GroupMember, gen: int, tps: list[TopicPartition], sent_ns: int
    ) -> None:
        op = self._env.recorder.happened(name, "rebalance", sent_ns)
        op.group, op.gen, op.member = self._group, gen, self._name_of(member.member_id)
        op.keys = self._keys(tps)
        if self._group == MIXED_GROUP:
            op.note = MIXED
        elif self._by_epochs:
            op.note = EPOCHS
        if self._env.options.late_commits:
            self._commit_before(name, member)

    def _commit_before(self, name: str, member: GroupMember) -> None:
        """Commit under the previous generation: part of the member has not noticed that it is over.

        The member id is known, but the commit must be refused.
        """
        if self._before is None:
            return
        offsets, generation, member_id = self._before
        self._before = None

        def late() -> None:
            if not self._stopped and not member.client.closed:
                self._commit(name, member, offsets, generation, member_id)

        if member_id == member.member_id and generation < member.generation:
            self._clock.call_later(self._rng.randint(1, 300) * MS, late)

    def _revoked(self, name: str, member: GroupMember) -> None:
        op = self._env.recorder.happened(name, "revoke")
        op.group, op.gen = self._group, member.generation
        op.member = self._name_of(member.member_id)
        offsets = self._positions(member.consumer)
        self._before = (offsets, member.generation, member.member_id) if offsets else None
        if self._rng.random() < 0.3:
            self._commit_late(name, member)

    def _commit_late(self, name: str, member: GroupMember) -> None:
        """Commit late: part of the member has not noticed the revocation."""
        offsets = self._positions(member.consumer)
        generation, member_id = member.generation, member.member_id

        def late() -> None:
            if not self._stopped and not member.client.closed:
                self._commit(name, member, offsets, generation, member_id)

        if offsets:
            self._clock.call_later(self._rng.randint(0, 1_000) * MS, late)

    def _committed(self, name: str, tp: TopicPartition, offset: int, asked_ns: int) -> None:
        if tp.topic != self._env.topic:
            return
        op = self._env.recorder.happened(name, "committed", asked_ns)
        op.group = self._group
        op.marks.append(Mark(str(tp), offset))

    def _accepted(
        self, name: str, member: GroupMember, epoch: int, tps: list[TopicPartition], sent_ns: int
    ) -> None:
        """Record a heartbeat that reported the member's partitions."""
        op = self._env.recorder.happened(name, "owns", sent_ns)
        op.group, op.gen, op.member = self._group, epoch, self._name_of(member.member_id)
        op.keys = self._keys(tps)

    def _name_of(self, member_id: str) -> str:
        """Return the name of a member for the history: an instance stays one under any id.

        Not in a mixed group, whose epochs may begin anew for the next id.
        """
        is_mixed = self._group == MIXED_GROUP
        return member_id if is_mixed else self._instance_id or member_id


class OffsetAsker:
    """Client that queries every server for the group's committed offsets.

    A server that no longer coordinates the group, and does not know it yet, must not answer.
    """

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self.name = name
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self._client.want([env.topic])
        self._asking = True
        self._schedule()

    def stop(self) -> None:
        self._asking = False

    def _schedule(self) -> None:
        self._client.clock.call_later(self._rng.randint(10, 150) * MS, self._ask)

    def _ask(self) -> None:
        if not self._asking:
            return
        self._schedule()
        asked_ns = self._client.clock.now_ns()

        def answered(response: Message | Failure) -> None:
            rows = {} if isinstance(response, Failure) else committed_rows(response)
            told = [(tp, row.committed_offset) for tp, row in rows.items() if not row.error_code]
            if told:
                op = self._env.recorder.happened(self.name, "committed", asked_ns)
                op.group = GROUP
                op.marks.extend(Mark(str(tp), offset) for tp, offset in told)

        server = self._rng.randint(1, self._env.options.servers)
        request = committed_request(GROUP, self._env.partitions)
        self._client.call(server, offset_fetch, request, answered)


class Asker:
    """Client that lists offsets: latest, earliest, by timestamp.

    Half of the requests go to any server that has led the partition: one that does not know that it
    was deposed must not answer.
    """

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self.name = name
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self._client.want([env.topic])
        self._started_ms = self._client.clock.wall_ms()
        self._led: dict[TopicPartition, list[int]] = {}
        self._asking = True
        self._schedule()

    def stop(self) -> None:
        self._asking = False

    def _schedule(self) -> None:
        self._client.clock.call_later(self._rng.randint(10, 150) * MS, self._ask)

    def _ask(self) -> None:
        if not self._asking:
            return
        self._schedule()
        tp = self._rng.choice(self._env.partitions)
        leader = self._client.metadata.leader(tp)
        if leader < 0:
            self._client.refresh()
            return
        led = self._led.setdefault(tp, [])
        if leader not in led:
            led.append(leader)
        if self._rng.random() < 0.5:
            leader = self._rng.choice(led)
        timestamp = self._rng.choice((LATEST, LATEST, EARLIEST, 0))
        if timestamp == 0 and self._rng.random() < 0.5:
            timestamp = self._rng.randint(self._started_ms, self._client.clock.wall_ms())
        elif timestamp == 0:
            # Boundary between two answers: exactly a record's timestamp.
            timestamp = self._env.recorder.time_of_a_record(self._rng, self._started_ms)
        invoked = self._env.recorder.invoke()

        def answered(response: Message | Failure) -> None:
            row = listed(response).get(tp)
            if row is None or row.error_code:
                self._client.refresh()
                return
            op = self._env.recorder.returned(invoked, self.name, "list_offsets", "ok")
            op.marks.append(Mark(str(tp), row.offset, timestamp))

        request = list_request(self._client, {tp: timestamp})
        self._client.call(leader, list_offsets, request, answered)


class TopicChurn:
    """Client that creates topics, writes to them and deletes them, reusing the names."""

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self._producer = Producer(self._client, ProducerOptions(delivery_timeout_ms=2_000))
        """Its sequence numbers continue from a topic to the next one of that name."""
        env.producers.append(self._producer)
        self._churning = True
        self._schedule()

    def stop(self) -> None:
        self._churning = False
        self._producer.close()

    def _schedule(self) -> None:
        delay_ns = int(self._rng.expovariate(self._env.options.topic_churn) * S)
        self._client.clock.call_later(delay_ns, self._act)

    def _act(self) -> None:
        if not self._churning:
            return
        self._schedule()
        name = f"{CHURNED}-{self._rng.randint(0, 2)}"
        tp = TopicPartition(name, 0)
        choice = self._rng.random()
        if choice < 0.4:
            create_topic(self._client, name, 1, lambda error: None)
        elif choice < 0.7:
            records = [make_record(0, self._rng, bytes_max=50, timestamp=1)]
            self._producer.send(tp, records, lambda delivery: None)
        else:
            self._client.forget(name)
            self._client.call_any(delete_topics, _deletion(name), lambda response: None)


class TopicGrowth:
    """Client that adds partitions to the topic, one after the other, within the safety phase.

    Once a partition is confirmed it is used like any other and must keep the records written to it.
    """

    def __init__(self, env: Env, name: str, host: str, rng: Random) -> None:
        self._env = env
        self._rng = rng
        self._client = env.client(name, host, rng)
        self._growing = True
        self._schedule()

    def stop(self) -> None:
        self._growing = False

    def _schedule(self) -> None:
        options = self._env.options
        if self._env.partition_count < options.partitions_max:
            pause_ms = options.seconds * 1_000 // (options.growth + 1)
            self._client.clock.call_later(self._rng.randint(0, pause_ms) * MS, self._grow)

    def _grow(self) -> None:
        if not self._growing:
            return
        count = self._env.partition_count + 1
        topic = create_partitions.CreatePartitionsTopic(self._env.topic, count, None)
        request = create_partitions.CreatePartitionsRequest([topic], timeout_ms=2_000)

        def answered(response: Message | Failure) -> None:
            code = -1 if isinstance(response, Failure) else response.results[0].error_code
            if code in _THERE_ARE_SO_MANY:
                self._env.grown(count)
                self._schedule()
            else:
                self._client.backoff(3, self._grow)

        self._client.call_any(create_partitions, lambda _version: request, answered)


def create_topic(
    client: KafkaClient,
    name: str,
    partitions: int,
    done: Callable[[int], None],
    *,
    min_in_sync: int = 1,
) -> None:
    """Request a topic. `done` receives the error code, -1 if no response arrived."""

    def build(_version: int) -> create_topics.CreateTopicsRequest:
        topic = create_topics.CreatableTopic(name, partitions, -1)
        if min_in_sync > 1:
            setting = create_topics.CreatableTopicConfig(MIN_IN_SYNC_REPLICAS, str(min_in_sync))
            topic.configs.append(setting)
        return create_topics.CreateTopicsRequest([topic], timeout_ms=2_000)

    def answered(response: Message | Failure) -> None:
        done(-1 if isinstance(response, Failure) else response.topics[0].error_code)

    client.call_any(create_topics, build, answered)


def _deletion(name: str) -> Callable[[int], delete_topics.DeleteTopicsRequest]:
    def build(version: int) -> delete_topics.DeleteTopicsRequest:
        if version >= 6:
            state = delete_topics.DeleteTopicState(name=name)
            return delete_topics.DeleteTopicsRequest([state], timeout_ms=2_000)
        return delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=2_000)

    return build
