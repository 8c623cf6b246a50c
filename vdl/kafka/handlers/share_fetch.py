"""Records of share groups: ShareFetch (key 78) v1–v2 and ShareAcknowledge (key 79) v1–v2.

Leaders of partitions deliver records to members of share groups, and take their acknowledgements
(KIP-932).

* v1: bounds on records. v2 renewed locks (KIP-1222), and a mode in which the bound is exact
  (KIP-1206).
* Each request belongs to a session (`vdl.kafka.share.sessions`). A ShareFetch may carry
  acknowledgements; they take effect before any record is delivered.
* An answer waits until its state is durable: the acknowledgements, and the acquisition of records
  with their delivery counts. If that fails, the records are not sent. The next leader, or this one
  after a new claim, delivers them.

A fetch is a `_Poll`. Each attempt goes through the session's partitions, acquires the records that
the log has, and ends the poll as soon as there are any. Otherwise it waits for new records, for
records that are released, or for the end of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ids import Offset, ServerId
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from vdl.clock import MS, NEVER, Timer
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.host import AbortedRange, LogStream, Wait
from vdl.kafka.limits.memory import UNCOUNTED_BYTES
from vdl.kafka.lookup import find_topic, leader_endpoints
from vdl.kafka.partitions.read_throttle import REQUEST_WAIT_NS_MAX, Admission
from vdl.kafka.permissions.topic_rules import may_read
from vdl.kafka.share.configs import group_settings
from vdl.kafka.share.live_partitions import LivePartition, Phase
from vdl.kafka.share.sessions import Place, ShareSession
from vdl.kafka.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    FoundBatch,
    Lock,
)
from vdl.kafka.wire import share_acknowledge, share_fetch
from vdl.kafka.wire.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from vdl.kafka.wire.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from vdl.records.batch import BatchHeader, read_header, split_batches
from vdl.state.features import SHARE_VERSION

_FINAL_EPOCH = -1
_FIRST_EPOCH = 0
_PARTITION_BYTES_MAX = 1 << 20
"""Maximum that one partition adds to an answer beyond its first batch, so that partitions share it.
ShareFetch v1+ has no bound per partition."""

_ANSWERED = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Error in the acknowledgement of a share-partition, by the reason why it is gone;
COORDINATOR_NOT_AVAILABLE for other reasons."""
_SAID_OF_FETCH = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes that clients handle in the answer of a partition; other codes make them stop. Other,
transient errors are not reported: the client fetches again anyway."""


# --- sessions ------------------------------------------------------------------------------------
def share_groups_enabled(ctx: RequestContext) -> bool:
    """Return True if all servers support share groups, and the feature is finalised."""
    return ctx.server.host.catalog.features.levels.get(SHARE_VERSION, 0) >= 1


def _names_wrong(group_id: str | None, member_id: str | None) -> ErrorCode:
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    return ErrorCode.NONE if member_id else ErrorCode.INVALID_REQUEST


def close_session(ctx: RequestContext, key: tuple[str, str]) -> None:
    """End a session, and release the records that its member holds."""
    session = ctx.server.share_sessions.close(key)
    if session is not None:
        _leave(ctx, session, list(session.partitions), releases=True)


def _leave(
    ctx: RequestContext, session: ShareSession, places: Iterable[Place], *, releases: bool
) -> None:
    lives = ctx.server.share_partitions
    for topic_id, index in places:
        live = lives.existing((session.key[0], topic_id, index))
        if live is not None:
            if releases:
                live.release_member(session.key[1])
            lives.left(live, session.key)


def _bind(ctx: RequestContext) -> None:
    """Make the sessions of this connection end with it."""
    connection = ctx.connection
    if connection.on_lost is None:
        connection.on_lost = partial(_connection_lost, ctx)


def _connection_lost(ctx: RequestContext) -> None:
    for key in ctx.server.share_sessions.of_connection(ctx.connection.id):
        close_session(ctx, key)


# --- acknowledgements ----------------------------------------------------------------------------
@dataclass(slots=True)
class _Named:
    """A partition of which a request acknowledges records."""

    topic_id: bytes
    index: int
    batches: list[Acknowledgement]
    error: ErrorCode = ErrorCode.NONE


class _Acknowledging:
    """Acknowledgements of one request, until they are durable."""

    __slots__ = ("_ctx", "_done", "_left", "group_id", "member_id", "named")

    def __init__(
        self, ctx: RequestContext, group_id: str, member_id: str, named: list[_Named]
    ) -> None:
        self._ctx = ctx
        self.group_id = group_id
        self.member_id = member_id
        self.named = named
        self._left = 1
        self._done: Callable[[], None] | None = None

    def begin(self, *, renews: bool) -> None:
        """Apply the acknowledgements that are valid."""
        may_renew = group_settings(self._ctx.server.host.catalog, self.group_id).may_renew
        for one in self.named:
            if one.error or not one.batches:
                continue
            kinds = {kind for batch in one.batches for kind in batch.types}
            if AcknowledgeType.RENEW in kinds and not renews:
                one.error = ErrorCode.INVALID_REQUEST
            elif AcknowledgeType.RENEW in kinds and not may_renew:
                one.error = ErrorCode.INVALID_RECORD_STATE
            else:
                self._take(one)

    def _take(self, one: _Named) -> None:
        ctx = self._ctx
        stream, error = _find(ctx, one.topic_id, one.index)
        if stream is None or error is not ErrorCode.NONE:
            one.error = error
            return
        key = (self.group_id, one.topic_id, one.index)
        live = ctx.server.share_partitions.existing(key, stream)
        if live is None or live.share is None:
            # All locks ended with the leadership under which they were given.
            one.error = ErrorCode.INVALID_RECORD_STATE
            return
        now_ns = ctx.server.clock.now_ns()
        one.error = live.share.acknowledge(self.member_id, one.batches, now_ns)
        if one.error is ErrorCode.NONE:
            self._left += 1
            live.changed(partial(self._written, one))
            live.freed()

    def _written(self, one: _Named, error: ErrorCode) -> None:
        one.error = _ANSWERED.get(error, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._arrived()

    def _arrived(self) -> None:
        self._left -= 1
        if not self._left and self._done is not None:
            # The callback refers to this object. Dropping it avoids a cycle, so records are freed
            # once sent.
            done, self._done = self._done, None
            done()

    @property
    def is_open(self) -> bool:
        """True if something is not known to be durable yet."""
        return self._left > 0

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` once everything is durable or failed; perhaps at once. Call it only once."""
        assert self._done is None, "called once"
        self._done = done
        self._arrived()


