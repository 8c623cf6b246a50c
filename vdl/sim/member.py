"""A member of a consumer group: the classic protocol, the range assignor, committed offsets.

It finds the coordinator, joins, divides the partitions if chosen as leader, syncs and sends
heartbeats. Any answer that means the group moved on (27, 22, 25) starts over, with the member id
kept as long as the coordinator knows it (KIP-394). Commits carry the generation, so a member that
was left behind is refused.

The consumer receives its partitions through its subscription. Observers are notified through
`on_assigned` and `on_revoked`, in that order for each generation. Does not depend on what is
consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import ModuleType

from rpc.streams import Timer
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import (
    consumer_protocol_assignment,
    consumer_protocol_subscription,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from vdl.sim.client import Answer, Failure, KafkaClient, Message
from vdl.sim.consumer import Consumer
from vdl.sim.subscription import TopicPartition

_PROTOCOL = "range"
LOST_COORDINATOR = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT,
    )
)  # fmt: skip

_UNKNOWN_OUTCOME = frozenset((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE))
"""Errors with an unknown outcome.

Kafka uses the latter for a commit that it could not finish in time.
"""


class MemberState(Enum):
    """State of a member in the protocol."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """A member's settings, named as in Kafka; times in milliseconds."""

    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 8_000
    heartbeat_interval_ms: int = 500
    group_instance_id: str | None = None
    keeps_heartbeats: bool = False
    """False: a stable member that could not find its coordinator sends no more heartbeats, as a
    client that hangs; it still reads and commits.
    """


