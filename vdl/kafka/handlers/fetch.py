"""Fetch (key 1): committed batches from an offset on, at once or when there are enough.

* v0–v3: consumers before 0.11 get message sets (`partitions.down_conversion`). v1 throttle time, v2
  magic 1 (KIP-32), v3 a bound on the answer (KIP-74). v4 record batches.
* v7: sessions (KIP-227), see `partitions.fetch_sessions`. An incremental request reads those of its
  session's partitions that may have changed; a partition that changes while it waits joins them.
* v9: leader epochs are checked (KIP-320). v11: a consumer with a rack is sent to a replica in it
  (KIP-392); a follower serves what it knows to be committed. v12: divergence of an older epoch
  (KIP-595).
* v13: topic ids (KIP-516). v16: leader hints (KIP-951). v15, v17, v18 concern Kafka's own replicas.

A fetch is a `_Poll`: it makes attempts until it can answer. An attempt first passes the gates: this
replica leads; its leader has committed an entry of its own term; a quorum has answered since the
loop last stalled; an offset above the high watermark is confirmed to be out of range by a quorum.
Then it reads. A read from disk is a gate, too. If there is too little to answer and no error, it
subscribes and makes another attempt, at most once a turn, when a high watermark or a leader
changes. Reading and subscribing happen in one call, so no change is missed between them.

    state         woken, room, time over    last gate opens    an attempt
    RUNNING       SCHEDULED                                    a gate closes: GATED; else it
                                                               answers, or ends in WAITING
    GATED         stays; remembered         SCHEDULED          none
    WAITING       SCHEDULED                                    none
    SCHEDULED     stays                     stays              RUNNING, at the end of the turn
    PAUSED        stays; remembered                            RUNNING, when its turn comes

With more than `AT_ONCE` partitions it is done in pieces, as requests of other APIs are in parts
(`vdl/kafka/parts.py`), each in a turn of its connection; it is PAUSED in between. A partition is
read and subscribed to in the same piece. One that changes while others are read causes another
attempt. The answer is encoded piece by piece (`partitions.fetch_answer`).

Under READ_COMMITTED only stable records are read: none from the last stable offset on. A long poll
waits for that offset to move. The answer carries the list of aborted transactions in the range read
(KIP-98). Both come from the same state, so a follower's list is also complete for the records it
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

from ids import GroupId, Offset, ServerId
from rpc.traces import PARTITIONS_NAMED, TOPICS_NAMED, TracedRequest
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from vdl.clock import MS, NEVER, Timer
from vdl.errors import ErrorCode
from vdl.kafka.answer import Assembled, Encoded, Later, Paused
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.error_map import code_of
from vdl.kafka.host import LogStream, Wait
from vdl.kafka.limits.client_quotas import REQUEST_THROTTLE_MS_MAX, Quota
from vdl.kafka.limits.memory import UNCOUNTED_BYTES
from vdl.kafka.lookup import (
    Topic,
    check_leader_epoch,
    endpoint,
    find_topic,
    leader_endpoints,
)
from vdl.kafka.partitions.down_conversion import BYTES_MAX, Outcome, ToConvert
from vdl.kafka.partitions.fetch_answer import FetchAnswer
from vdl.kafka.partitions.fetch_sessions import (
    SESSION_PARTITIONS_MAX,
    Cached,
    FetchSession,
    FetchSessions,
    Key,
)
from vdl.kafka.partitions.read_throttle import REQUEST_WAIT_NS_MAX, Admission
from vdl.kafka.parts import FIRST_ELEMENTS, PartSize
from vdl.kafka.permissions.topic_rules import may_read
from vdl.kafka.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    encode_response,
)
from vdl.records.legacy import LAST_FETCH_VERSION

_SESSIONS_FROM = 7
_RACKS_FROM = 11
_DEBUGGING_CONSUMER = -2
"""Replica id of Kafka's ReplicaVerificationTool, which reads from each replica directly."""
_HINTS_FROM = 12
_TOPIC_IDS_FROM = 13
_ENDPOINTS_FROM = 16
_READ_COMMITTED = 1
_UNKNOWN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
_FIRST_EPOCH = 0
_FULL_EPOCHS = frozenset((_FIRST_EPOCH, -1))
"""Session epochs of requests that name all their partitions: to begin a session, or without one."""


AT_ONCE = 128
"""Partitions up to which a fetch is done at once: half a millisecond."""

Shared = tuple[int, int, Encoded]
"""(bytes of records in an answer, the answer)."""


class _State(Enum):
    """State of a poll, by what it waits for. See the module."""

    RUNNING = "nothing: an attempt is under way"
    GATED = "answers of log streams"
    WAITING = "a change of a partition, or the end of its time"
    SCHEDULED = "the end of the turn"
    PAUSED = "its turn, to go on with further partitions"


_NO_GROUP: Final = GroupId(-1)


class _Target:
    """One partition of a fetch."""

    __slots__ = (
        "admission",
        "answer",
        "asked",
        "cold",
        "cold_age",
        "confirmed",
        "diverging",
        "error",
        "found",
        "group_id",
        "key",
        "preferred",
        "reported",
        "stream",
        "topic",
        "unknown",
        "wait",
    )

    def __init__(
        self, asked: FetchPartition, group_id: GroupId, error: ErrorCode, key: Key = ("", -1)
    ) -> None:
        self.key = key
        """Its key in a session."""
        self.reported: tuple[int, int, int] | None = None
        """(high watermark, log start, last stable offset) last reported to the client of a
        session."""
        self.asked = asked
        self.group_id = group_id
        self.error = error
        """Final once it is not NONE."""
        self.unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        """Error to answer when the topic does not exist any more."""
        self.topic = ""
        """Name of the topic; empty if no topic has the requested id."""
        self.stream: LogStream | None = None
        self.preferred = -1
        """Server from which the client should read this partition instead; -1 for this server."""
        self.confirmed = False
        """True once a quorum has confirmed the high watermark after this request arrived."""
        self.admission: Admission | None = None
        """Admission to read from disk; kept until it is used or returned."""
        self.cold: Slices | None = None
        """Batches read from disk, until they are answered."""
        self.cold_age = 0
        """Age of the list of aborted transactions before the read from disk. If the list has lost
        entries since, `cold` may contain records of those transactions."""
        self.found: Slices | None = None
        """Batches that this attempt answers."""
        self.diverging: EpochEndOffset | None = None
        self.wait: Wait | None = None
        self.answer: PartitionData | None = None


