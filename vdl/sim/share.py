"""A member of a share group (KIP-932) that acquires and acknowledges records of the topic.

Now and then it leaves or crashes and rejoins as a new member. It keeps one session with each server
that leads partitions for it. Acknowledgements go along with the next fetch, or in a request of
their own. All deliveries and acknowledgements are recorded, with the delivery count
(`vdl.check.shares`). When the world settles it reads every partition, whether assigned or not, and
accepts all records.

Does not depend on faults or on how records are handed out.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from vdl.check.history import Share
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import (
    find_coordinator,
    incremental_alter_configs,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.recorder import Recorder
from vdl.sim.subscription import TopicPartition
from vdl.sim.workload import Env

S = 1_000 * MS
SHARE_GROUP = "queue"
ACCEPT, RELEASE, REJECT = 1, 2, 3
MAX_WAIT_MS = 200
HEARTBEAT_MS = 400
_GROUP_RESOURCE = 32
_CERTAIN = frozenset((ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST))
"""Errors of an acknowledgement that was certainly not applied.

With other errors it may have been.
"""

_Held = tuple[TopicPartition, Share]


class _Session:
    """State of the member's session with one server."""

    __slots__ = ("epoch", "is_asking", "pending", "reads")

    def __init__(self) -> None:
        self.epoch = 0
        self.is_asking = False
        self.reads: set[TopicPartition] = set()
        """Partitions in the server's session."""
        self.pending: list[_Held] = []
        """Acknowledgements to send."""


