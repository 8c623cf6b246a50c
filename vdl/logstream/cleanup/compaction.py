"""Compaction of one server's logs: one at a time, in the background.

Leaders check every `compaction_check_ms` whether their logs are to be compacted further, and append
the decision (`group/compaction.py`). Every replica, led here or not, then compacts in its own time,
in turn. It reads and writes one step at a time and pauses between the steps: while producers are
active it gets no more of the disk than readers far behind do.

Each replica reports to its leader how far it is compacted. Deletion markers wait for all replicas.

Does not depend on topics, their settings, records, or how a segment is rewritten.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import segments.api as storage
from ids import NO_INDEX, NO_SERVER, GroupId, Index, NodeId, ServerId
from rpc.compacted import ROWS_MAX, Compacted, decode_compacted, encode_compacted
from rpc.hello import VERSION_OF_COMPACTION
from rpc.peer import FrameType
from vdl.clock import MS, NEVER
from vdl.logstream.group.compaction import CompactedMarks, CompactionPolicy, compaction_end
from vdl.logstream.group.group import Group
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.state import HostState
from vdl.records.compaction import BatchCleaner

TELL_AGAIN_NS = 30_000 * MS
"""Interval at which unchanged reports are repeated: a frame may be lost with its link."""

NOTE_AGAIN_NS = 15_000 * MS
"""Minimum distance of marks if deletion markers are kept for long. A later mark lets markers be
removed later."""

RETRY_NS = 5_000 * MS
"""Pause of a log that could not be compacted: its newest segment has to end, it has damage, or the
disk is full."""

STORED_NS = 15_000 * MS
"""Time for which a decision may wait for the next periodic checkpoint before one is requested:
there are none while nothing is appended."""

REPEAT_NS = 15_000 * MS
"""Time after which a decision is appended again, if a live replica has not executed it and nothing
else was appended: the newest segment is never compacted, and only another entry begins the next."""

REPEAT_NS_MAX = 3_600_000 * MS
"""Maximum of that time, which doubles until something changes: the replica may wait for something
else, because of damage or a full disk."""


class _Replica:
    """Compaction state of one partition's replica here, and of its peers."""

    __slots__ = (
        "due_ns", "group", "last", "marks", "note_due_ns", "repeat_due_ns", "repeat_ns", "reported",
        "settled", "told", "told_ns", "upto", "waiting",
    )  # fmt: skip

    def __init__(self, group: Group, now_ns: int) -> None:
        self.group = group
        self.last = NO_INDEX
        """End of the log at the last check. Use: by the leader."""
        self.waiting: frozenset[NodeId] = frozenset()
        """Replicas that had not executed the last decision at that check. Use: by the leader."""
        self.repeat_ns = REPEAT_NS
        self.repeat_due_ns = now_ns + REPEAT_NS
        """Time at which the decision is appended again, if nothing changes. Use: by the leader."""
        self.marks = CompactedMarks()
        self.reported: dict[NodeId, Index] = {}
        """Reported progress of the other replicas, which never goes back. Use: by the leader."""
        self.told: tuple[ServerId, Index] = (NO_SERVER, NO_INDEX)
        """The leader's server, and the last report to it."""
        self.told_ns = 0
        self.due_ns = 0
        """Time before which compaction is not tried again."""
        self.upto = NO_INDEX
        """Result of `_compacted` at the last check."""
        self.settled: tuple[Index, Index, storage.Compaction, Index] | None = None
        """`_progress` at that time, if all decisions had been executed: thousands of logs at rest
        are then skipped."""
        self.note_due_ns = NEVER
        """Time of the next check in that case, because `marks` could not take `upto` yet."""