def _find(ctx: RequestContext, topic_id: bytes, index: int) -> tuple[LogStream | None, ErrorCode]:
    """Return the log of a partition that leads here, or an error.

    Checked at each attempt, because the permission to read may be revoked during a session.
    """
    topic = find_topic(ctx, topic_id)
    if topic is None:
        return None, ErrorCode.UNKNOWN_TOPIC_ID
    if ctx.server.authorizer is not None and not may_read(ctx, topic.name):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not 0 <= index < len(topic.partitions):
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stream = ctx.server.host.stream(topic.partitions[index])
    if stream is None or not stream.is_leader:
        return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
    return stream, ErrorCode.NONE


def _batches(
    batches: Iterable[share_fetch.AcknowledgementBatch | share_acknowledge.AcknowledgementBatch],
) -> list[Acknowledgement]:
    return [
        Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
        for batch in batches
    ]


# --- ShareFetch ----------------------------------------------------------------------------------
@dataclass(slots=True)
class _Given:
    """One partition's part of the answer."""

    topic_id: bytes
    index: int
    live: LivePartition | None = None
    lock: Lock | None = None
    ranges: list[AcquiredRange] = field(default_factory=list)
    buffers: list[memoryview] = field(default_factory=list)
    error: ErrorCode = ErrorCode.NONE