class ShareMember:
    """One member from joining to leaving."""

    def __init__(
        self,
        client: KafkaClient,
        recorder: Recorder,
        topic: str,
        name: str,
        rng: Random,
        *,
        limit: int,
    ) -> None:
        self.client = client
        self.name = name
        self.limit = limit
        self.is_settling = False
        self.partitions: list[TopicPartition] = []
        """Partitions it reads while it settles."""
        self._recorder = recorder
        self._topic = topic
        self._rng = rng
        self._coordinator = -1
        self._epoch = 0
        self._assigned: set[TopicPartition] = set()
        self._sessions: dict[int, _Session] = {}
        self._latest: dict[tuple[TopicPartition, int], int] = {}
        """Count of each record's last delivery.

        An acknowledgement names no delivery, so those of an earlier one must not be sent any more.
        """
        self.is_over = False
        """True once it has left or crashed; its client closes soon."""
        client.want([topic])
        self._beat()
        self._look()

    # --- membership --------------------------------------------------------------------------
    def _again(self, delay_ms: int, step: Callable[[], None]) -> None:
        def due() -> None:
            if not self.is_over and not self.client.closed:
                step()

        self.client.clock.call_later(delay_ms * MS, due)

    def _beat(self) -> None:
        if self._coordinator < 0:
            self._find()
            return
        epoch = self._epoch

        def build(_version: int) -> share_group_heartbeat.ShareGroupHeartbeatRequest:
            topics = None if epoch else [self._topic]
            return share_group_heartbeat.ShareGroupHeartbeatRequest(
                SHARE_GROUP, self.name, epoch, None, topics
            )

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure):
                self._coordinator = -1
            elif response.error_code in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self._epoch = 0
            elif response.error_code:
                self._coordinator = -1
            else:
                self._epoch = response.member_epoch
                if response.assignment is not None:
                    names = self.client.metadata.names
                    self._assigned = {
                        TopicPartition(names[topic.topic_id], index)
                        for topic in response.assignment.topic_partitions
                        for index in topic.partitions
                        if topic.topic_id in names
                    }
            self._again(HEARTBEAT_MS, self._beat)

        self.client.call(self._coordinator, share_group_heartbeat, build, answered)

    def _find(self) -> None:
        def build(version: int) -> find_coordinator.FindCoordinatorRequest:
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest(coordinator_keys=[SHARE_GROUP])
            return find_coordinator.FindCoordinatorRequest(key=SHARE_GROUP)

        def answered(response: Message | Failure) -> None:
            row = response
            if not isinstance(response, Failure) and response.coordinators:
                row = response.coordinators[0]
            if not isinstance(row, Failure) and not row.error_code:
                self._coordinator = row.node_id
                self.client.refresh()
            self._again(100, self._beat)

        self.client.call_any(find_coordinator, build, answered)

    # --- fetching ----------------------------------------------------------------------------
    def _look(self) -> None:
        """Send a request to each idle server with partitions, acknowledgements or a session."""
        wanted: dict[int, set[TopicPartition]] = {}
        for tp in self.partitions if self.is_settling else sorted(self._assigned):
            leader = self.client.metadata.leader(tp)
            if leader >= 0:
                wanted.setdefault(leader, set()).add(tp)
        for node in sorted({*wanted, *self._sessions}):
            session = self._sessions.setdefault(node, _Session())
            reads = wanted.get(node, set())
            if not session.is_asking and (reads or session.reads or session.pending):
                if session.epoch and session.pending and self._rng.random() < 0.3:
                    self._acknowledge(node, session)
                else:
                    self._fetch(node, session, reads)
        self._again(20, self._look)

    def _take_pending(self, session: _Session) -> dict[TopicPartition, list[Share]]:
        pending: dict[TopicPartition, list[Share]] = {}
        for tp, share in session.pending:
            offsets = range(share.first, share.last + 1)
            if all(self._latest.get((tp, offset)) == share.count for offset in offsets):
                pending.setdefault(tp, []).append(share)
        session.pending = []
        return {tp: sorted(shares, key=lambda one: one.first) for tp, shares in pending.items()}

    def _fetch(self, node: int, session: _Session, reads: set[TopicPartition]) -> None:
        if not session.epoch:
            # A new session must not carry acknowledgements of an earlier one.
            session.reads, session.pending = set(), []
        added, forgotten = reads - session.reads, session.reads - reads
        said = self._take_pending(session)
        session.reads = set(reads)
        session.is_asking = True
        asked_ns = self.client.clock.now_ns()
        invoked = self._recorder.invoke()
        topic_id = self.client.metadata.topic_id(self._topic)

        def build(_version: int) -> share_fetch.ShareFetchRequest:
            named = [
                share_fetch.FetchPartition(
                    tp.partition,
                    acknowledgement_batches=[
                        share_fetch.AcknowledgementBatch(one.first, one.last, [one.kind])
                        for one in said.get(tp, [])
                    ],
                )
                for tp in sorted({*added, *said})
            ]
            gone = [tp.partition for tp in sorted(forgotten)]
            return share_fetch.ShareFetchRequest(
                SHARE_GROUP,
                self.name,
                session.epoch,
                MAX_WAIT_MS,
                1,
                1 << 20,
                self._rng.choice((1, 5, 500)),
                500,
                self._rng.choice((0, 1)),
                topics=[share_fetch.FetchTopic(topic_id, named)] if named else [],
                forgotten_topics_data=[share_fetch.ForgottenTopic(topic_id, gone)] if gone else [],
            )

        def answered(response: Message | Failure) -> None:
            session.is_asking = False
            if isinstance(response, Failure) or response.error_code:
                session.epoch = 0
                is_certain = not (isinstance(response, Failure) and response.sent)
                self._said(invoked, said, dict.fromkeys(said, -1 if is_certain else 0), node)
                if isinstance(response, Failure):
                    self.client.refresh()
                return
            session.epoch += 1
            codes: dict[TopicPartition, int] = {}
            for topic in response.responses:
                for row in topic.partitions:
                    tp = TopicPartition(self._topic, row.partition_index)
                    codes[tp] = row.acknowledge_error_code
                    if row.error_code:
                        self.client.refresh()
                    self._given(node, session, tp, row, asked_ns)
            self._said(invoked, said, {tp: _fate(codes.get(tp, 0)) for tp in said}, node)

        self.client.call(node, share_fetch, build, answered, 3_000)

    def _given(
        self,
        node: int,
        session: _Session,
        tp: TopicPartition,
        row: share_fetch.PartitionData,
        asked_ns: int,
    ) -> None:
        """Record acquired records, and acknowledge them soon."""
        if not row.acquired_records:
            return
        op = self._recorder.happened(self.name, "deliver", asked_ns)
        op.node, op.group, op.member, op.limit = f"n{node}", SHARE_GROUP, self.name, self.limit
        for one in row.acquired_records:
            share = Share(str(tp), one.first_offset, one.last_offset, one.delivery_count)
            op.shares.append(share)
            for offset in range(share.first, share.last + 1):
                self._latest[tp, offset] = share.count
            self._again(
                self._rng.choice((1, 50, 500)),
                lambda share=share: session.pending.extend(self._judged(tp, share)),  # type: ignore[misc]
            )

    def _judged(self, tp: TopicPartition, share: Share) -> list[_Held]:
        """Draw acknowledgements for one delivery. Some records may get none."""
        rng, judged = self._rng, []
        middle = rng.randint(share.first, share.last)
        for first, last in ((share.first, middle), (middle + 1, share.last)):
            drawn = 0.0 if self.is_settling else rng.random()
            if first > last or drawn > 0.98:
                continue
            kind = ACCEPT if drawn < 0.8 else RELEASE if drawn < 0.93 else REJECT
            judged.append((tp, Share(share.key, first, last, share.count, kind)))
        return judged

    # --- acknowledgements --------------------------------------------------------------------
    def _said(
        self,
        invoked: object,
        said: dict[TopicPartition, list[Share]],
        fates: dict[TopicPartition, int],
        node: int,
    ) -> None:
        """Record acknowledgements. Fates: 1 applied, -1 certainly not, 0 unknown."""
        for tp, shares in sorted(said.items()):
            kind = {1: "ok", -1: "fail", 0: "info"}[fates[tp]]
            op = self._recorder.returned(self._recorder.invoke(), self.name, "acknowledge", kind)
            op.node, op.group, op.member, op.limit = f"n{node}", SHARE_GROUP, self.name, self.limit
            op.shares.extend(shares)

    def _acknowledge(self, node: int, session: _Session, *, epoch: int | None = None) -> None:
        said = self._take_pending(session)
        session.is_asking = True
        topic_id = self.client.metadata.topic_id(self._topic)
        number = session.epoch if epoch is None else epoch

        def build(_version: int) -> share_acknowledge.ShareAcknowledgeRequest:
            named = [
                share_acknowledge.AcknowledgePartition(
                    tp.partition,
                    [
                        share_acknowledge.AcknowledgementBatch(one.first, one.last, [one.kind])
                        for one in shares
                    ],
                )
                for tp, shares in sorted(said.items())
            ]
            topics = [share_acknowledge.AcknowledgeTopic(topic_id, named)] if named else []
            return share_acknowledge.ShareAcknowledgeRequest(
                SHARE_GROUP, self.name, number, topics=topics
            )

        def answered(response: Message | Failure) -> None:
            session.is_asking = False
            if isinstance(response, Failure) or response.error_code:
                session.epoch = 0
                is_certain = not (isinstance(response, Failure) and response.sent)
                self._said(None, said, dict.fromkeys(said, -1 if is_certain else 0), node)
                return
            session.epoch += 1
            codes = {
                TopicPartition(self._topic, row.partition_index): row.error_code
                for topic in response.responses
                for row in topic.partitions
            }
            self._said(None, said, {tp: _fate(codes.get(tp, 0)) for tp in said}, node)

        self.client.call(node, share_acknowledge, build, answered, 3_000)

    # --- leaving -----------------------------------------------------------------------------
    def leave(self) -> None:
        """Close the sessions and leave the group."""
        self.is_over = True
        for node, session in sorted(self._sessions.items()):
            if session.epoch and not session.is_asking:
                self._acknowledge(node, session, epoch=-1)

        def build(_version: int) -> share_group_heartbeat.ShareGroupHeartbeatRequest:
            return share_group_heartbeat.ShareGroupHeartbeatRequest(SHARE_GROUP, self.name, -1)

        if self._coordinator >= 0:
            self.client.call(self._coordinator, share_group_heartbeat, build, lambda _: None)

    def crash(self) -> None:
        """Stop without leaving."""
        self.is_over = True