class LogCompaction:
    """Compaction of the logs of one server."""

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._replicas: dict[GroupId, _Replica] = {}
        """By group id: partitions that are compacted, or were."""
        self._versions: dict[ServerId, int] = {}
        """Protocol versions that servers had when they were last linked."""
        self._is_running = False
        self._due: deque[LogStream] = deque()
        """Logs to be compacted at the last check that have not been since."""
        self._stopping = False
        self._stored_due_ns = NEVER
        """Time at which a checkpoint is requested, if a decision still waits for one."""
        self._turn = 0
        """The group that was compacted last: others come first."""
        self.done = 0
        """Number of logs that were compacted."""

    def start(self) -> None:
        """Start the rounds of decisions."""
        self._schedule_round()

    def stopping(self) -> None:
        """Note that the server hands its leaderships over: nothing is decided or begun any more."""
        self._stopping = True

    # --- each replica ----------------------------------------------------------------------------
    def look(self) -> None:
        """Compact the logs that are due here, and report to leaders. Use: once a second."""
        if self._has_ended:
            return
        state, now_ns = self._state, self._state.clock.now_ns()
        for server_id, hello in state.alive.items():
            self._versions[server_id] = hello.version
        due: list[LogStream] = []
        is_unstored = False
        for stream in state.streams.values():
            if not stream.state.compact_upto:
                continue
            replica = self._replica(stream)
            progress = _progress(stream)
            if replica.settled == progress and now_ns < replica.note_due_ns:
                continue
            policy = self._state.front.compaction_policy(stream) or CompactionPolicy()
            upto = replica.upto = _compacted(stream)
            replica.marks.note(upto, policy.delete_retention_ms, now_ns)
            if is_due(stream) and now_ns >= replica.due_ns:
                due.append(stream)
            is_unstored = is_unstored or upto < stream.state.compact_upto > _applied(stream)
            replica.settled = progress if _is_done(stream) else None
            replica.note_due_ns = NEVER if replica.marks.newest >= upto else now_ns + NOTE_AGAIN_NS
        self._see_to_checkpoint(now_ns, is_needed=is_unstored)
        self._forget_gone()
        self._tell(now_ns)
        # In turn, so that a log that cannot be compacted does not block the others.
        due.sort(key=lambda stream: (stream.group_id <= self._turn, stream.group_id))
        self._due = deque(due)
        self._compact_next()

    def _compact_next(self) -> None:
        """Start the next of the logs that were due at the last check.

        Checking all of thousands of logs after each compaction would take too long.
        """
        now_ns = self._state.clock.now_ns()
        while self._due and not self._is_running and not self._has_ended:
            stream = self._due.popleft()
            if self._state.streams.get(stream.group_id) is not stream or not is_due(stream):
                continue
            if now_ns >= self._replica(stream).due_ns:
                self._compact(stream)

    def _see_to_checkpoint(self, now_ns: int, *, is_needed: bool) -> None:
        if not is_needed:
            self._stored_due_ns = NEVER
        elif self._stored_due_ns == NEVER:
            self._stored_due_ns = now_ns + STORED_NS
        elif now_ns >= self._stored_due_ns:
            self._stored_due_ns = now_ns + STORED_NS
            self._state.store.checkpoint()

    def _replica(self, stream: LogStream) -> _Replica:
        replica = self._replicas.get(stream.group_id)
        if replica is None or replica.group is not stream.group:
            replica = _Replica(stream.group, self._state.clock.now_ns())
            self._replicas[stream.group_id] = replica
        return replica

    def _forget_gone(self) -> None:
        gone = [g for g, known in self._replicas.items() if not self._state.is_here(known.group)]
        for group_id in gone:
            del self._replicas[group_id]

    def _compact(self, stream: LogStream) -> None:
        state, group, replica = self._state, stream.group, self._replica(stream)
        self._is_running = True
        self._turn = group.group_id
        began_ns = state.clock.now_ns()

        def done(is_whole: bool) -> None:
            self._is_running = False
            if state.outbox.is_closed:
                return
            now_ns = state.clock.now_ns()
            if not is_whole:
                replica.due_ns = now_ns + RETRY_NS
                self._compact_next()
                return
            self.done += 1
            state.log.info(
                "log_compacted",
                partition=state.told_of(group.group_id),
                upto=group.log.compaction.upto,
                seconds=round((now_ns - began_ns) / 1e9, 3),
            )
            self._compact_next()

        wanted = storage.Compaction(stream.state.compact_upto, stream.state.markers_upto)
        cleaner = partial(BatchCleaner, aborted=stream.state.aborted.copy())
        state.store.compact(group.log, wanted, cleaner, pace=self._pace, done=done)

    def _pace(self, count: int) -> int:
        return count * 1_000 // max(1, self._state.front.background_rate())

    # --- reports to leaders ----------------------------------------------------------------------
    def _tell(self, now_ns: int) -> None:
        """Report to leaders how far the replicas here are compacted, if they may not know."""
        state = self._state
        rows: dict[ServerId, list[Compacted]] = {}
        for group_id, replica in self._replicas.items():
            group, upto = replica.group, replica.upto
            leader = server_of(group.node.lead)
            is_told = replica.told == (leader, upto) and now_ns - replica.told_ns < TELL_AGAIN_NS
            if not upto or is_told or not self._understands(leader) or leader not in state.alive:
                continue
            to_leader = rows.setdefault(leader, [])
            if len(to_leader) < ROWS_MAX:
                replica.told, replica.told_ns = (leader, upto), now_ns
                to_leader.append(Compacted(group_id, group.replica_id, upto))
        for server_id in sorted(rows):
            frame = encode_compacted(rows[server_id])
            if not state.transport.send(server_id, FrameType.COMPACTED, frame):
                for row in rows[server_id]:
                    self._replicas[row.group].told_ns = -TELL_AGAIN_NS

    def received(self, server_id: ServerId, payload: memoryview) -> None:
        """Take a peer's report on its replicas. Raise MalformedFrame if it is malformed."""
        for row in decode_compacted(payload):
            stream = self._state.streams.get(row.group)
            if stream is None or server_of(row.replica) != server_id:
                continue
            if row.replica in stream.group.members:
                reported = self._replica(stream).reported
                reported[row.replica] = max(reported.get(row.replica, NO_INDEX), row.upto)

    # --- decisions of a leader -------------------------------------------------------------------
    def _look_at_led(self) -> None:
        """Begin a round over the compacted partitions led here, one after the other.

        Reading segments may need the disk.
        """
        if self._has_ended:
            return
        led: list[tuple[LogStream, CompactionPolicy]] = []
        for stream in self._state.streams.values():
            policy = self._state.front.compaction_policy(stream) if stream.serving else None
            if policy is not None:
                led.append((stream, policy))
                self._repeat(stream)
        self._decide_next(led[::-1])

    def _repeat(self, stream: LogStream) -> None:
        """Append the last decision again, if a replica seems to wait for an entry behind it."""
        now_ns, upto = self._state.clock.now_ns(), stream.state.compact_upto
        if not upto:
            return
        replica, group = self._replica(stream), stream.group
        waiting = frozenset(
            member
            for member in group.members
            if (
                is_due(stream)
                if member == group.replica_id
                else server_of(member) in self._state.alive
                and replica.reported.get(member, NO_INDEX) < upto
            )
        )
        last = group.node.last_index
        if waiting != replica.waiting or last != replica.last:
            # There is another entry, or other replicas wait: they may only have lacked time.
            replica.waiting, replica.last = waiting, last
            replica.repeat_ns, replica.repeat_due_ns = REPEAT_NS, now_ns + REPEAT_NS
        elif waiting and now_ns >= replica.repeat_due_ns:
            stream.commands.compact(upto=upto, markers_upto=stream.state.markers_upto)
            replica.last = group.node.last_index
            replica.repeat_ns = min(2 * replica.repeat_ns, REPEAT_NS_MAX)
            replica.repeat_due_ns = now_ns + replica.repeat_ns

    def _decide_next(self, led: list[tuple[LogStream, CompactionPolicy]]) -> None:
        if self._has_ended:
            return
        while led and (not led[-1][0].serving or not self._may_decide(led[-1][0])):
            led.pop()
        if not led:
            self._schedule_round()
            return
        stream, policy = led.pop()

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if not self._has_ended and not isinstance(spans, storage.StorageError):
                self._decide(stream, policy, spans)
            self._decide_next(led)

        self._state.store.segment_spans(stream.group.log, found)

    def _may_decide(self, stream: LogStream) -> bool:
        """Return True if the last decision is executed here, and all members can apply another.

        A replica that cannot apply a decision stops. A server that is away counts with its last
        version. If a decision has been applied, the next one adds no requirement: the log has an
        entry that all members must be able to apply, also those not heard of since this server
        started.
        """
        if is_due(stream):
            return False
        servers = {server_of(replica) for replica in stream.group.members}
        others = servers - {self._state.server_id}
        return stream.state.compact_upto > 0 or all(map(self._understands, others))

    def _understands(self, server_id: ServerId) -> bool:
        return self._versions.get(server_id, 0) >= VERSION_OF_COMPACTION

    def _decide(
        self, stream: LogStream, policy: CompactionPolicy, spans: list[storage.SegmentSpan]
    ) -> None:
        if not stream.serving or not self._may_decide(stream):
            return
        group = stream.group
        upto = compaction_end(
            spans,
            policy,
            compacted=stream.state.compact_upto,
            stable=stream.stable_index,
            settled_ms=self._state.time.settled_ms(),
            stamp_ms=self._state.time.now_ms(),
        )
        upto = min(upto, group.applied, group.commit)
        if upto > stream.state.compact_upto:
            stream.commands.compact(upto=upto, markers_upto=self._markers_upto(stream, policy))

    def _markers_upto(self, stream: LogStream, policy: CompactionPolicy) -> Index:
        """Return the index up to which deletion markers may be removed.

        They are old enough, and every replica has removed the records they delete, also one that
        is leaving: it may come back.
        """
        replica, group = self._replica(stream), stream.group
        now_ns = self._state.clock.now_ns()
        upto = replica.marks.markers_upto(policy.delete_retention_ms, now_ns)
        upto = min(upto, _compacted(stream))
        for holder in group.holders:
            if holder != group.replica_id:
                upto = min(upto, replica.reported.get(holder, NO_INDEX))
        return upto

    def _schedule_round(self) -> None:
        check_ns = self._state.options.compaction_check_ms * MS
        self._state.clock.call_later(check_ns, self._look_at_led)

    @property
    def _has_ended(self) -> bool:
        return self._stopping or self._state.outbox.is_closed