class _Poll:
    """One ShareFetch under way. See the module."""

    __slots__ = (
        "acknowledging", "admission", "admission_timer", "cold", "ctx", "deadline_ns", "expired",
        "failed", "given", "is_reading", "is_scheduled", "later", "left", "mode", "request",
        "session", "timer", "waited_ns", "waits", "writes",
    )  # fmt: skip

    def __init__(
        self,
        ctx: RequestContext,
        request: ShareFetchRequest,
        session: ShareSession | None,
        acknowledging: _Acknowledging,
    ) -> None:
        """`session` is None for a request that reads nothing."""
        self.ctx = ctx
        self.request = request
        self.session = session
        self.acknowledging = acknowledging
        self.mode = AcquireMode(request.share_acquire_mode)
        self.deadline_ns = ctx.deadline_ns(request.max_wait_ms)
        self.later = Later()
        self.given: list[_Given] = []
        self.expired = request.max_wait_ms <= 0
        self.is_scheduled = False
        self.is_reading = False
        """True while a read from disk is under way or waits for its turn."""
        self.failed: set[Place] = set()
        """Partitions that cannot be read from disk."""
        self.cold: tuple[tuple[Place, int, bool, int], Slices] | None = None
        """Batches read from disk, with their (partition, offset, stable flag, age of the list of
        aborted transactions before). If that list has lost entries since, they may contain records
        of those transactions."""
        self.admission: Admission | None = None
        self.waited_ns = 0
        self.timer: Timer | None = None
        self.admission_timer: Timer | None = None
        self.waits: list[Wait] = []
        self.writes = 0
        """Number of partitions whose acquisitions are not durable yet."""
        self.left = 0

    # --- attempts ----------------------------------------------------------------------------
    def attempt(self) -> None:
        """Acquire the records there are; otherwise arrange another attempt."""
        self.is_scheduled = False
        session = self.session
        if session is None or self.request.is_renew_ack or self.request.max_records <= 0:
            self._settle()
            return
        self._stop_waiting()
        answers = self.ctx.connection.answers
        answers.reserve(0)
        room = answers.limit()
        left = min(self.request.max_bytes, self.ctx.server.config.fetch_max_bytes, room)
        self.left = self.request.max_records
        self.given = []
        total = 0
        for place in list(session.partitions):
            if self.left <= 0 or (left <= 0 and room):
                break
            size = self._give(place, left, is_first=not total)
            if self.is_reading or self.is_scheduled:
                break  # records on disk come first, or others would always precede them
            if size:
                session.served(place)
                total += size
                left -= size
        if total > UNCOUNTED_BYTES:
            answers.reserve(total)
        if self.is_reading or self.is_scheduled:
            return  # nothing was acquired; errors are detected again
        if self.given or self.expired:
            self._settle()
        else:
            self._wait(has_room=room > 0)

    def _give(self, place: Place, left: int, *, is_first: bool) -> int:
        """Acquire records of one partition. Return their bytes."""
        ctx = self.ctx
        assert self.session is not None, "only a session reads"
        group_id, member_id = self.session.key
        stream, error = _find(ctx, *place)
        if stream is None or place in self.failed:
            error = error or ErrorCode.KAFKA_STORAGE_ERROR
            self.given.append(_Given(*place, error=error))
            return 0
        settings = group_settings(ctx.server.host.catalog, group_id)
        live = ctx.server.share_partitions.get((group_id, *place), stream, settings)
        if live.phase is Phase.GONE:
            if live.error in _SAID_OF_FETCH:
                self.given.append(_Given(*place, error=live.error))
            return 0
        live.join(self.session.key)
        share = live.share
        if share is None:
            return 0
        share.move_start(stream.log_start_offset)
        offset = Offset(share.next_offset)
        stable = settings.is_read_committed
        if offset >= live.records_end or not share.may_acquire or left <= 0:
            return 0
        if ctx.server.share_partitions.is_full(live):
            return 0
        found = self._read(place, stream, offset, left, is_first=is_first, stable=stable)
        if found is None:
            return 0
        batches = [batch for buffer in found.buffers for batch in split_batches(memoryview(buffer))]
        headers = [read_header(batch) for batch in batches]
        aborted = stream.aborted(offset, found.end_offset) if stable and headers else ()
        lock, ranges = share.acquire(
            member_id,
            [_found_batch(header, aborted) for header in headers],
            read_from=offset,
            read_end=found.end_offset,
            records_max=self.left,
            mode=self.mode,
            now_ns=ctx.server.clock.now_ns(),
        )
        if not ranges:
            live.changed()
            return 0
        self.left -= sum(one.last - one.first + 1 for one in ranges)
        given = _Given(*place, live, lock, ranges, _of_ranges(batches, headers, ranges))
        self.given.append(given)
        self.writes += 1
        stream.traffic.records_out += sum(one.last - one.first + 1 for one in ranges)
        stream.traffic.bytes_out += sum(len(buffer) for buffer in given.buffers)
        if given.buffers:
            server = ctx.server
            server.delivery_lag.given(
                given.buffers[0], server.clock.now_ns(), server.host.agreed_ms
            )
        live.changed(partial(self._written, given))
        return sum(len(buffer) for buffer in given.buffers)

    def _read(
        self,
        place: Place,
        stream: LogStream,
        offset: Offset,
        left: int,
        *,
        is_first: bool,
        stable: bool,
    ) -> Slices | None:
        """Return batches from `offset` on; None if there are none now."""
        bytes_max = max(1, min(left, _PARTITION_BYTES_MAX))
        wanted = place, offset, stable, stream.aborted_age
        if self.cold is not None and self.cold[0] == wanted:
            found, self.cold = self.cold[1], None
            return found
        try:
            found = stream.read(offset, bytes_max, stable=stable)
        except NotInMemory:
            # One disk read at a time, and only if nothing was acquired before.
            if not self.writes:
                self._read_cold(place, stream, offset, bytes_max, stable=stable)
            return None
        except OffsetOutOfRange:
            return None  # the log was cut just now; the next attempt begins at its start
        except StorageError:
            self.given.append(_Given(*place, error=ErrorCode.KAFKA_STORAGE_ERROR))
            return None
        return found if is_first or found.bytes <= left else None

    def _read_cold(
        self, place: Place, stream: LogStream, offset: Offset, bytes_max: int, *, stable: bool
    ) -> None:
        """Read from disk, one read at a time; readers far behind are throttled while producers are
        active."""
        self.is_reading = True
        server = self.ctx.server
        if self.admission is None:
            reader = (self.ctx.connection.id, stream.group_id)
            self.admission = server.read_throttle.ask(reader, bytes_max, server.clock.now_ns())
            wait_ns = min(self.admission.wait_ns, REQUEST_WAIT_NS_MAX - self.waited_ns)
            if wait_ns > 0:
                self.waited_ns += wait_ns
                self.admission_timer = server.clock.call_later(wait_ns, self._read_on)
                return
        admission, self.admission = self.admission, None
        bytes_max = min(bytes_max, admission.bytes)
        self.ctx.connection.answers.reserve(bytes_max)
        server.read_throttle.begin(admission, server.clock.now_ns())
        what = place, offset, stable, stream.aborted_age
        done = partial(self._read_from_disk, what, admission)
        stream.read_cold(offset, bytes_max, done, stable=stable)

    def _read_on(self) -> None:
        self.admission_timer = None
        self.is_reading = False
        self._schedule()

    def _read_from_disk(
        self,
        what: tuple[Place, int, bool, int],
        admission: Admission,
        found: Slices | StorageError,
    ) -> None:
        server = self.ctx.server
        count = 0 if isinstance(found, StorageError) else found.bytes
        server.read_throttle.found(admission, count, server.clock.now_ns())
        if self.later.done or self.later.cancelled:
            return
        self.is_reading = False
        if isinstance(found, StorageError):
            self.failed.add(what[0])
        else:
            self.cold = what, found
        self._schedule()

    # --- waiting -----------------------------------------------------------------------------
    def _wait(self, *, has_room: bool) -> None:
        ctx = self.ctx
        assert self.session is not None, "only a session waits"
        if not has_room:
            ctx.connection.answers.wait(self._schedule)
        for topic_id, index in self.session.partitions:
            stream, _ = _find(ctx, topic_id, index)
            if stream is None:
                continue
            live = ctx.server.share_partitions.existing((self.session.key[0], topic_id, index))
            stable = live is not None and live.settings.is_read_committed
            self.waits.append(
                stream.wait_for(
                    NEVER if stable else stream.high_watermark,
                    self._schedule,
                    stable_offset=stream.last_stable_offset if stable else NEVER,
                )
            )
            if live is not None:
                live.waiters[self] = self._schedule
        if self.timer is None:
            delay_ns = max(0, self.deadline_ns - ctx.server.clock.now_ns())
            self.timer = ctx.server.clock.call_later(delay_ns, self._expire)

    def _stop_waiting(self) -> None:
        self.ctx.connection.answers.stop_waiting()
        waits, self.waits = self.waits, []
        for wait in waits:
            wait.cancel()
        if self.session is not None:
            for place in self.session.partitions:
                live = self.ctx.server.share_partitions.existing((self.session.key[0], *place))
                if live is not None:
                    live.waiters.pop(self, None)

    def _schedule(self) -> None:
        """Schedule another attempt at the end of the turn. A read from disk may complete at
        once."""
        if not self.is_scheduled and not self.is_reading and self.session is not None:
            self.is_scheduled = True
            self.ctx.server.defer(lambda: self.later.run(self._attempt_if_waiting))

    def _attempt_if_waiting(self) -> None:
        if self.is_scheduled and not self.is_reading and self.session is not None:
            self.attempt()

    def _expire(self) -> None:
        self.timer = None
        self.expired = True
        self._schedule()

    def answer_early(self) -> None:
        """Answer with what there is, because others need the memory."""
        if not self.expired and not self.writes:
            if self.timer is not None:
                self.timer.cancel()
            self._expire()

    # --- the end -----------------------------------------------------------------------------
    def _settle(self) -> None:
        """Acquire nothing more; answer when everything is durable."""
        self._stop_waiting()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.session = None
        self.is_reading = True  # prevents further attempts
        self.acknowledging.when_done(self._answer_if_durable)

    def _written(self, given: _Given, error: ErrorCode) -> None:
        self.writes -= 1
        if given.live is not None and given.live.phase is Phase.GONE:
            error = given.live.error
        if error is not ErrorCode.NONE:
            given.live = None
            given.ranges = []
            given.error = error if error in _SAID_OF_FETCH else ErrorCode.NONE
        elif self.later.cancelled:
            self._take_back(given)
        self._answer_if_durable()

    def _answer_if_durable(self) -> None:
        if self.writes or self.acknowledging.is_open or self.session is not None:
            return
        self.later.run(self._answer)

    def _take_back(self, given: _Given) -> None:
        """Release the acquired records, which the member does not receive."""
        live = given.live
        if live is not None and live.share is not None and given.lock is not None:
            if live.share.release(given.lock):
                live.freed()
            live.changed()

    def _answer(self) -> None:
        ctx = self.ctx
        response = ShareFetchResponse()
        group_id = self.acknowledging.group_id
        limits = group_settings(ctx.server.host.catalog, group_id).limits
        response.acquisition_lock_timeout_ms = limits.lock_ns // MS
        answer = _Answer(ctx)
        for given in self.given:
            data = answer.of(given.topic_id, given.index)
            data.error_code = given.error
            if given.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                answer.add_leader(given.topic_id, data)
            live = given.live
            if live is None or live.share is None or given.lock is None:
                continue
            if not live.share.still_held(given.lock, given.ranges):
                self._take_back(given)  # it took longer than the lock lasts
                continue
            data.records = [*given.buffers]
            data.acquired_records = [
                AcquiredRecords(one.first, one.last, one.count) for one in given.ranges
            ]
        for named in self.acknowledging.named:
            data = answer.of(named.topic_id, named.index)
            data.acknowledge_error_code = named.error
            if named.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                answer.add_leader(named.topic_id, data)
        response.responses = list(answer.topics.values())
        response.node_endpoints = answer.endpoints
        self.later.complete(response)

    def release(self) -> None:
        """Release everything, because the client is gone."""
        self._stop_waiting()
        for timer in (self.timer, self.admission_timer):
            if timer is not None:
                timer.cancel()
        self.timer = self.admission_timer = None
        if self.admission is not None:
            self.ctx.server.read_throttle.give_back(self.admission)
            self.admission = None
        self.cold = None
        for given in self.given:
            self._take_back(given)