def _fate(code: int) -> int:
    if not code:
        return 1
    return -1 if code in _CERTAIN else 0


class ShareLoad:
    """Members one after the other. First it configures the group."""

    def __init__(self, env: Env, name: str, host: str, rng: Random, *, limit: int) -> None:
        self.name = name
        self.limit = limit
        self._env = env
        self._host = host
        self._rng = rng
        self._lives = 0
        self._stopped = False
        self._member: ShareMember | None = None
        self._clock = env.make_clock()
        self._configure()

    def _client(self) -> KafkaClient:
        name = f"{self.name}.{self._lives}"
        return self._env.client(name, self._host, Random(self._rng.getrandbits(64)), caps={})

    def _configure(self) -> None:
        client = self._client()
        configs = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(self.limit),
            "share.record.lock.duration.ms": "15000",
        }

        def build(_version: int) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
            changes = [
                incremental_alter_configs.AlterableConfig(name, 0, value)
                for name, value in configs.items()
            ]
            resource = incremental_alter_configs.AlterConfigsResource(
                _GROUP_RESOURCE, SHARE_GROUP, changes
            )
            return incremental_alter_configs.IncrementalAlterConfigsRequest([resource], False)

        def ask() -> None:
            if not self._stopped:
                client.call_any(incremental_alter_configs, build, answered)

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure) or any(one.error_code for one in response.responses):
                client.backoff(3, ask)
                return
            client.close()
            self._join()

        ask()

    def _join(self) -> None:
        if self._stopped:
            return
        self._lives += 1
        client = self._client()
        member = ShareMember(
            client,
            self._env.recorder,
            self._env.topic,
            f"{self.name}.{self._lives}",
            Random(self._rng.getrandbits(64)),
            limit=self.limit,
        )
        self._member = member
        self._clock.call_later(self._rng.randint(2, 10) * S, lambda: self._end(member))

    def _end(self, member: ShareMember) -> None:
        if self._stopped or self._rng.random() < 0.3:
            return
        if self._rng.random() < 0.5:
            member.leave()
        else:
            member.crash()
        self._clock.call_later(100 * MS, member.client.close)
        self._clock.call_later(self._rng.randint(100, 2_000) * MS, self._join)

    def stop(self) -> None:
        """Settle: read every partition to its end."""
        if self._member is None or self._member.is_over or self._member.client.closed:
            self._join()
        self._stopped = True
        if self._member is not None:
            self._member.is_settling = True
            self._member.partitions = self._env.partitions

    def finish(self) -> None:
        """Leave, after everything was read."""
        if self._member is not None:
            self._member.leave()
            self._member.client.close()