class GroupMember:
    """One member, and the consumer it serves."""

    def __init__(
        self,
        client: KafkaClient,
        consumer: Consumer,
        group: str,
        options: MemberOptions | None = None,
    ) -> None:
        self.client = client
        self.consumer = consumer
        self.group = group
        self.options = options or MemberOptions()
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation = -1
        self.on_assigned: Callable[[int, list[TopicPartition], int], None] = _ignore_assignment
        """Called with (generation, partitions, time at which the join was sent)."""
        self.on_revoked: Callable[[], None] = _ignore
        self.on_accepted: Callable[[int, list[TopicPartition], int], None] = _ignore_assignment
        """Called with (generation, partitions it owned, time of the request) for each heartbeat
        that the coordinator accepted.
        """
        self.on_committed: Callable[[TopicPartition, int, int], None] = _ignore_committed
        """Called with (partition, committed offset or -1, time of the request)."""
        self._coordinator = -1
        self._finding = False
        self._failures = 0
        self._timer: Timer | None = None
        self._fetching_committed = False
        self._joined_topics: set[str] = set()
        self._joined_partitions: dict[str, int] = {}
        self._join_sent_ns = 0
        consumer.member = self
        client.on_metadata.append(self._metadata_changed)

    def start(self) -> None:
        self._step()

    # --- state machine --------------------------------------------------------------------------
    def _step(self) -> None:
        """Take the next step. Called after anything that may have enabled one."""
        if self.state in {MemberState.LEFT, MemberState.JOINING, MemberState.SYNCING}:
            return
        if self._coordinator < 0:
            self._find()
        elif self.state is MemberState.UNJOINED:
            if self.consumer.subscription.subscription:
                self._join()
            else:
                # No topic matches the pattern yet; metadata will show one.
                self._later(self._step)

    def _later(self, again: Callable[[], None]) -> None:
        self._failures += 1
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.client.backoff(self._failures, again)

    def _find(self) -> None:
        if self._finding:
            return
        self._finding = True

        def build(version: int) -> find_coordinator.FindCoordinatorRequest:
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group])
            return find_coordinator.FindCoordinatorRequest(key=self.group)

        def answered(response: Message | Failure) -> None:
            self._finding = False
            if self.state is MemberState.LEFT:
                return
            row = response
            if not isinstance(response, Failure) and response.coordinators:
                row = response.coordinators[0]
            if not isinstance(row, Failure) and not row.error_code:
                self._coordinator = row.node_id
                self.client.refresh()
            if self.options.keeps_heartbeats and self.state is MemberState.STABLE:
                self._schedule_heartbeat()
            elif self._coordinator < 0:
                self._later(self._step)
            else:
                self._step()

        self.client.call_any(find_coordinator, build, answered)

    def _ask(
        self,
        api: ModuleType,
        build: Callable[[int], Message],
        answer: Answer,
        timeout_ms: int = 0,
    ) -> None:
        self.client.call(self._coordinator, api, build, answer, timeout_ms)

    def _rejoin(self, error: int) -> None:
        """Join again after the group or the coordinator has changed."""
        if self.state is MemberState.LEFT:
            return
        if self.state is MemberState.STABLE:
            self._revoke()
        if error == ErrorCode.FENCED_INSTANCE_ID:
            # Another process has its instance id.
            self.crash()
            return
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.state = MemberState.UNJOINED
        self._later(self._step)

    def _coordinator_lost(self) -> None:
        """Look for the coordinator again. Membership continues: a new one knows this member."""
        self._coordinator = -1

    def _revoke(self) -> None:
        self.on_revoked()
        self.consumer.subscription.assign_from_group(())

    # --- joining --------------------------------------------------------------------------------
    def _join(self) -> None:
        self.state = MemberState.JOINING
        topics = sorted(self.consumer.subscription.subscription)
        self._joined_topics = set(topics)
        subscription = consumer_protocol_subscription.ConsumerProtocolSubscription(topics=topics)
        encoded = _versioned(consumer_protocol_subscription.encode(subscription, 0))
        self._join_sent_ns = self.client.clock.now_ns()
        options = self.options

        def build(_version: int) -> join_group.JoinGroupRequest:
            return join_group.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=options.session_timeout_ms,
                rebalance_timeout_ms=options.rebalance_timeout_ms,
                member_id=self.member_id,
                group_instance_id=options.group_instance_id,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(_PROTOCOL, encoded)],
            )

        timeout_ms = options.rebalance_timeout_ms + 5_000
        self._ask(join_group, build, self._joined, timeout_ms)

    def _joined(self, response: Message | Failure) -> None:
        if self.state is not MemberState.JOINING:
            return
        self.state = MemberState.UNJOINED
        if isinstance(response, Failure):
            self._coordinator_lost()
            self._later(self._step)
        elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._step()
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._later(self._step)
        elif response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            self.crash()
        elif response.error_code:
            if response.error_code in LOST_COORDINATOR:
                self._coordinator_lost()
            self._later(self._step)
        else:
            self.member_id = response.member_id
            self.generation = response.generation_id
            self._sync(response)

    def _sync(self, joined: join_group.JoinGroupResponse) -> None:
        self.state = MemberState.SYNCING
        assignments: list[sync_group.SyncGroupRequestAssignment] = []
        if joined.leader == self.member_id and not joined.skip_assignment:
            assignments = self._divide(joined.members)

        def build(_version: int) -> sync_group.SyncGroupRequest:
            return sync_group.SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.options.group_instance_id,
                protocol_type="consumer",
                protocol_name=_PROTOCOL,
                assignments=assignments,
            )

        self._ask(sync_group, build, self._synced, self.options.rebalance_timeout_ms + 5_000)

    def _divide(
        self, members: Sequence[join_group.JoinGroupResponseMember]
    ) -> list[sync_group.SyncGroupRequestAssignment]:
        """Assign each topic's partitions in ranges to the members that want it, as the leader."""
        wants: dict[str, list[str]] = {}
        for member in members:
            view = memoryview(member.metadata)
            subscription = consumer_protocol_subscription.decode(view[2:], 0)
            for topic in subscription.topics:
                wants.setdefault(topic, []).append(member.member_id)
        self.consumer.subscription.group_subscribe(wants)
        self.client.want(sorted(wants))
        metadata = self.client.metadata
        given: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
        for topic in sorted(wants):
            partitions = [tp.partition for tp in metadata.partitions(topic)]
            self._joined_partitions[topic] = len(partitions)
            for member_id, part in assign_range(partitions, wants[topic]).items():
                if part:
                    given[member_id][topic] = part
        return [
            sync_group.SyncGroupRequestAssignment(member_id, _encode_assignment(topics))
            for member_id, topics in sorted(given.items())
        ]

    def _synced(self, response: Message | Failure) -> None:
        if self.state is not MemberState.SYNCING:
            return
        self.state = MemberState.UNJOINED
        if isinstance(response, Failure):
            self._coordinator_lost()
            self._later(self._step)
        elif response.error_code:
            if response.error_code in LOST_COORDINATOR:
                self._coordinator_lost()
            self._rejoin(response.error_code)
        else:
            self._failures = 0
            self.state = MemberState.STABLE
            partitions = _decode_assignment(response.assignment)
            self.client.want(sorted({tp.topic for tp in partitions}))
            self.on_assigned(self.generation, partitions, self._join_sent_ns)
            self.consumer.subscription.assign_from_group(partitions)
            self.consumer.wake()
            self._schedule_heartbeat()

    def _metadata_changed(self) -> None:
        """Rejoin if the subscription has changed, or partitions were added to divided topics."""
        if self.state is not MemberState.STABLE:
            return
        metadata = self.client.metadata
        more = any(
            len(metadata.partitions(topic)) > count
            for topic, count in sorted(self._joined_partitions.items())
        )
        if self.consumer.subscription.subscription != self._joined_topics or more:
            self._joined_partitions.clear()
            self._rejoin(ErrorCode.REBALANCE_IN_PROGRESS)

    # --- heartbeats -----------------------------------------------------------------------------
    def _schedule_heartbeat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        interval_ns = self.options.heartbeat_interval_ms * MS
        self._timer = self.client.clock.call_later(interval_ns, self._heartbeat)

    def _heartbeat(self) -> None:
        if self.state is not MemberState.STABLE:
            return
        if self._coordinator < 0:
            self._find()
            self._schedule_heartbeat()
            return
        generation = self.generation
        owned = sorted(self.consumer.subscription.assignment)
        sent_ns = self.client.clock.now_ns()

        def build(_version: int) -> heartbeat.HeartbeatRequest:
            return heartbeat.HeartbeatRequest(
                self.group, generation, self.member_id, self.options.group_instance_id
            )

        def answered(response: Message | Failure) -> None:
            if self.state is not MemberState.STABLE or self.generation != generation:
                return
            if isinstance(response, Failure) or response.error_code in LOST_COORDINATOR:
                self._coordinator_lost()
            elif response.error_code:
                self._rejoin(response.error_code)
                return
            else:
                self.on_accepted(generation, owned, sent_ns)
            self._schedule_heartbeat()

        self._ask(heartbeat, build, answered)

    def leave(self) -> None:
        """Leave the group for good."""
        if self.state is MemberState.STABLE:
            self._revoke()
        known, self.state = self.member_id, MemberState.LEFT
        if self._timer is not None:
            self._timer.cancel()
        if not known or self._coordinator < 0:
            return

        def build(version: int) -> leave_group.LeaveGroupRequest:
            if version >= 3:
                members = [leave_group.MemberIdentity(known)]
                return leave_group.LeaveGroupRequest(self.group, members=members)
            return leave_group.LeaveGroupRequest(self.group, known)

        self._ask(leave_group, build, _ignore_answer)

    def crash(self) -> None:
        """Stop without leaving: the session has to time out."""
        self.state = MemberState.LEFT
        if self._timer is not None:
            self._timer.cancel()

    # --- offsets --------------------------------------------------------------------------------
    def commit(
        self,
        offsets: dict[TopicPartition, int],
        done: Callable[[int, bool, dict[TopicPartition, int]], None],
        *,
        generation: int,
        member_id: str,
    ) -> None:
        """Commit offsets with the member's current or an earlier generation.

        `done(error, definite, offsets)` is called for each error, with the offsets it applies to: 0
        on success, -1 if no answer came. One partition's error says nothing of the others.
        `definite` is False if the commit may have happened in spite of the error.
        """

        def build(_version: int) -> offset_commit.OffsetCommitRequest:
            topics: dict[str, offset_commit.OffsetCommitRequestTopic] = {}
            for tp, offset in offsets.items():
                topic = topics.setdefault(
                    tp.topic, offset_commit.OffsetCommitRequestTopic(tp.topic)
                )
                topic.partitions.append(
                    offset_commit.OffsetCommitRequestPartition(tp.partition, offset)
                )
            return offset_commit.OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=self.options.group_instance_id,
                topics=list(topics.values()),
            )

        def answered(response: Message | Failure) -> None:
            if isinstance(response, Failure):
                self._coordinator_lost()
                done(-1, not response.sent, offsets)
                return
            by_error: dict[int, dict[TopicPartition, int]] = {}
            for topic in response.topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    by_error.setdefault(row.error_code, {})[tp] = offsets[tp]
            if not LOST_COORDINATOR.isdisjoint(by_error):
                self._coordinator_lost()
            for error, rows in by_error.items():
                done(error, error > 0 and error not in _UNKNOWN_OUTCOME, rows)

        if self._coordinator < 0:
            self._find()
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE, True, offsets)
        else:
            self._ask(offset_commit, build, answered)

    def fetch_committed(self, partitions: list[TopicPartition]) -> None:
        """Fetch the committed offsets of these partitions and pass them to the consumer."""
        if self._fetching_committed or self.state is MemberState.LEFT:
            return
        if self._coordinator < 0:
            self._find()
            self.client.backoff(1, self.consumer.wake)
            return
        self._fetching_committed = True
        asked_ns = self.client.clock.now_ns()

        def answered(response: Message | Failure) -> None:
            self._fetching_committed = False
            rows = {} if isinstance(response, Failure) else committed_rows(response)
            if not rows:
                self._coordinator_lost()
            for tp in partitions:
                row = rows.get(tp)
                if row is not None and not row.error_code:
                    self.on_committed(tp, row.committed_offset, asked_ns)
                    self.consumer.committed_known(
                        tp, row.committed_offset, row.committed_leader_epoch
                    )
            self.client.backoff(1, self.consumer.wake)

        self._ask(offset_fetch, committed_request(self.group, partitions), answered)


