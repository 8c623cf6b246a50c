"""What one server does as time passes, besides Raft's own timers.

Ten times a second: deadlines, commands that wait for a catalog leader, steps of membership changes
that are under way, and whether the own disk hangs or is full. Twice a second: whether members have
to change. Once a second, without haste: leaderships that should move, replicas that should be
replaced, entries to be had from others, logs that can be cut. Rarely: retention, producers that are
idle, and a note of what time it is.

Must not know: messages, the network, how any of it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import segments.api as storage
from vdl.clock import MS, NEVER, Clock
from vdl.log import Log
from vdl.logstream.elections.campaigns import Elections
from vdl.logstream.elections.disk_watch import DiskWatch
from vdl.logstream.elections.overload import Overload
from vdl.logstream.elections.quiescence import Rest
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import LOOK_NS, InSyncReplicas
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.producer_expiry import ProducerExpiry
from vdl.logstream.group.raft_compaction import find_deleted, trim_commands, trim_records
from vdl.logstream.group.retention import KEEP, RetentionPolicy
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.membership.replacement import Replacement
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.options import HostOptions
from vdl.logstream.peers.entry_repair import Healing
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.server_status import Conditions
from vdl.logstream.time.cluster_time import ClusterTime
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.state.commands import NoteTime

SWEEP_NS = 100 * MS
"""How often deadlines are looked at: an answer may be this much late."""

MEMBERS_NS = 500 * MS
"""How often all groups are looked at for members that have to change, while none have to."""

SECOND_NS = 1_000 * MS
"""How often one leadership may return to its placement's first replica, and how often it is looked
whether replicas have to be replaced and logs can be cut."""


class Upkeep:
    """See the module. `groups`, `streams` and `state_groups` are the host's own, read only."""

    def __init__(
        self,
        *,
        groups: Mapping[int, Group],
        streams: Mapping[int, LogStream],
        state_groups: Mapping[int, StateGroup],
        catalog_group: StateGroup,
        store: storage.Store,
        disk_watch: DiskWatch,
        conditions: Conditions,
        healing: Healing,
        in_sync: InSyncReplicas,
        transfers: Transfers,
        replacement: Replacement,
        forwarding: Forwarding,
        producer_expiry: ProducerExpiry,
        options: HostOptions,
        clock: Clock,
        time: ClusterTime,
        gaps: LoopGaps,
        elections: Elections,
        overload: Overload,
        rest: Rest,
        alive: Collection[int],
        log: Log,
        outbox: Outbox,
    ) -> None:
        self._groups = groups
        self._streams = streams
        self._state_groups = state_groups
        self._catalog_group = catalog_group
        self._store = store
        self._disk_watch = disk_watch
        self._conditions = conditions
        self._healing = healing
        self._in_sync = in_sync
        self._transfers = transfers
        self._replacement = replacement
        self._forwarding = forwarding
        self._producer_expiry = producer_expiry
        self._options = options
        self._clock = clock
        self._time = time
        self._gaps = gaps
        self._elections = elections
        self._overload = overload
        self._rest = rest
        self._alive = alive
        self._noted_ns = -NEVER
        self._noted_moves = 0
        self._log = log
        self._outbox = outbox
        self._members_due_ns = 0
        self._watched: dict[int, Group] = {}
        self._searching: set[int] = set()
        """Groups for which it is being looked up where their log is to be cut."""
        self._closed = False
        self._stopping = False
        self.policy_of: Callable[[LogStream], RetentionPolicy] = lambda stream: KEEP
        """What a partition's topic asks to keep; set by whoever knows topics' settings."""

    def watch(self, groups: Mapping[int, Group]) -> None:
        """Something may wait in these groups: they had a turn. By id."""
        self._watched.update(groups)

    def start(self) -> None:
        """Begin."""
        self._clock.call_later(SWEEP_NS, self._sweep)
        self._clock.call_later(SECOND_NS, self._each_second)
        self._clock.call_later(self._options.retention_check_ms * MS, self._retain)

    def stopping(self) -> None:
        """The server hands its leaderships over: only deadlines are still kept."""
        self._stopping = True
        self._conditions.stopping()

    def close(self) -> None:
        """Nothing is done any more."""
        self._closed = True

    def _sweep(self) -> None:
        if self._closed:
            return
        self._clock.call_later(SWEEP_NS, self._sweep)
        now_ns = self._clock.now_ns()
        self._gaps.look()
        self._elections.look(now_ns)
        self._overload.look()
        self._rest.look(self._alive)
        self._time.look()
        if self._disk_watch.is_hung(self._store.durable_token, now_ns):
            self._transfers.make_room()
        self._conditions.note_stalled(self._disk_watch.is_stalled(self._store.file_work, now_ns))
        self._conditions.look()
        self._in_sync.look(now_ns, share=LOOK_NS // SWEEP_NS)
        if now_ns >= self._members_due_ns:
            is_changing = self._replacement.change_members()
            self._members_due_ns = 0 if is_changing else now_ns + MEMBERS_NS
        self._expire(now_ns)
        if not self._catalog_group.is_running and self._catalog_group.busy:
            self._catalog_group.expire(now_ns)
        self._forwarding.retry(now_ns)

    def _expire(self, now_ns: int) -> None:
        """End what has waited for too long: in groups that had a turn since nothing waited."""
        for group in list(self._watched.values()):
            is_here = self._groups.get(group.group_id) is group
            if is_here and (group.owner.busy or group.reads):
                group.owner.expire(now_ns)
                group.reads.expire(now_ns)
            else:
                del self._watched[group.group_id]

    def _each_second(self) -> None:
        if self._closed or self._stopping:
            return
        self.watch(self._groups)
        self._clock.call_later(SECOND_NS, self._each_second)
        if self._conditions.should_not_lead:
            self._transfers.hand_over_all()
        else:
            self._transfers.return_some()
        self._note_time()
        self._replacement.look_around()
        self._healing.look_around()
        for group in self._groups.values():
            if group.apply_stalled:
                group.retry_apply(self._outbox)
        kept = self._options.command_entries_kept
        for state_group in self._state_groups.values():
            self._cut(state_group.group, partial(trim_commands, entries_kept=kept))
        self._producer_expiry.look(self._clock.now_ns())
        for stream in self._streams.values():
            self._cut_deleted(stream.group, stream.state.log_start_offset)

    def _note_time(self) -> None:
        """Have the catalog remember what time it is, once in each hold and when it leapt ahead: see
        `AgreedTime.remember`. Not while clocks disagree, and not on a full disk, which has room for
        more important commands."""
        now_ns, time = self._clock.now_ns(), self._time
        catalog_group = self._catalog_group
        if not catalog_group.serving or self._conditions.is_full or not time.is_sure:
            return
        is_noted = now_ns - self._noted_ns < self._options.clock_hold_ms * MS
        if is_noted and self._noted_moves == time.moves_forward:
            return
        self._noted_ns = now_ns
        self._noted_moves = time.moves_forward
        deadline_ns = now_ns + SECOND_NS
        catalog_group.propose(NoteTime(), deadline_ns=deadline_ns, done=_ignore)

    def _cut_deleted(self, group: Group, log_start_offset: int) -> None:
        """Cut the log where its records were deleted; one search at a time for each."""

        def found(first: int | storage.StorageError) -> None:
            self._searching.discard(group.group_id)
            # A search that failed is made again a second later: what is damaged heals meanwhile.
            if not isinstance(first, storage.StorageError) and self._is_here(group):
                self._cut(group, partial(trim_records, first_index=first))

        if group.group_id not in self._searching:
            self._searching.add(group.group_id)
            if not find_deleted(group, log_start_offset=log_start_offset, done=found):
                self._searching.discard(group.group_id)

    def _is_here(self, group: Group) -> bool:
        return not self._closed and self._groups.get(group.group_id) is group

    def _cut(self, group: Group, trim: Callable[[Group], bool]) -> None:
        try:
            if trim(group):
                self._outbox.note_staged(group)
        except storage.CorruptRecord as error:
            # The index says where to cut, and is damaged there: a read from disk rebuilds it.
            self._log.warning("index_damaged", group=group.group_id, error=str(error))
            log, damaged = group.log, error.position
            if log.first_index <= damaged <= log.last_index:
                self._store.entries_cold(log, damaged, damaged + 1, 1, _ignore)

    # --- retention -----------------------------------------------------------------------------
    def _retain(self) -> None:
        """See to the settings of all partitions, and begin a round over those led here, one after
        the other: looking at segments may take the disk."""
        if self._closed or self._stopping:
            return
        led = []
        for stream in self._streams.values():
            policy = self.policy_of(stream)
            if policy.segments is not None:
                self._store.set_segment_limits(stream.group.log, policy.segments)
            if stream.serving and not policy.keeps_everything:
                led.append((stream, policy))
        self._retain_next(led[::-1], self._time.settled_ms(), self._time.now_ms())

    def _retain_next(
        self, led: list[tuple[LogStream, RetentionPolicy]], settled_ms: int, stamp_ms: int
    ) -> None:
        if self._closed or self._stopping:
            return
        while led and not led[-1][0].serving:  # their topic may be deleted by now, or led elsewhere
            led.pop()
        if not led:
            self._clock.call_later(self._options.retention_check_ms * MS, self._retain)
            return
        stream, policy = led.pop()

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if not self._closed:
                if not isinstance(spans, storage.StorageError) and stream.serving:
                    # A full disk needs the room more than a follower its records.
                    fed = () if self._conditions.is_full else self._alive
                    stream.retain(spans, policy, settled_ms=settled_ms, stamp_ms=stamp_ms, fed=fed)
                self._retain_next(led, settled_ms, stamp_ms)

        self._store.segment_spans(stream.group.log, found)


def _ignore(found: object) -> None:
    """What comes of it is not needed: doing it was."""