class _Reading:
    """Bytes read by an attempt, and its room."""

    __slots__ = ("at_once", "available", "left", "total")

    def __init__(self, left: int) -> None:
        self.left = left
        """Bytes that the answer may still have."""
        self.total = self.available = 0
        """Bytes read, and at least as many that could be read."""
        self.at_once = False
        """True if the answer must not wait."""


class _Poll:
    """One fetch under way."""

    __slots__ = (
        "admission_timer",
        "ctx",
        "deadline_ns",
        "expired",
        "gate_began_ns",
        "gates",
        "is_committed",
        "is_converted",
        "later",
        "missed",
        "opens_session",
        "pieces",
        "records",
        "request",
        "result",
        "session",
        "share_key",
        "size",
        "state",
        "targets",
        "timer",
        "topics",
        "waited_ns",
        "woken",
    )

    def __init__(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        session: FetchSession | None = None,
        *,
        is_wide: bool = False,
    ) -> None:
        """`session` is that of an incremental request, already updated by it. `is_wide`: neither
        is done; `go_on` begins with it."""
        self.ctx = ctx
        self.records = 0
        """Offsets that the answer for the last partition with records covers."""
        self.state = _State.RUNNING
        self.session = session
        """Its partitions and their subscriptions outlive the poll. Also set once the poll opens a
        session."""
        self.opens_session = False
        self.request = request
        self.is_committed = request.isolation_level == _READ_COMMITTED
        self.deadline_ns = ctx.deadline_ns(request.max_wait_ms)
        self.later = Later()
        self.targets: list[_Target] = []
        self.topics: list[tuple[FetchableTopicResponse, list[_Target]]] = []
        self.gates = 0
        """Number of pending results that the next attempt waits for. Invariant: not 0 if GATED."""
        self.gate_began_ns = 0
        """Time at which the first of the closed gates was closed."""
        self.expired = request.max_wait_ms <= 0
        """True once the poll's time is over: the next attempt answers with what there is."""
        self.woken = False
        """True if a partition has changed while the poll waited; other polls may have waited for
        the same."""
        self.waited_ns = 0
        """Time waited for admissions to read from disk."""
        self.timer: Timer | None = None
        self.admission_timer: Timer | None = None
        self.pieces: Generator[None] | None = None
        """The rest of an attempt in pieces."""
        self.size: PartSize | None = None
        """Number of partitions of a piece."""
        self.missed = False
        """True if a partition has changed since the attempt in pieces began."""
        self.is_converted = False
        """True once the batches of the attempt are converted for an old consumer."""
        self.result: FetchResponse | Encoded | Assembled | None = None
        """The answer, if it became known while the poll was PAUSED and waited for its turn."""
        self.share_key: tuple[object, ...] | None = None
        """Key of requests that get the same answer in one turn, which is then read and encoded
        once. Only requests for one partition, without a session or quotas, have one."""
        if is_wide:
            self.pieces = self._all_in_pieces()
        elif session is None:
            self._resolve(request.topics)
            self.expired = self.expired or not self.targets
        else:
            for cached in session.ready.values():
                self._resolve_again(_target(cached))

    def _resolve_again(self, target: _Target) -> None:
        """Look a session's partition up again, because it may have changed since."""
        self._place(target, find_topic(self.ctx, target.key[0]))
        target.confirmed = False
        target.stream = target.cold = target.found = target.diverging = target.answer = None

    def _place(self, target: _Target, topic: Topic | None) -> None:
        by_id = self.ctx.api_version >= _TOPIC_IDS_FROM
        partition = target.asked.partition
        target.error = ErrorCode.NONE
        target.group_id = _NO_GROUP
        target.unknown = (
            ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        name = target.key[0]
        target.topic = topic.name if topic is not None else name if isinstance(name, str) else ""
        if topic is None:
            target.error = target.unknown
        elif 0 <= partition < len(topic.partitions):
            target.group_id = topic.partitions[partition]
        else:
            target.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _resolve(self, topics: Sequence[FetchTopic]) -> None:
        """Look up requested partitions."""
        ctx = self.ctx
        by_id = ctx.api_version >= _TOPIC_IDS_FROM
        for asked_topic in topics:
            name = asked_topic.topic_id if by_id else asked_topic.topic
            topic = find_topic(ctx, name)
            targets: list[_Target] = []
            for asked in asked_topic.partitions:
                target = _Target(asked, _NO_GROUP, ErrorCode.NONE, (name, asked.partition))
                self._place(target, topic)
                targets.append(target)
            self.targets += targets
            self.topics.append(
                (FetchableTopicResponse(asked_topic.topic, asked_topic.topic_id), targets)
            )
        if len(self.targets) == 1 and ctx.server.quotas is None:
            target = self.targets[0]
            asked = target.asked
            self.share_key = (
                ctx.api_version,
                ctx.connection.listener,
                target.group_id,
                target.topic,
                asked.fetch_offset,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
                self.request.rack_id,
                _replica_of(self.request),
                min(asked.partition_max_bytes, self.request.max_bytes),
                self.request.min_bytes,
                self.request.isolation_level,
            )

    # --- attempts ----------------------------------------------------------------------------
    def attempt(self) -> None:
        """Answer, or arrange another attempt."""
        self.state = _State.RUNNING
        if self.session is not None:
            self.targets = [_target(cached) for cached in self.session.ready.values()]
        if self.ctx.server.authorizer is not None:
            self._check_permission(self.targets)
        can_share = self.share_key is not None and not self.opens_session
        if can_share and not self.targets[0].error:
            shared = self.ctx.server.shared.get(self.share_key)
            if shared is not None and self._take_shared(shared):
                return
        if not self._may_read(self.targets):
            return
        answers = self.ctx.connection.answers
        if answers.reserved:
            answers.reserve(0)  # bytes read from disk are part of the reservation below
        room = answers.limit()
        request = self.request
        left = min(request.max_bytes, self.ctx.server.config.fetch_max_bytes, room)
        reading = _Reading(max(1, left) if room else left)
        if not self._read(self.targets, reading):
            return
        size = reading.total
        if size > UNCOUNTED_BYTES:
            answers.reserve(size)
        # In full where an answer is: a call would cost each fetch.
        is_enough = size >= request.min_bytes or reading.at_once or self.expired
        if is_enough or (reading.available and self._is_enough(reading)):
            if size and self.ctx.api_version <= LAST_FETCH_VERSION:
                self._convert()
                return
            self._build(self.targets)
            self._answer(size)
        else:
            self._await(self.targets)
            self._wait(has_room=room > 0)

    def _check_permission(self, targets: Sequence[_Target]) -> None:
        """Set errors for topics that the client may not read.

        Called at each attempt, because the permission may be revoked during a wait or a session.
        The error does not reveal whether the topic exists.
        """
        for target in targets:
            if target.topic and not may_read(self.ctx, target.topic):
                target.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _take_shared(self, shared: Shared) -> bool:
        """Answer with the bytes of another request of this turn, if there is room for them."""
        answers = self.ctx.connection.answers
        size, records, encoded = shared
        if size > answers.limit():
            return False
        if size > UNCOUNTED_BYTES:
            answers.reserve(size)
        stream = self.targets[0].stream
        if stream is not None:
            stream.traffic.bytes_out += size
            stream.traffic.records_out += records
        self.finish(encoded)
        return True

    def _may_read(self, targets: Sequence[_Target]) -> bool:
        """Return True if every partition has passed its gates or is in error."""
        for target in targets:
            if not target.error:
                self._pass_gates(target)
        return self.state is _State.RUNNING

    def _pass_gates(self, target: _Target) -> None:
        """Check the conditions for reading a partition's log. Close a gate to wait for one."""
        host = self.ctx.server.host
        stream = self.ctx.server.stream(target.group_id, target.topic)
        if stream is None:
            gone = target.group_id not in host.catalog.groups
            target.error = target.unknown if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        target.stream = stream
        # Kafka treats any negative epoch as none.
        target.error = check_leader_epoch(stream, max(target.asked.current_leader_epoch, -1))
        if target.error:
            return
        target.preferred = -1
        if not stream.is_leader:
            self._pass_as_follower(target, stream)
            return
        if not stream.serving:
            self._close_gate()
            stream.when_serving(
                deadline_ns=self._gate_deadline_ns(), done=partial(self._gate_passed, target)
            )
            return
        if not stream.is_proved:
            # After a pause of the loop, this leader may have been deposed without knowing it.
            self._close_gate()
            stream.prove(
                deadline_ns=self._gate_deadline_ns(), done=partial(self._gate_passed, target)
            )
            return
        offset = target.asked.fetch_offset
        if offset < stream.log_start_offset:
            target.error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset > stream.high_watermark:
            if target.confirmed:
                target.error = ErrorCode.OFFSET_OUT_OF_RANGE
                return
            # A deposed leader does not know the log's real end, and a consumer that gets
            # OFFSET_OUT_OF_RANGE starts over. So a quorum confirms first.
            self._close_gate()
            stream.read_index(
                deadline_ns=self._gate_deadline_ns(), done=partial(self._confirmed, target)
            )
        elif not self._sent_elsewhere(target):
            self._check_divergence(target, stream)

    @property
    def _has_rack(self) -> bool:
        """True if the consumer prefers a replica in its rack.

        A consumer without a rack that reads from a follower has missed a change of leaders.
        """
        return self.ctx.api_version >= _RACKS_FROM and bool(self.request.rack_id)

    def _sent_elsewhere(self, target: _Target) -> bool:
        """Return True if the consumer should read from a replica nearer to it."""
        if self._has_rack:
            ctx, offset = self.ctx, Offset(target.asked.fetch_offset)
            host = ctx.server.host
            preferred = host.read_replica(target.group_id, self.request.rack_id, offset)
            if preferred >= 0 and endpoint(ctx, preferred) is not None:
                target.preferred = preferred
        return target.preferred >= 0

    def _pass_as_follower(self, target: _Target, stream: LogStream) -> None:
        """Check the conditions for reading a follower's log.

        A follower never answers OFFSET_OUT_OF_RANGE, because it may not know the log's end; the
        consumer then asks the leader.
        """
        is_wanted = self._has_rack or _replica_of(self.request) == _DEBUGGING_CONSUMER
        if not is_wanted or not self.ctx.server.host.may_serve_reads(target.group_id):
            target.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        offset = target.asked.fetch_offset
        if offset < stream.log_start_offset:
            target.error = ErrorCode.OFFSET_NOT_AVAILABLE
        elif offset <= stream.high_watermark:
            self._check_divergence(target, stream)
        elif self.expired:
            # Only now: during the wait the leader's commit index may have been on its way.
            target.error = ErrorCode.OFFSET_NOT_AVAILABLE

    def _gate_deadline_ns(self) -> int:
        return self.ctx.received_ns + self.ctx.server.config.read_timeout_ms * MS

    def _confirmed(self, target: _Target, passed: bool) -> None:
        target.confirmed = passed
        self._gate_passed(target, passed)

    def _gate_passed(self, target: _Target, passed: bool) -> None:
        if not passed and not target.error:
            target.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._open_gate()

    def _close_gate(self) -> None:
        """End the attempt under way. The next one starts when all gates are open."""
        if not self.gates:
            self.gate_began_ns = self.ctx.server.clock.now_ns()
        self.gates += 1
        self.state = _State.GATED

    def _open_gate(self) -> None:
        self.gates -= 1
        assert self.gates >= 0, self.gates
        if not self.gates:
            self._count_gated()
        if not self.gates and self.state is _State.GATED:
            self._schedule_now()

    def _count_gated(self) -> None:
        """Add the time since the first of the gates was closed."""
        self.later.busy_ns += self.ctx.server.clock.now_ns() - self.gate_began_ns

    def trace(
        self, into: TracedRequest, since_ns: int, until_ns: int
    ) -> list[tuple[str, int, int]]:
        """See `Traceable`."""
        into.partition_count = len(self.targets)
        into.topics = frozenset(target.topic for target in self.targets[:TOPICS_NAMED])
        into.partitions = [
            f"{target.topic or '?'}-{target.asked.partition}"
            for target in self.targets[:PARTITIONS_NAMED]
        ]
        read_ns = min(self.later.busy_ns, until_ns - since_ns)
        return [("wait", since_ns, until_ns - read_ns), ("read", until_ns - read_ns, until_ns)]

    def _check_divergence(self, target: _Target, stream: LogStream) -> None:
        """Detect a reader whose last epoch ends earlier here: it has read a truncated suffix
        (KIP-595)."""
        last_epoch = target.asked.last_fetched_epoch
        if last_epoch < 0:
            return
        epoch, end = stream.end_offset_for_epoch(last_epoch)
        if epoch < 0:
            # The reader is ahead of this leader, which may have been deposed. Kafka answers
            # OFFSET_OUT_OF_RANGE, which would make the reader start over.
            target.error = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif epoch < last_epoch or end < target.asked.fetch_offset:
            target.diverging = EpochEndOffset(epoch, end)

    # --- reading -----------------------------------------------------------------------------
    def _begin_reading(self, room: int) -> _Reading:
        """Begin an attempt with room for that many bytes. Without room there is nothing to read."""
        left = min(self._bytes_max, room)
        return _Reading(max(1, left) if room else left)

    @property
    def _bytes_max(self) -> int:
        return min(self.request.max_bytes, self.ctx.server.config.fetch_max_bytes)

    def _read(self, targets: Sequence[_Target], reading: _Reading) -> bool:
        """Read batches of the answer. Return False while a read from disk is under way; then
        `reading` is unchanged.

        KIP-74: the first batch of the first partition that has one is sent in full, if there is any
        room for answers.
        """
        left, total = reading.left, reading.total
        available, at_once = reading.available, reading.at_once
        for target in targets:
            target.found = None
            stream = target.stream
            is_elsewhere = target.preferred >= 0 or target.diverging is not None
            if target.error or stream is None or is_elsewhere:
                at_once = True
            elif left > 0 and target.asked.fetch_offset < (
                end := stream.last_stable_offset if self.is_committed else stream.high_watermark
            ):
                found = self._read_one(target, stream, left)
                if target.error:
                    at_once = True
                elif found is not None:
                    available += found.bytes
                    if found.bytes and found.end_offset < end:
                        # There is more: only the throttle, or batch boundaries, kept the answer
                        # small.
                        available += target.asked.partition_max_bytes
                    if not total or found.bytes <= min(left, target.asked.partition_max_bytes):
                        target.found = found
                        total += found.bytes
                        left -= found.bytes
                    elif found.bytes > left:
                        # The answer is full. Reading the other partitions would cost disk reads
                        # whose result is not sent, and the next request would repeat them.
                        at_once = True
                        left = 0
        if self.state is not _State.RUNNING:
            return False
        reading.left, reading.total = left, total
        reading.available, reading.at_once = available, at_once
        return True

    def _is_enough(self, reading: _Reading) -> bool:
        """Return True if what was read is answered now."""
        min_bytes, available = self.request.min_bytes, reading.available
        return (
            reading.total >= min_bytes
            or reading.at_once
            or self.expired
            or (available > 0 and available >= min(min_bytes, self._bytes_max))
        )

    def _aborted(self, target: _Target, stream: LogStream) -> list[AbortedTransaction]:
        """Return the aborted transactions in the range read."""
        found = target.found
        if found is None or not found.bytes:
            return []
        return [
            AbortedTransaction(one.producer_id, one.first_offset)
            for one in stream.aborted(Offset(target.asked.fetch_offset), found.end_offset)
        ]

    def _build(self, targets: Sequence[_Target]) -> None:
        """Build the answer of each partition from the batches read."""
        for target in targets:
            stream = target.stream
            if target.error or stream is None:
                target.answer = self._error_answer(target)
                continue
            found = target.found
            if found is not None and found.bytes:
                self._count(stream, found, target.asked.fetch_offset)
            target.answer = PartitionData(
                target.asked.partition,
                ErrorCode.NONE,
                stream.high_watermark,
                stream.last_stable_offset,
                stream.log_start_offset,
                target.diverging,
                None,
                None,
                self._aborted(target, stream) if self.is_committed else None,
                target.preferred,
                found.buffers if found is not None and found.bytes else b"",
            )

    def _count(self, stream: LogStream, found: Slices, offset: int) -> None:
        """Count the records of an answer, read from `offset` on."""
        traffic, ctx = stream.traffic, self.ctx
        traffic.bytes_out += found.bytes
        if found.end_offset <= offset:
            return  # converted for an old consumer
        self.records = found.end_offset - offset
        traffic.records_out += self.records
        server = ctx.server
        server.delivery_lag.given(found.buffers[0], server.clock.now_ns(), server.host.agreed_ms)

    def _read_one(self, target: _Target, stream: LogStream, left: int) -> Slices | None:
        """Return batches from memory; None while they are read from disk, or after an error."""
        if target.cold is not None and target.cold_age == stream.aborted_age:
            return target.cold
        target.cold = None
        target.cold_age = stream.aborted_age
        offset = Offset(target.asked.fetch_offset)
        bytes_max = max(1, min(left, target.asked.partition_max_bytes))
        try:
            return stream.read(offset, bytes_max, stable=self.is_committed)
        except NotInMemory:
            # One disk read per request at a time: its size must be known before more is read.
            if self.state is _State.RUNNING:
                self._close_gate()
                self._read_cold(target, stream, bytes_max)
        except OffsetOutOfRange:
            target.error = (
                ErrorCode.OFFSET_OUT_OF_RANGE
                if stream.is_leader
                else ErrorCode.OFFSET_NOT_AVAILABLE
            )
        except StorageError as error:
            target.error = code_of(error)
        return None

    def _read_cold(self, target: _Target, stream: LogStream, bytes_max: int) -> None:
        server = self.ctx.server
        admission = target.admission
        if admission is None:
            reader = (self.ctx.connection.id, target.group_id)
            admission = server.read_throttle.ask(reader, bytes_max, server.clock.now_ns())
            target.admission = admission
            wait_ns = min(admission.wait_ns, REQUEST_WAIT_NS_MAX - self.waited_ns)
            if wait_ns > 0:
                # After the wait all gates are checked again, because the partition may have
                # changed.
                self.waited_ns += wait_ns
                self.admission_timer = server.clock.call_later(wait_ns, self._admitted)
                return
        bytes_max = min(bytes_max, admission.bytes)
        self.ctx.connection.answers.reserve(bytes_max)
        done = partial(self._read_from_disk, target, admission)
        target.admission = None
        server.read_throttle.begin(admission, server.clock.now_ns())
        offset = Offset(target.asked.fetch_offset)
        target.cold_age = stream.aborted_age
        stream.read_cold(offset, bytes_max, done, stable=self.is_committed)

    def _admitted(self) -> None:
        self.admission_timer = None
        self._open_gate()

    def _read_from_disk(
        self, target: _Target, admission: Admission, found: Slices | StorageError
    ) -> None:
        found_bytes = 0
        if self.later.done or self.later.cancelled:
            pass  # the partition may belong to another request by now
        elif isinstance(found, StorageError):
            target.error = self._error_of_read(target, found)
        else:
            target.cold = found
            found_bytes = found.bytes
            # A first batch may be far larger than the requested maximum.
            self.ctx.connection.answers.reserve(found_bytes)
        server = self.ctx.server
        server.read_throttle.found(admission, found_bytes, server.clock.now_ns())
        if not self.later.cancelled:
            self._open_gate()

    def _error_of_read(self, target: _Target, found: StorageError) -> ErrorCode:
        """Return the error for a failed read from disk of an offset that existed when it began.

        Only a leader answers OFFSET_OUT_OF_RANGE, and only if the offset still is out of range,
        because the consumer then starts over.
        """
        code, stream, offset = code_of(found), target.stream, target.asked.fetch_offset
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE or stream is None:
            return code
        if not stream.is_leader and self._has_rack:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        if not stream.is_leader or stream.log_start_offset <= offset <= stream.high_watermark:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return code

    def _error_answer(self, target: _Target) -> PartitionData:
        answer = PartitionData(
            partition_index=target.asked.partition,
            error_code=target.error,
            high_watermark=-1,
            # As in Kafka: null for an existing partition.
            aborted_transactions=[] if target.error in _UNKNOWN else None,
            records=b"",
        )
        if self.ctx.api_version >= _HINTS_FROM and target.error in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            leader, epoch = self.ctx.server.host.leader_of(target.group_id)
            if leader >= 0:
                answer.current_leader = LeaderIdAndEpoch(leader, epoch)
        return answer

    # --- consumers before 0.11 -----------------------------------------------------------------
    def begin_converting(self) -> None:
        """Bound the answer, and begin with another partition each time."""
        request, targets = self.request, self.targets
        request.max_bytes = min(request.max_bytes, BYTES_MAX)
        request.min_bytes = min(request.min_bytes, request.max_bytes)
        first = self.ctx.server.down_conversion.first_of(len(targets))
        self.targets = targets[first:] + targets[:first]

    def _convert(self) -> None:
        """Convert the batches to message sets, then answer."""
        self._close_gate()
        targets: list[_Target] = []
        parts: list[ToConvert] = []
        for target in self.targets:
            if target.found is not None and target.found.bytes:
                asked = target.asked
                buffers = [memoryview(buffer) for buffer in target.found.buffers]
                targets.append(target)
                parts.append(ToConvert(buffers, asked.fetch_offset, asked.partition_max_bytes))
        self.ctx.server.down_conversion.convert(
            parts,
            lambda outcome: self.later.run(partial(self._converted, targets, outcome)),
            version=self.ctx.api_version,
            bytes_max=self.request.max_bytes,
        )

    def _converted(self, targets: list[_Target], outcome: Outcome) -> None:
        if isinstance(outcome, BaseException):
            raise outcome
        total = 0
        reads_on = False
        for target, converted in zip(targets, outcome, strict=True):
            found, target.found = target.found, None
            assert found is not None, target.key
            if converted is None:
                continue
            total += converted.bytes
            if converted.bytes:
                target.found = Slices([*converted.buffers], converted.bytes)
            elif converted.error:
                target.error = converted.error
            else:
                # Only control batches: such a consumer does not advance past batches it does not
                # receive.
                assert found.end_offset > target.asked.fetch_offset, found.end_offset
                target.asked.fetch_offset = found.end_offset
                target.cold = None
                reads_on = True
        if reads_on:
            self._open_gate()
            return
        self.gates -= 1
        assert not self.gates, self.gates
        self._count_gated()
        self.ctx.connection.answers.reserve(total if total > UNCOUNTED_BYTES else 0)
        if self.pieces is not None:
            self.is_converted = True
            self._schedule_now()
            return
        self.state = _State.RUNNING
        self._build(self.targets)
        self._answer(total)

    # --- waiting -----------------------------------------------------------------------------
    def _await(self, targets: Sequence[_Target]) -> None:
        """Subscribe to changes: a new high watermark or leader. A partition that the request names
        several times is subscribed to once, or each record would wake it as often."""
        wake = self._wake if self.session is None else self.session.wake
        awaited: set[LogStream] = set()
        if len(targets) > 1:
            awaited.update(target.stream for target in targets if target.wait and target.stream)
        for target in targets:
            stream = target.stream
            if target.wait is None and stream is not None and stream not in awaited:
                awaited.add(stream)
                target.wait = self._wait_for(stream, partial(wake, target))

    def _wait(self, *, has_room: bool) -> None:
        """Wait for a change, room for an answer that lacked it, or the end of the time. Then make
        another attempt."""
        answers = self.ctx.connection.answers
        # A waiting poll holds no batches: they are read again.
        answers.reserve(0)
        for target in self.targets:
            target.cold = target.found = None
        if not has_room:
            answers.wait(self._schedule)
        self._begin_timer()
        if self.state is _State.RUNNING:
            self.state = _State.WAITING

    def _begin_timer(self) -> None:
        if self.timer is None and not self.expired:
            clock = self.ctx.server.clock
            delay_ns = max(0, self.deadline_ns - clock.now_ns())
            self.timer = clock.call_later(delay_ns, self._expire)

    def _wait_for(self, stream: LogStream, wake: Callable[[], None]) -> Wait:
        """Subscribe to changes of the log's readable end.

        A session's client receives both the high watermark and the last stable offset, so a session
        waits for either.
        """
        in_session = self.session is not None or self.opens_session
        return stream.wait_for(
            stream.high_watermark if in_session or not self.is_committed else NEVER,
            wake,
            stable_offset=stream.last_stable_offset if in_session or self.is_committed else NEVER,
        )

    def _wake(self, target: _Target) -> None:
        target.wait = None
        if self.pieces is None:
            target.cold = None
        self.woken = self.missed = True
        self._schedule()

    def wake(self, target: Cached) -> None:
        """Make another attempt because a partition of the session may have changed."""
        if self.pieces is None:
            self._resolve_again(_target(target))
        self.woken = self.missed = True
        self._schedule()

    def superseded(self) -> None:
        """Answer without records, because the session has another request.

        The answer carries no session id: a client that reads it opens a new session.
        """
        self.finish(FetchResponse())  # its partitions keep their subscriptions
        self.session = None

    def session_ended(self) -> None:
        """Answer without records; the request that opened the session: without a session."""
        if self.opens_session:
            self.session = None
        else:
            self.superseded()

    def _expire(self) -> None:
        self.timer = None
        self.expired = True
        self._schedule()

    def answer_early(self) -> None:
        """Answer with what there is, because others need the memory."""
        if not self.expired:
            if self.timer is not None:
                self.timer.cancel()
            self._expire()

    def _schedule(self) -> None:
        """Schedule another attempt because there may be something to answer."""
        if self.state is _State.WAITING or self.state is _State.RUNNING:
            self._schedule_now()

    def _schedule_now(self) -> None:
        self.state = _State.SCHEDULED
        self.ctx.server.defer(self._run)

    def _run(self) -> None:
        if self.state is _State.SCHEDULED:
            session = self.session
            count = len(self.targets if session is None else session.ready)
            if self.pieces is not None or count > AT_ONCE:
                self._ask_turn()
            else:
                self.later.run(self.attempt)

    # --- in pieces ---------------------------------------------------------------------------
    @property
    def _is_wide(self) -> bool:
        return len(self.targets if self.session is None else self.session.ready) > AT_ONCE

    def go_on(self) -> Any:
        """Do the next piece, in the turn of the connection. Return the next answer."""
        before, self.later = self.later, Later()  # it refers to this step
        if self.result is not None:
            return self.result
        later = self.later
        later.busy_ns = before.busy_ns
        later.about = self
        later.on_cancel = self.release
        later.answer_early = self.answer_early
        if self.size is None:
            self.size = PartSize(FIRST_ELEMENTS)
        if self.pieces is None:
            self.pieces = self._attempts_in_pieces()
        self.state = _State.RUNNING
        clock = self.ctx.server.clock
        began_ns = clock.now_ns()
        try:
            for _ in self.pieces:
                break
            else:
                self.pieces = None
        except BaseException:
            self.release()
            raise
        self.size.took(clock.now_ns() - began_ns)
        if self.pieces is not None and self.state is _State.RUNNING:
            self.state = _State.PAUSED
            clock.call_later(1, self._ask_turn)  # after the next poll of the sockets
        return self.later

    def _ask_turn(self) -> None:
        self.state = _State.PAUSED
        if not self.later.done:
            self.later.complete(Paused(self.go_on, self.release))

    def _slices(self, targets: Sequence[_Target]) -> Iterator[Sequence[_Target]]:
        assert self.size is not None, "set before the first piece"
        position = 0
        while position < len(targets):
            piece = targets[position : position + self.size.elements]
            position += len(piece)
            yield piece

    def _all_in_pieces(self) -> Generator[None]:
        """Look everything up, then make attempts. Yields after each piece."""
        request, session, server = self.request, self.session, self.ctx.server
        assert self.size is not None, "set before the first piece"
        if session is None:
            for topics in _cut(request.topics, self.size):
                self._resolve(topics)
                yield
            # As in Kafka, the last one counts of those that name the same partition.
            self.targets = [*{target.key: target for target in self.targets}.values()]
            self._set_topics()
            count = len(self.targets)
            self.expired = self.expired or not count
            self.opens_session = (
                self.ctx.api_version >= _SESSIONS_FROM
                and request.session_epoch == _FIRST_EPOCH
                and 0 < count <= SESSION_PARTITIONS_MAX
            )
        else:
            by_id = self.ctx.api_version >= _TOPIC_IDS_FROM
            for forgotten in _cut(request.forgotten_topics_data, self.size):
                _change_session(server.fetch_sessions, session, [], forgotten, by_id=by_id)
                yield
            for topics in _cut(request.topics, self.size):
                _change_session(server.fetch_sessions, session, topics, [], by_id=by_id)
                yield
            session.reader = None  # or it would be answered if the session ends here
            found = _judge_session(server.fetch_sessions, session)
            if isinstance(found, ErrorCode):
                self.session = None
                self.finish(FetchResponse(error_code=found))
                return
            self.session = found
            if found is None:
                self.expired = True
            else:
                found.reader = self
        if self.ctx.api_version <= LAST_FETCH_VERSION:
            self.begin_converting()
        if not self.throttled():
            yield from self._attempts_in_pieces()

    def _set_topics(self) -> None:
        """List the partitions by topic, if so few are left that they are answered at once."""
        self.topics.clear()
        by_name: dict[str | bytes, list[_Target]] = {}
        if not self._is_wide:
            for target in self.targets:
                by_name.setdefault(target.key[0], []).append(target)
        for name, targets in by_name.items():
            entry = FetchableTopicResponse()
            if isinstance(name, str):
                entry.topic = name
            else:
                entry.topic_id = name
            self.topics.append((entry, targets))

    def _attempts_in_pieces(self) -> Generator[None]:
        """Make attempts until one answers, or there is nothing to answer and nothing has changed
        meanwhile. Yields after each piece, and while gates are closed."""
        answers, has_authorizer = (
            self.ctx.connection.answers,
            self.ctx.server.authorizer is not None,
        )
        self._begin_timer()  # partitions may change in each attempt, and it would never wait
        while True:
            self.missed = False
            if self.session is not None:
                self.targets = [_target(cached) for cached in self.session.ready.values()]
            targets = self.targets
            if answers.reserved:
                answers.reserve(0)
            room = answers.limit()
            reading = self._begin_reading(room)
            self.size = PartSize(FIRST_ELEMENTS)
            for piece in self._slices(targets):
                if self.session is not None:
                    for target in piece:
                        self._resolve_again(target)
                while True:
                    if has_authorizer:
                        self._check_permission(piece)
                    if self._may_read(piece) and self._read(piece, reading):
                        break
                    yield
                answers.reserve(reading.total if reading.total > UNCOUNTED_BYTES else 0)
                if not self._is_enough(reading):
                    self._await(piece)
                yield
            if self._is_enough(reading):
                if reading.total and self.ctx.api_version <= LAST_FETCH_VERSION:
                    self.is_converted = False
                    self._convert()
                    yield
                    if not self.is_converted:
                        continue
                yield from self._answer_in_pieces(targets, reading.total)
                return
            if not self.missed:
                self._wait(has_room=room > 0)
                return
            yield

    def _answer_in_pieces(self, targets: Sequence[_Target], size: int) -> Iterator[None]:
        """Build and encode the answer. Yields after each piece."""
        ctx = self.ctx
        self.size = PartSize(FIRST_ELEMENTS)  # a partition may cost more than it did to be read
        response = self._begin_response(size)
        if self.session is None and self.opens_session:
            by_key = {target.key: target for target in targets}
            session = self._create_session(response, by_key)
            if session is not None:
                session.partitions, session.ready = {**by_key}, {**by_key}
                session.read_by(self)
                self.session = session
        opened = self.session if self.opens_session else None
        encoded = FetchAnswer(ctx.api_version)
        endpoints: list[NodeEndpoint] = []
        for piece in self._slices(targets):
            ctx.server.fetch_sessions.clean(2 * len(piece))
            topics: dict[str | bytes, list[PartitionData]] = {}
            for target in piece:
                stream = target.stream
                if stream is not None and stream is not ctx.server.stream(
                    target.group_id, target.topic
                ):
                    target.error = target.error or ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif stream is not None and target.cold_age != stream.aborted_age:
                    target.found = None  # of transactions that are listed no more: see `cold_age`
                if opened is not None and target.wait is not None:
                    target.wait.cancel()  # it wakes this poll, not the session
                    target.wait = None
            self._build(piece)
            for target in piece:
                answer = target.answer
                assert answer is not None, "every partition was read"
                if self.session is None or self._settle(self.session, target):
                    topics.setdefault(target.key[0], []).append(answer)
                    if answer.current_leader is not None:
                        self._add_endpoint(endpoints, answer.current_leader.leader_id)
            for name, partitions in topics.items():
                encoded.add(name, partitions)
            yield
        if endpoints and ctx.api_version >= _ENDPOINTS_FROM:
            response.node_endpoints = endpoints
        response.session_id = 0 if self.session is None else self.session.id
        self.finish(Assembled(response, partial(encoded.encoded, response)))

    # --- the end -----------------------------------------------------------------------------
    def throttled(self) -> bool:
        """Answer without records, at once, if the client has used up a quota (KIP-219).

        Return True if so. Otherwise limit the answer to the burst of the client's fetch quota.
        """
        quotas, ctx = self.ctx.server.quotas, self.ctx
        if quotas is None:
            return False
        user, client_id, now_ns = ctx.principal.name, ctx.client_id, ctx.server.clock.now_ns()
        wait_ms = quotas.wait_ms(Quota.REQUEST, user, client_id, now_ns)
        wait_ms = min(wait_ms, REQUEST_THROTTLE_MS_MAX)
        wait_ms = max(wait_ms, quotas.wait_ms(Quota.FETCH, user, client_id, now_ns))
        if wait_ms:
            session_id = 0 if self.session is None else self.session.id
            self.finish(FetchResponse(throttle_time_ms=wait_ms, session_id=session_id))
            return True
        burst = quotas.burst(Quota.FETCH, user, client_id)
        if burst is not None:
            self.request.max_bytes = min(self.request.max_bytes, max(1, int(burst)))
        return False

    def _answer(self, size: int) -> None:
        """Send the response. `size` is the number of bytes of records in it."""
        quotas, ctx = self.ctx.server.quotas, self.ctx
        response = FetchResponse() if quotas is None else self._begin_response(size)
        if self.session is None:
            endpoints = self._answer_all(response)
            if self.opens_session:
                self._open_session(response)
        else:
            response.session_id = self.session.id
            endpoints = self._answer_changed(response, self.session)
        if endpoints and self.ctx.api_version >= _ENDPOINTS_FROM:
            response.node_endpoints = endpoints
        # Batches from disk are not shared: each request reads its own. An answer below min_bytes,
        # sent because the time was over, is not shared with requests that have time left. If quotas
        # were introduced during the wait, the answer is throttled and counted for one client only.
        is_shared = self.share_key is not None and self.targets[0].cold is None and quotas is None
        is_enough = size > 0 and size >= self.request.min_bytes
        if is_shared and is_enough and not response.session_id:
            encoded = Encoded(encode_response(response, self.ctx.api_version))
            shared = self.ctx.server.shared
            is_flushing = self.woken and ctx.api_version > LAST_FETCH_VERSION
            if not shared and not is_flushing:
                self.ctx.server.defer(shared.clear)  # even if no other step is deferred
            shared[self.share_key] = size, self.records, encoded
            self.finish(encoded)
        else:
            self.finish(response)

    def _begin_response(self, size: int) -> FetchResponse:
        """Return an empty response, with the throttle time that its records cause."""
        response = FetchResponse()
        quotas, ctx = self.ctx.server.quotas, self.ctx
        if quotas is not None:
            response.throttle_time_ms = quotas.use(
                Quota.FETCH, ctx.principal.name, ctx.client_id, size, ctx.server.clock.now_ns()
            )
        return response

    def _answer_all(self, response: FetchResponse) -> list[NodeEndpoint]:
        """Append the answer of every requested partition. Return the leaders' endpoints."""
        endpoints: list[NodeEndpoint] = []
        for topic_answer, targets in self.topics:
            for target in targets:
                answer = target.answer
                assert answer is not None, "every partition was read"
                topic_answer.partitions.append(answer)
                if answer.current_leader is not None:
                    self._add_endpoint(endpoints, answer.current_leader.leader_id)
            response.responses.append(topic_answer)
        return endpoints

    def _open_session(self, response: FetchResponse) -> None:
        """Open a session, if there is a free slot: the client then sends only changes."""
        by_key = {target.key: target for target in self.targets}
        session = self._create_session(response, by_key)
        if session is not None:
            for target in by_key.values():
                session.add(target)
                self._settle(session, target)
            self.session = session

    def _create_session(
        self, response: FetchResponse, by_key: dict[Key, _Target]
    ) -> FetchSession | None:
        """Create a session that will have these partitions; None if there is no free slot."""
        server, ctx = self.ctx.server, self.ctx
        session = server.fetch_sessions.create(
            len(by_key),
            server.clock.now_ns(),
            uses_topic_ids=ctx.api_version >= _TOPIC_IDS_FROM,
            asker=ctx.asker,
        )
        if session is not None:
            response.session_id = session.id
            server.fetch_sessions.counted(session, len(by_key))
        return session

    def _answer_changed(self, response: FetchResponse, session: FetchSession) -> list[NodeEndpoint]:
        """Append the answers of the session's changed partitions. Return the leaders' endpoints."""
        endpoints: list[NodeEndpoint] = []
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for target in self.targets:
            answer = target.answer
            assert answer is not None, "every partition was read"
            if self._settle(session, target):
                name = target.key[0]
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = FetchableTopicResponse()
                    if isinstance(name, str):
                        topic.topic = name
                    else:
                        topic.topic_id = name
                    response.responses.append(topic)
                topic.partitions.append(answer)
                if answer.current_leader is not None:
                    self._add_endpoint(endpoints, answer.current_leader.leader_id)
        return endpoints

    def _settle(self, session: FetchSession, target: _Target) -> bool:
        """Return True if this partition belongs in the answer.

        A partition without further changes is quiet until its log wakes it.
        """
        answer = target.answer
        target.answer = target.cold = target.found = None
        assert answer is not None, target.key
        is_elsewhere = answer.preferred_read_replica >= 0
        if answer.error_code or answer.diverging_epoch is not None or is_elsewhere:
            target.reported = None  # reported again while the condition lasts, and once it is over
            return True
        stands = answer.high_watermark, answer.log_start_offset, answer.last_stable_offset
        is_new = stands != target.reported
        target.reported = stands
        if answer.records:
            session.served(target)
            return True
        end = answer.last_stable_offset if self.is_committed else answer.high_watermark
        if target.asked.fetch_offset >= end:
            if target.wait is None and target.stream is not None:
                target.wait = self._wait_for(target.stream, partial(session.wake, target))
            # Each request checks again whether a follower may still serve.
            is_led = target.stream is not None and target.stream.is_leader
            if target.wait is not None and is_led:
                session.quiet(target)
        return is_new

    def _add_endpoint(self, endpoints: list[NodeEndpoint], leader: int) -> None:
        if all(known.node_id != leader for known in endpoints):
            endpoints.extend(
                NodeEndpoint(*row) for row in leader_endpoints(self.ctx, ServerId(leader))
            )

    def finish(self, response: FetchResponse | Encoded | Assembled) -> None:
        """Answer, and release everything."""
        self.release()
        if self.later.done:
            self.result = response  # it waits for its turn
        else:
            self.later.complete(response)

    def release(self) -> None:
        """Cancel subscriptions, timers and pending disk reads."""
        pieces, self.pieces = self.pieces, None
        if pieces is not None:
            with suppress(ValueError):  # it runs, and ends after this
                pieces.close()  # it refers to the poll and its answer: no cycle may be left
        if self.admission_timer is not None:
            self.admission_timer.cancel()
            self.admission_timer = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.ctx.connection.answers.stop_waiting()
        for target in self.targets:
            # A session's partitions outlive the request; batches read for it must not.
            target.cold = target.found = target.answer = target.diverging = None
            if target.admission is not None:
                self.ctx.server.read_throttle.give_back(target.admission)
                target.admission = None
        if self.session is not None:
            # Its partitions keep waiting for the next request.
            if self.session.reader is self:
                self.session.reader = None
            return
        for target in self.targets:
            if target.wait is not None:
                target.wait.cancel()
                target.wait = None


def _replica_of(request: FetchRequest) -> int:
    """Return the replica id that the request claims; negative for consumers."""
    if request.replica_state is not None:
        return request.replica_state.replica_id
    return request.replica_id


def handle_fetch(ctx: RequestContext, request: FetchRequest) -> FetchResponse | Later:
    """Read now, or wait for more."""
    if _replica_of(request) >= 0:
        # Replicas are fed on a separate port; a client cannot claim to be one here.
        return fail_fetch(request, ctx.api_version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    # Partitions are counted only where a request has more than one.
    is_wide = (
        len(request.topics) > 1
        or (bool(request.topics) and len(request.topics[0].partitions) > 1)
        or bool(request.forgotten_topics_data)
    ) and _is_wide(request)
    session: FetchSession | None = None
    if ctx.api_version >= _SESSIONS_FROM and request.session_epoch not in _FULL_EPOCHS:
        found = _find_session(ctx, request, is_wide=is_wide)
        if isinstance(found, ErrorCode):
            return FetchResponse(error_code=found)
        session = found
        is_wide = is_wide or (session is not None and len(session.ready) > AT_ONCE)
    elif request.session_id:
        ctx.server.fetch_sessions.remove(request.session_id)
    poll = _Poll(ctx, request, session, is_wide=is_wide)
    if session is not None:
        session.read_by(poll)
    if is_wide:
        later: Later = poll.go_on()
        return later
    if session is None:
        count = len(poll.targets)
        poll.opens_session = (
            request.session_epoch == _FIRST_EPOCH and 0 < count <= SESSION_PARTITIONS_MAX
        )
    if ctx.api_version <= LAST_FETCH_VERSION:
        poll.begin_converting()
    later = poll.later
    later.about = poll
    later.on_cancel = poll.release
    later.answer_early = poll.answer_early
    if not poll.throttled():
        poll.attempt()
    return later


def _is_wide(request: FetchRequest) -> bool:
    """Return True if a request names more than is done at once."""
    count = 0
    for topic in request.topics:
        count += 1 + len(topic.partitions)
    for forgotten in request.forgotten_topics_data:
        count += 1 + len(forgotten.partitions)
    return count > AT_ONCE


Cut = TypeVar("Cut", FetchTopic, ForgottenTopic)


def _cut(topics: Sequence[Cut], size: PartSize) -> Iterator[list[Cut]]:
    """Yield topics of a request with at most as many partitions as a piece has."""
    piece: list[Cut] = []
    left = size.elements
    for topic in topics:
        position = 0
        while position < len(topic.partitions):
            some = topic.partitions[position : position + left]
            position += len(some)
            left -= len(some)
            piece.append(replace(topic, partitions=some))
            if left <= 0:
                yield piece
                piece, left = [], size.elements
        left -= 1
        if left <= 0:
            yield piece
            piece, left = [], size.elements
    yield piece


def fail_fetch(request: FetchRequest, version: int, code: ErrorCode) -> FetchResponse:
    """Return an error response: `code` for the whole request, or for each partition before v7."""
    if version >= 7:
        return FetchResponse(error_code=code)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition, error_code=code, high_watermark=-1
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _find_session(
    ctx: RequestContext, request: FetchRequest, *, is_wide: bool
) -> FetchSession | ErrorCode | None:
    """Return the session of an incremental request, updated unless it `is_wide`; None if it has
    become empty and ended."""
    by_id = ctx.api_version >= _TOPIC_IDS_FROM
    server = ctx.server
    sessions = server.fetch_sessions
    session = sessions.find(
        request.session_id, request.session_epoch, server.clock.now_ns(), uses_topic_ids=by_id
    )
    if is_wide or isinstance(session, ErrorCode):
        return session
    _change_session(sessions, session, request.topics, request.forgotten_topics_data, by_id=by_id)
    return _judge_session(sessions, session)


def _change_session(
    sessions: FetchSessions,
    session: FetchSession,
    topics: Sequence[FetchTopic],
    forgotten_topics: Sequence[ForgottenTopic],
    *,
    by_id: bool,
) -> None:
    """Remove and add partitions of a session."""
    before = len(session.partitions)
    for forgotten in forgotten_topics:
        for partition in forgotten.partitions:
            session.forget((forgotten.topic_id if by_id else forgotten.topic, partition))
    for topic in topics:
        name = topic.topic_id if by_id else topic.topic
        for asked in topic.partitions:
            key = name, asked.partition
            cached = session.partitions.get(key)
            if cached is None:
                target = _Target(asked, _NO_GROUP, ErrorCode.NONE, key)
            else:
                target = _target(cached)
                target.asked = asked
            session.add(target)
    sessions.counted(session, len(session.partitions) - before)


def _judge_session(
    sessions: FetchSessions, session: FetchSession
) -> FetchSession | ErrorCode | None:
    """Return a session that was changed; an error, or None, if it had to end."""
    if not session.partitions:
        sessions.remove(session.id)
        return None
    if not sessions.has_room(0) or len(session.partitions) > SESSION_PARTITIONS_MAX:
        # It has grown beyond the limit of one session or of all together: its client opens a new
        # one.
        sessions.remove(session.id)
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    return session


def _target(cached: Cached) -> _Target:
    assert isinstance(cached, _Target), cached
    return cached
