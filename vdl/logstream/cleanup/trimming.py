"""Trimming of logs at their start: checkpointed commands, deleted records, and retention.

Every replica cuts its own log. Retention is decided by leaders. Reading segments may need the disk,
so groups are processed one after the other.

Does not depend on how a log is cut, or on the retention settings of topics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import segments.api as storage
from ids import GroupId, Index, Offset
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.raft_compaction import find_deleted, trim_commands, trim_records
from vdl.logstream.group.retention import RetentionPolicy
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState


class Trimming:
    """Trimming of the logs of one server."""

    def __init__(self, state: HostState, status: ServerStatus) -> None:
        self._state = state
        self._status = status
        self._searching: set[GroupId] = set()
        """Groups with a search under way for the place at which to cut their log."""
        self._stopping = False

    def start(self) -> None:
        """Start the rounds of retention."""
        self._schedule_round()

    def stopping(self) -> None:
        """Note that the server hands its leaderships over: nothing is deleted any more."""
        self._stopping = True

    # --- cutting -------------------------------------------------------------------------------
    def trim_commands(self) -> None:
        """Cut the logs of the catalog and the coordinators. Use: once a second."""
        kept = self._state.options.command_entries_kept
        for state_group in self._state.state_groups.values():
            self._cut(state_group.group, partial(trim_commands, entries_kept=kept))

    def trim_deleted(self) -> None:
        """Cut the logs of partitions where records were deleted. Use: once a second."""
        for stream in self._state.streams.values():
            group, log_start_offset = stream.group, stream.state.log_start_offset
            if group.snapshot_source is not None:
                group.snapshot_source.cache.forget_unused(group.tick)
            if log_start_offset > group.log.log_start_offset:  # true for few of thousands
                self._cut_deleted(group, log_start_offset)

    def _cut_deleted(self, group: Group, log_start_offset: Offset) -> None:
        """Cut the log where its records were deleted; one search at a time for each."""

        def found(first: Index | storage.StorageError) -> None:
            self._searching.discard(group.group_id)
            # A failed search is repeated a second later: damage may be repaired in the meantime.
            is_here = self._state.is_here(group) and not self._state.outbox.is_closed
            if is_here and not isinstance(first, storage.StorageError):
                self._cut(group, partial(trim_records, first_index=first))

        if group.group_id not in self._searching:
            self._searching.add(group.group_id)
            if not find_deleted(group, log_start_offset=log_start_offset, done=found):
                self._searching.discard(group.group_id)

    def _cut(self, group: Group, trim: Callable[[Group], bool]) -> None:
        try:
            if trim(group):
                self._state.outbox.note_staged(group)
        except storage.ReadRefused:
            pass  # the next round may get a descriptor
        except storage.CorruptRecord as error:
            # The index that locates the cut is damaged there: a read from disk rebuilds it.
            name = self._state.told_of(group.group_id)
            self._state.log.warning("index_damaged", partition=name, error=str(error))
            log, damaged = group.log, Index(error.position)
            if log.first_index <= damaged <= log.last_index:
                self._state.store.entries_cold(log, damaged, damaged + 1, 1, _ignore)

    def opened(self, stream: LogStream) -> None:
        """Apply the topic's segment limits to a replica that starts, from its first segment on."""
        policy = self._state.front.retention_policy(stream)
        if policy.segments is not None:
            self._state.store.set_segment_limits(stream.group.log, policy.segments)

    # --- retention -----------------------------------------------------------------------------
    def _retain(self) -> None:
        """Apply the settings of all partitions, and begin a round over those led here.

        One after the other: reading segments may need the disk.
        """
        if self._has_ended:
            return
        led = []
        for stream in self._state.streams.values():
            policy = self._state.front.retention_policy(stream)
            if policy.segments is not None:
                self._state.store.set_segment_limits(stream.group.log, policy.segments)
            if stream.serving and not policy.keeps_everything:
                led.append((stream, policy))
        self._retain_next(led[::-1], self._state.time.settled_ms(), self._state.time.now_ms())

    def _retain_next(
        self, led: list[tuple[LogStream, RetentionPolicy]], settled_ms: int, stamp_ms: int
    ) -> None:
        if self._has_ended:
            return
        while led and not led[-1][0].serving:  # the topic may be deleted by now, or led elsewhere
            led.pop()
        if not led:
            self._schedule_round()
            return
        stream, policy = led.pop()

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if not self._state.outbox.is_closed:
                if not isinstance(spans, storage.StorageError) and stream.serving:
                    # A full disk needs the space more than a follower needs records; a full
                    # follower takes none.
                    state = self._state
                    fed = () if self._status.is_full else state.alive.keys() - state.full
                    stream.log_start.retain(
                        spans, policy, settled_ms=settled_ms, stamp_ms=stamp_ms, fed=fed
                    )
                self._retain_next(led, settled_ms, stamp_ms)

        self._state.store.segment_spans(stream.group.log, found)

    def _schedule_round(self) -> None:
        check_ns = self._state.options.retention_check_ms * MS
        self._state.clock.call_later(check_ns, self._retain)

    @property
    def _has_ended(self) -> bool:
        return self._stopping or self._state.outbox.is_closed


def _ignore(found: object) -> None:
    """Discard the result: the read itself was needed."""