def is_due(stream: LogStream) -> bool:
    """Return True if a decision that is applied here has to be executed on the log here.

    Not before all aborted transactions are listed: records of an unlisted one would count as
    committed.
    """
    has_stored = stream.state.compact_upto <= _applied(stream) and stream.state.lists_all
    return has_stored and not stream.group.log.installed_state and not _is_done(stream)


def _is_done(stream: LogStream) -> bool:
    """Return True if the decision is executed, or the part it concerns was cut off the log."""
    state, log = stream.state, stream.group.log
    wanted = storage.Compaction(state.compact_upto, state.markers_upto)
    return wanted == log.compaction or state.compact_upto < log.first_index


def _progress(stream: LogStream) -> tuple[Index, Index, storage.Compaction, Index]:
    """Return the inputs of `_is_done` and `_compacted`."""
    state, log = stream.state, stream.group.log
    return state.compact_upto, state.markers_upto, log.compaction, log.first_index


def _compacted(stream: LogStream) -> Index:
    """Return the index up to which all decided compaction is done.

    Entries that were cut off count as compacted, as do those before the start of a replica.
    """
    log = stream.group.log
    return max(log.compaction.upto, min(log.first_index - 1, stream.state.compact_upto))


def _applied(stream: LogStream) -> Index:
    """Return the index up to which a checkpoint holds the partition's state."""
    return stream.group.log.applied_index