NO_LEADER = (-1, -1)
"""Leader and epoch where none is known. The protocol's default, 0, would be a server's id."""


class _Answer:
    """The partitions of an answer, each once."""

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self.topics: dict[bytes, ShareFetchableTopicResponse] = {}
        self._partitions: dict[Place, PartitionData] = {}
        self.endpoints: list[NodeEndpoint] = []

    def of(self, topic_id: bytes, index: int) -> PartitionData:
        """Return the answer of a partition; add it if it is missing."""
        data = self._partitions.get((topic_id, index))
        if data is None:
            data = self._partitions[topic_id, index] = PartitionData(
                index, records=b"", current_leader=LeaderIdAndEpoch(*NO_LEADER)
            )
            topic = self.topics.get(topic_id)
            if topic is None:
                topic = self.topics[topic_id] = ShareFetchableTopicResponse(topic_id)
            topic.partitions.append(data)
        return data

    def add_leader(self, topic_id: bytes, data: PartitionData) -> None:
        """Set the partition's leader, as far as it is known (KIP-951)."""
        leader, epoch = _leader_of(self._ctx, topic_id, data.partition_index)
        if leader < 0:
            return
        data.current_leader = LeaderIdAndEpoch(leader, epoch)
        if all(known.node_id != leader for known in self.endpoints):
            self.endpoints += [NodeEndpoint(*row) for row in leader_endpoints(self._ctx, leader)]