Committed = offset_fetch.OffsetFetchResponsePartition | offset_fetch.OffsetFetchResponsePartitions


def committed_request(
    group: str, partitions: Sequence[TopicPartition]
) -> Callable[[int], offset_fetch.OffsetFetchRequest]:
    """Return a builder of requests for the group's committed offsets."""
    indexes: dict[str, list[int]] = {}
    for tp in partitions:
        indexes.setdefault(tp.topic, []).append(tp.partition)

    def build(version: int) -> offset_fetch.OffsetFetchRequest:
        if version < 8:
            old = [offset_fetch.OffsetFetchRequestTopic(t, p) for t, p in indexes.items()]
            return offset_fetch.OffsetFetchRequest(group_id=group, topics=old)
        topics = [
            offset_fetch.OffsetFetchRequestTopics(t, partition_indexes=p)
            for t, p in indexes.items()
        ]
        asked = offset_fetch.OffsetFetchRequestGroup(group, topics=topics)
        return offset_fetch.OffsetFetchRequest(groups=[asked])

    return build


def committed_rows(response: offset_fetch.OffsetFetchResponse) -> dict[TopicPartition, Committed]:
    """Return the rows of an answer; none if the answer as a whole is an error."""
    rows: dict[TopicPartition, Committed] = {}
    if response.error_code:
        return rows
    for old in response.topics:
        for old_row in old.partitions:
            rows[TopicPartition(old.name, old_row.partition_index)] = old_row
    for group in response.groups:
        if not group.error_code:
            for topic in group.topics:
                for row in topic.partitions:
                    rows[TopicPartition(topic.name, row.partition_index)] = row
    return rows


