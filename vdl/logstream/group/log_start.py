"""Start of one partition's log: deletions by clients and by retention.

The leader decides, and the decision is an entry in the partition's log, so all replicas have the
same log start. Retention waits for followers that need the records (`retention.py`), and slows
producers down before it stops waiting (`push_back.py`).

Does not depend on how records are appended, or on how a log is trimmed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

import segments.api as storage
from ids import NO_INDEX, Index, NodeId, Offset, ServerId
from raft.types import NONE, Entry
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import Pending, end_all, take_late
from vdl.logstream.group.push_back import PushBack
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.retention import (
    RetentionPolicy,
    UntimedSegments,
    held_starts,
    retention_start,
)
from vdl.logstream.group.stream import Stream
from vdl.state.empty import NO_ITEMS, NO_KEYS
from vdl.state.partition import AdvanceLogStart, encode_command

DELETIONS_MAX = 100
"""Maximum number of deletions of one partition that wait to be applied."""


class LogStart:
    """Log start of one replica of a partition, as its leader moves it.

    Invariant: no start beyond the high watermark is proposed.
    """

    __slots__ = ("_outbox", "_stream", "_taken", "_untimed", "deletions", "push_back")

    def __init__(self, stream: Stream, outbox: Outbox) -> None:
        self._stream = stream
        self._outbox = outbox
        self.deletions: list[Pending[ErrorCode]] = NO_ITEMS
        """Deletions that wait to be applied. Invariant: ordered by index; each is of this term."""
        self._untimed = UntimedSegments()
        self.push_back: PushBack | None = None
        """Backpressure on producers while retention waits for a follower."""
        self._taken: dict[NodeId, Index] = NO_KEYS
        """Match index of each follower in this term, when retention last ran and had something to
        delete."""

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`; -1: everything committed (KIP-107).

        `done` runs once this is committed and applied here. The records are then gone on every
        replica that can ever lead.
        """
        stream = self._stream
        if not stream.serving:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if offset == -1:
            offset = stream.high_watermark
        if not 0 <= offset <= stream.high_watermark:
            done(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif offset <= stream.log_start_offset:
            done(ErrorCode.NONE)
        elif len(self.deletions) >= DELETIONS_MAX or not self._advance(offset):
            done(ErrorCode.REQUEST_TIMED_OUT)
        else:
            last = stream.group.node.last_index
            if self.deletions is NO_ITEMS:
                self.deletions = []
            self.deletions.append(Pending(deadline_ns, done, index=last))

    def retain(
        self,
        spans: Sequence[storage.SegmentSpan],
        policy: RetentionPolicy,
        *,
        settled_ms: int,
        stamp_ms: int,
        fed: Collection[ServerId],
    ) -> None:
        """Delete records that the policy no longer keeps.

        Times are those of `ClusterTime`. `fed`: servers whose replicas may still need some of the
        records.
        """
        stream = self._stream
        self._untimed.look(spans, stamp_ms)
        if retention_start(spans, policy, settled_ms, self._untimed) <= stream.log_start_offset:
            self._taken = NO_KEYS
            self._end_push_back()
            return
        try:
            needed, replica = self._needed_by(fed)
        except storage.ReadRefused:  # keeping the records loses nothing
            return
        patient, impatient = held_starts(spans, policy, settled_ms, self._untimed, needed=needed)
        before, match = self._taken.get(replica, -1), self._match(replica)
        progress = stream.group.node.raft.progress
        self._taken = {follower: known.match for follower, known in progress.items()}
        start = impatient
        if patient < impatient and match > before:
            # The follower takes entries, or this is not known yet.
            start = patient
            if before >= 0 and (self.push_back is None or self.push_back.replica != replica):
                last = stream.group.node.last_index
                self.push_back = PushBack(replica, last=last, match=match)
        else:
            self._end_push_back()
        offset = min(start, stream.high_watermark)
        if stream.serving and not self.deletions and offset > stream.log_start_offset:
            self._advance(offset)

    def _needed_by(self, servers: Collection[ServerId]) -> tuple[Offset, NodeId]:
        """Return the least committed offset that a replica on `servers` lacks, and that replica.

        As far as this leader knows; (`NEVER`, 0) if none lacks any. May read a file. Raise
        ReadRefused if the read is refused.
        """
        group = self._stream.group
        log, raft = group.log, group.node.raft
        needed = Offset(NEVER), NONE
        for replica, progress in raft.progress.items():
            if server_of(replica) in servers and progress.match < group.commit:
                match = max(progress.match, log.first_index - 1)
                # Damage gets repaired: until then nothing is kept for the replica.
                with contextlib.suppress(storage.CorruptRecord):
                    needed = min(needed, (log.offset_after(match), replica))
        return needed

    def _match(self, replica: NodeId) -> Index:
        """Return a follower's match index as known to this leader; 0 if it is no member."""
        progress = self._stream.group.node.raft.progress.get(replica)
        return NO_INDEX if progress is None else progress.match

    def _advance(self, offset: Offset) -> bool:
        return self._stream.propose(Entry(data=encode_command(AdvanceLogStart(offset))))

    # --- backpressure ------------------------------------------------------------------------
    def admits(self) -> bool:
        """Return True if another entry may be appended."""
        slow = self.push_back
        if slow is None:
            return True
        last = self._stream.group.node.last_index
        return slow.admits(last=last, match=self._match(slow.replica))

    def check_push_back(self, now_ns: int) -> None:
        """End the backpressure if the follower takes no more entries."""
        slow = self.push_back
        if slow is not None and not slow.goes_on(now_ns, match=self._match(slow.replica)):
            self._end_push_back()

    def _end_push_back(self) -> None:
        if self.push_back is not None:
            self.push_back = None
            self._outbox.mark_dirty(self._stream.group)

    # --- answers -----------------------------------------------------------------------------
    def applied(self, index: Index) -> None:
        """Answer the deletions up to `index`."""
        while self.deletions and self.deletions[0].index <= index:
            self.deletions.pop(0).done(ErrorCode.NONE)

    def expire(self, now_ns: int) -> None:
        """Answer deletions past their deadline."""
        end_all(iter(take_late(self.deletions, now_ns)), ErrorCode.REQUEST_TIMED_OUT)

    def leadership_lost(self) -> Sequence[Pending[ErrorCode]]:
        """Forget the followers of this term. Return the deletions, whose outcome is unknown."""
        self.push_back = None
        self._taken = NO_KEYS
        deletions, self.deletions = self.deletions, NO_ITEMS
        return deletions