def _leader_of(ctx: RequestContext, topic_id: bytes, index: int) -> tuple[ServerId, int]:
    topic = find_topic(ctx, topic_id)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ServerId(-1), -1
    return ctx.server.host.leader_of(topic.partitions[index])


def _found_batch(header: BatchHeader, aborted: Sequence[AbortedRange]) -> FoundBatch:
    """Return a batch as found: its offsets, and whether its records may be delivered.

    Control batches and batches of `aborted` transactions are not delivered.
    """
    first = header.base_offset
    is_aborted = header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= first < one.last_offset
        for one in aborted
    )
    return FoundBatch(first, header.last_offset, not header.is_control and not is_aborted)


def _of_ranges(
    batches: list[memoryview], headers: list[BatchHeader], ranges: list[AcquiredRange]
) -> list[memoryview]:
    """Return the batches that contain acquired records."""
    kept: list[memoryview] = []
    i = 0
    for batch, header in zip(batches, headers, strict=True):
        while i < len(ranges) and ranges[i].last < header.base_offset:
            i += 1
        if i < len(ranges) and ranges[i].first <= header.last_offset and not header.is_control:
            kept.append(batch)
    return kept


def handle_share_fetch(
    ctx: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | Later:
    """Apply the acknowledgements of the request; then acquire records, or wait for some."""
    if not share_groups_enabled(ctx):
        return ShareFetchResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    error = _names_wrong(request.group_id, request.member_id) or _bounds_wrong(request)
    if error:
        return ShareFetchResponse(error_code=error)
    key = (request.group_id or "", request.member_id or "")
    named = [
        _Named(
            topic.topic_id, partition.partition_index, _batches(partition.acknowledgement_batches)
        )
        for topic in request.topics
        for partition in topic.partitions
        if partition.acknowledgement_batches
    ]
    session = _session_of(ctx, request, key, is_acknowledging=bool(named))
    if isinstance(session, Later):
        return session
    if isinstance(session, ErrorCode):
        return ShareFetchResponse(error_code=session)
    acknowledging = _Acknowledging(ctx, *key, named)
    acknowledging.begin(renews=request.is_renew_ack)
    is_final = request.share_session_epoch == _FINAL_EPOCH
    poll = _Poll(ctx, request, None if is_final else session, acknowledging)
    if is_final:
        close_session(ctx, key)
    poll.later.on_cancel = poll.release
    poll.later.answer_early = poll.answer_early
    poll.attempt()
    return poll.later


def _bounds_wrong(request: ShareFetchRequest) -> ErrorCode:
    """Validate bounds and mode (KIP-1206). A renewal of locks fetches nothing (KIP-1222)."""
    bounds = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(bounds):
        return ErrorCode.INVALID_REQUEST
    if request.share_acquire_mode not in frozenset(AcquireMode):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _session_of(
    ctx: RequestContext,
    request: ShareFetchRequest,
    key: tuple[str, str],
    *,
    is_acknowledging: bool,
) -> ShareSession | ErrorCode | Later:
    """Return the session of the request, updated by it."""
    sessions = ctx.server.share_sessions
    epoch = request.share_session_epoch
    places = [
        (topic.topic_id, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if epoch == _FINAL_EPOCH:
        return sessions.get(key) or ErrorCode.SHARE_SESSION_NOT_FOUND
    if epoch == _FIRST_EPOCH:
        if is_acknowledging:
            return ErrorCode.INVALID_REQUEST
        before = sessions.close(key)
        if before is not None:
            # Its member keeps the records it holds: it may still acknowledge them.
            _leave(ctx, before, list(before.partitions), releases=False)
        asker = "" if ctx.server.authorizer is None else ctx.asker
        session = sessions.open(key, ctx.connection.id, asker)
        if isinstance(session, ErrorCode):
            return _refuse_late(ctx, request, session)
        _bind(ctx)
    else:
        session = sessions.use(key, epoch, ctx.connection.id)
        if isinstance(session, ErrorCode):
            return session
        _bind(ctx)
    if not sessions.add(session, places):
        close_session(ctx, key)
        return _refuse_late(ctx, request, ErrorCode.SHARE_SESSION_LIMIT_REACHED)
    # A forgotten partition may be named because the request carries acknowledgements of it.
    forgotten = [
        (topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    _leave(ctx, session, sessions.forget(session, forgotten), releases=False)
    return session


def _refuse_late(ctx: RequestContext, request: ShareFetchRequest, code: ErrorCode) -> Later:
    """Refuse a session after the request's wait time, because the client would retry at once."""
    later = Later()
    delay_ns = max(0, ctx.deadline_ns(request.max_wait_ms) - ctx.server.clock.now_ns())
    timer = ctx.server.clock.call_later(
        delay_ns, lambda: later.complete(ShareFetchResponse(error_code=code))
    )
    later.on_cancel = timer.cancel
    return later


# --- ShareAcknowledge ----------------------------------------------------------------------------
def handle_share_acknowledge(
    ctx: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse | Later:
    """Acknowledge records without reading any."""
    if not share_groups_enabled(ctx):
        return ShareAcknowledgeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    error = _names_wrong(request.group_id, request.member_id)
    if error:
        return ShareAcknowledgeResponse(error_code=error)
    key = (request.group_id or "", request.member_id or "")
    sessions = ctx.server.share_sessions
    epoch = request.share_session_epoch
    if epoch == _FIRST_EPOCH:
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    is_final = epoch == _FINAL_EPOCH
    if is_final:
        found = sessions.get(key) or ErrorCode.SHARE_SESSION_NOT_FOUND
    else:
        found = sessions.use(key, epoch, ctx.connection.id)
    if isinstance(found, ErrorCode):
        return ShareAcknowledgeResponse(error_code=found)
    _bind(ctx)
    acknowledging = _Acknowledging(
        ctx,
        *key,
        [
            _Named(
                topic.topic_id,
                partition.partition_index,
                _batches(partition.acknowledgement_batches),
            )
            for topic in request.topics
            for partition in topic.partitions
        ],
    )
    acknowledging.begin(renews=request.is_renew_ack)
    if is_final:
        close_session(ctx, key)
    later = Later()
    acknowledging.when_done(
        lambda: later.run(lambda: later.complete(_acknowledged(ctx, acknowledging)))
    )
    return later


def _acknowledged(ctx: RequestContext, done: _Acknowledging) -> ShareAcknowledgeResponse:
    response = ShareAcknowledgeResponse()
    lock_ns = group_settings(ctx.server.host.catalog, done.group_id).limits.lock_ns
    response.acquisition_lock_timeout_ms = lock_ns // MS
    topics: dict[bytes, share_acknowledge.ShareAcknowledgeTopicResponse] = {}
    leaders: set[ServerId] = set()
    for named in done.named:
        topic = topics.get(named.topic_id)
        if topic is None:
            topic = topics[named.topic_id] = share_acknowledge.ShareAcknowledgeTopicResponse(
                named.topic_id
            )
        data = share_acknowledge.PartitionData(
            named.index,
            named.error,
            current_leader=share_acknowledge.LeaderIdAndEpoch(*NO_LEADER),
        )
        topic.partitions.append(data)
        if named.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader, epoch = _leader_of(ctx, named.topic_id, named.index)
            if leader >= 0:
                data.current_leader = share_acknowledge.LeaderIdAndEpoch(leader, epoch)
                leaders.add(leader)
    response.responses = list(topics.values())
    response.node_endpoints = [
        share_acknowledge.NodeEndpoint(*row)
        for leader in sorted(leaders)
        for row in leader_endpoints(ctx, leader)
    ]
    return response