def assign_range(partitions: Sequence[int], members: Sequence[str]) -> dict[str, list[int]]:
    """Assign one topic's partitions in contiguous ranges, as Kafka's range assignor does.

    The first members get one more.
    """
    ordered = sorted(members)
    each, extra = divmod(len(partitions), len(ordered))
    result: dict[str, list[int]] = {}
    start = 0
    for i, member in enumerate(ordered):
        end = start + each + (1 if i < extra else 0)
        result[member] = list(partitions[start:end])
        start = end
    return result


def _versioned(buffers: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """Prefix an embedded message of the consumer protocol with its version, 0."""
    return b"\0\0" + b"".join(buffers)


def _encode_assignment(topics: dict[str, list[int]]) -> bytes:
    assignment = consumer_protocol_assignment.ConsumerProtocolAssignment(
        [consumer_protocol_assignment.TopicPartition(t, p) for t, p in sorted(topics.items())]
    )
    return _versioned(consumer_protocol_assignment.encode(assignment, 0))


def _decode_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    assignment = consumer_protocol_assignment.decode(memoryview(data)[2:], 0)
    return sorted(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )


def _ignore() -> None:
    """Ignore it: the default of `on_revoked`."""


def _ignore_assignment(generation: int, partitions: list[TopicPartition], sent_ns: int) -> None:
    """Ignore it: the default of `on_assigned` and `on_accepted`."""


def _ignore_committed(tp: TopicPartition, offset: int, asked_ns: int) -> None:
    """Ignore it: the default of `on_committed`."""


def _ignore_answer(answer: Message | Failure) -> None:
    """Ignore the answer: the member has left in any case."""
