"""Periodic work of one server, besides Raft's own timers.

Ten times a second: deadlines, commands that wait for a catalog leader, steps of membership changes
under way, and checks for a hung or full disk. Twice a second: whether members have to change. Once
a second: leadership transfers, replacement of replicas, removal of servers, entry repair, and logs
that can be cut.
Rarely: retention, idle producers, and noting the time. Changes are logged once a second.

Does not depend on messages, the network, or how any of this is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ids import GroupId
from vdl.clock import MS, NEVER, until_next
from vdl.logstream.cleanup.compaction import LogCompaction
from vdl.logstream.cleanup.trimming import Trimming
from vdl.logstream.elections.disk_watch import DiskWatch
from vdl.logstream.elections.overload import Overload
from vdl.logstream.elections.timers import Timers
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import LOOK_NS
from vdl.logstream.group.producer_expiry import ProducerExpiry
from vdl.logstream.membership.added_servers import AddedServers
from vdl.logstream.membership.move_limits import MoveLimits
from vdl.logstream.membership.replacement import Replacement
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.peers.changes import Changes
from vdl.logstream.peers.entry_repair import EntryRepair
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.group_commands import GroupCommands
from vdl.logstream.peers.journal_marks import JournalMarks
from vdl.logstream.peers.last_resort import LastResort
from vdl.logstream.peers.leader_proofs import LeaderProofs
from vdl.logstream.peers.queries import Queries
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState
from vdl.state.commands import NoteTime

SWEEP_NS = 100 * MS
"""Interval of the deadline checks: an answer may be this much late."""

MEMBERS_NS = 500 * MS
"""Interval of the check whether members have to change, while no change is under way."""

SECOND_NS = 1_000 * MS
"""Interval of leadership transfers to preferred leaders (one per interval), and of the checks for
replicas to replace and logs to cut."""

STUCK_ROUNDS = 10
"""Seconds after which leaderships return although groups wait to be elected, and not fewer."""


class Periodic:
    """Timers of one server. Builds the collaborators that only it uses."""

    def __init__(
        self,
        state: HostState,
        timers: Timers,
        proofs: LeaderProofs,
        status: ServerStatus,
        repair: EntryRepair,
        transfers: Transfers,
        replacement: Replacement,
        added_servers: AddedServers,
        forwarding: Forwarding,
        queries: Queries,
        commands: GroupCommands,
        move_limits: MoveLimits,
        marks: JournalMarks,
        changes: Changes,
        last_resort: LastResort,
    ) -> None:
        self._state = state
        self._timers = timers
        self._proofs = proofs
        self._status = status
        self._repair = repair
        self._transfers = transfers
        self._replacement = replacement
        self._added_servers = added_servers
        self._forwarding = forwarding
        self._queries = queries
        self._commands = commands
        self._move_limits = move_limits
        self._marks = marks
        self._changes = changes
        self._last_resort = last_resort
        self._disk_watch = DiskWatch(state.options.disk_patience_ms, state.clock.now_ns())
        self._producer_expiry = ProducerExpiry(
            state.streams, alive=state.alive, server_id=state.server_id, options=state.options
        )
        self.overload = Overload(state, timers.campaigns)
        self.trimming = Trimming(state, status)
        self.compaction = LogCompaction(state)
        self._noted_ns = -NEVER
        self._noted_moves = 0
        self._members_due_ns = 0
        self._second_due_ns = 0
        self._least_waiting = NEVER
        """Least number of groups that waited to be elected, since some wait."""
        self._rounds_stuck = 0
        """Seconds since that number was reached."""
        self._watched: dict[GroupId, Group] = {}
        self.watch: Callable[[Mapping[GroupId, Group]], None] = self._watched.update
        """Checks these groups, which had a turn, for expired deadlines. By id."""
        self.is_stopping = False
        """True once the server hands its leaderships over."""

    def start(self) -> None:
        """Start the timers."""
        now_ns = self._state.clock.now_ns()
        self._second_due_ns = now_ns + SECOND_NS
        self._state.clock.call_later(until_next(now_ns, SWEEP_NS), self._sweep)
        self.trimming.start()
        self.compaction.start()

    def stopping(self) -> None:
        """Note that the server hands its leaderships over: only deadlines are kept from now on."""
        self.is_stopping = True
        self.trimming.stopping()
        self.compaction.stopping()
        self._status.stopping()

    def _sweep(self) -> None:
        state = self._state
        if state.outbox.is_closed:
            return
        now_ns = state.clock.now_ns()
        state.clock.call_later(until_next(now_ns, SWEEP_NS), self._sweep)
        state.loop_time.beat()
        state.gaps.look()
        self._timers.look_at_campaigns(now_ns)
        self.overload.look()
        self._status.note_late(self.overload.is_late_for_long)
        self._timers.look_at_peers()
        state.time.look()
        self._look_at_disk(now_ns)
        self._status.look()
        self._proofs.look_at_in_sync(now_ns, share=LOOK_NS // SWEEP_NS)
        if now_ns >= self._members_due_ns:
            is_changing = self._replacement.change_members()
            self._members_due_ns = 0 if is_changing else now_ns + MEMBERS_NS
        self._expire(now_ns)
        catalog_group = state.catalog_group
        if not catalog_group.is_running and catalog_group.busy:
            catalog_group.expire(now_ns)
        self._forwarding.retry(now_ns)
        self._queries.expire(now_ns)
        self._commands.retry(now_ns)
        if now_ns >= self._second_due_ns and not self.is_stopping:
            self._second_due_ns = now_ns + SECOND_NS - SWEEP_NS // 2
            self._each_second()

    def _look_at_disk(self, now_ns: int) -> None:
        store, watch = self._state.store, self._disk_watch
        watch.staged(self._state.outbox.urgent_token)
        if watch.is_hung(store.durable_token, now_ns, store.writing_bytes):
            self._state.log.note("disk_hung", disk="journal")
            self._transfers.make_room()
        self._status.note_stalled(watch.is_stalled((store.file_work, store.ahead_work), now_ns))

    def _expire(self, now_ns: int) -> None:
        """End requests past their deadline, in groups that had a turn since they were last idle."""
        for group in list(self._watched.values()):
            if self._state.is_here(group) and (group.owner.busy or group.reads):
                group.owner.expire(now_ns)
                group.reads.expire(now_ns)
            else:
                del self._watched[group.group_id]

    def _each_second(self) -> None:
        state = self._state
        self.watch(state.groups)
        if self._status.is_late:
            self._transfers.hand_over_some()
        elif self._status.should_not_lead:
            self._transfers.hand_over_all()
        elif not self._elections_come_first():
            self._transfers.return_some()
        self._last_resort.look()
        self._note_time()
        self._changes.look()
        self._move_limits.look()
        self._marks.look()
        self._replacement.look_around()
        self._added_servers.look_around()
        self._repair.look_around()
        for group in state.groups.values():
            if group.apply_stalled:
                group.retry_apply(state.outbox)
        self.trimming.trim_commands()
        self._producer_expiry.look(state.clock.now_ns())
        self.trimming.trim_deleted()
        self.compaction.look()

    def _elections_come_first(self) -> bool:
        """Return True while fewer and fewer groups wait to be elected.

        Groups without a leader come before groups with another one than they prefer. But some may
        have no majority for long.
        """
        waiting = self._timers.campaigns.waiting
        if not waiting:
            self._least_waiting = NEVER
            return False
        if waiting < self._least_waiting:
            self._least_waiting, self._rounds_stuck = waiting, 0
        else:
            self._rounds_stuck += 1
        return self._rounds_stuck < STUCK_ROUNDS

    def _note_time(self) -> None:
        """Have the catalog remember the time, once in each hold period and after a leap ahead.

        See `AgreedTime.remember`. Skipped while clocks disagree, and on a full disk, which has room
        only for more important commands.
        """
        state = self._state
        now_ns, time, catalog_group = state.clock.now_ns(), state.time, state.catalog_group
        if not catalog_group.serving or self._status.is_full or not time.is_sure:
            return
        is_noted = now_ns - self._noted_ns < state.options.clock_hold_ms * MS
        if is_noted and self._noted_moves == time.moves_forward:
            return
        self._noted_ns = now_ns
        self._noted_moves = time.moves_forward
        deadline_ns = now_ns + SECOND_NS
        catalog_group.propose(NoteTime(), deadline_ns=deadline_ns, done=_ignore)


def _ignore(found: object) -> None:
    """Discard the outcome, which is not needed."""
