"""A log stream: one replica of one topic partition, as the front end and its group use it.

Its parts do the work: appends (`appending.py`), transactions (`transactions.py`), long polls
(`long_polls.py`), the log's start (`log_start.py`), commands (`commands.py`), look-ups
(`lookups.py`), and the application of committed entries (`applying.py`). Here are the ends of the
log as readers see them, and reads.

`append` assigns offset, term and index and appends to the leader's log in one call, or refuses, or
holds the batch; it never waits in between.

Does not depend on the wire format of requests, other partitions or the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import segments.api as storage
from ids import GroupId, Index, Offset, ServerId, Term
from raft.errors import ProposalDropped
from raft.types import Entry, StateType
from rpc.hello import (
    VERSION_OF_SHORT_SNAPSHOTS,
    Hello,
)
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.appending import Appending
from vdl.logstream.group.appends import Append, Appended, Verify
from vdl.logstream.group.applying import Applying, is_control
from vdl.logstream.group.commands import Commands
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import InSyncReplicas
from vdl.logstream.group.large_room import LargeRoom
from vdl.logstream.group.log_start import LogStart
from vdl.logstream.group.long_polls import LongPolls, Wait
from vdl.logstream.group.lookups import Lookups
from vdl.logstream.group.measures import Measures
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import Pending, end_all, take_late
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.snapshots import Items
from vdl.logstream.group.spoken_version import speaks_less
from vdl.logstream.group.state_group import (
    UNKNOWN,
)
from vdl.logstream.group.transactions import Transactions
from vdl.logstream.options import HostOptions
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import (
    BatchHeader,
)
from vdl.state.aborted import AbortedRange, AbortedTransactions
from vdl.state.empty import NO_ITEMS
from vdl.state.partition import (
    PartitionState,
)
from vdl.state.producers import ActiveProducer, Overlay

UNSHORTENED_MAX = 100_000
"""Maximum number of aborted transactions in a snapshot for an older version: its own limit."""


class LogStream(Applying, Lookups):
    """One replica of one topic partition. The host sets `group` right after construction."""

    __slots__ = (
        "_alive",
        "_asked",
        "_gaps",
        "_next_producer_id",
        "_outbox",
        "_proved",
        "appending",
        "commands",
        "group",
        "high_watermark",
        "log_start",
        "overlay",
        "partition",
        "polls",
        "state",
        "topic",
        "traffic",
        "transactions",
    )

    group: Group
    entries_are_state = True
    """Records are kept as they are."""
    is_remembered = False
    """Only reads follow from the applied state."""
    large = None
    """None: the state is small."""

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        state: PartitionState,
        options: HostOptions,
        outbox: Outbox,
        in_sync: InSyncReplicas,
        gaps: LoopGaps,
        agreed_ms: Callable[[], int],
        next_producer_id: Callable[[], int] = int,
        alive: Mapping[ServerId, Hello],
        large_room: LargeRoom,
        measures: Measures,
    ) -> None:
        """Create the stream of a replica.

        `in_sync`, `gaps`, `large_room` and `measures` are the server's. `agreed_ms` returns the
        time. `next_producer_id` returns the least id that is not assigned yet. `alive`: the other
        servers linked now.
        """
        self.topic = topic
        self.partition = partition
        self.state = state
        self.high_watermark = Offset(0)
        """Offset behind the last entry that is known to be committed. Use: records below it are
        read. Invariant: it follows the group's `commit` only, and never moves back."""
        self._outbox = outbox
        self._gaps = gaps
        self._next_producer_id = next_producer_id
        self._alive = alive
        self._proved = gaps.count
        """Value of `gaps.count` when a quorum last confirmed the leader here. Initially the count
        at opening: this replica did not lead before."""
        self.overlay = Overlay()
        self.transactions = Transactions(
            self,
            state=state,
            overlay=self.overlay,
            outbox=outbox,
            agreed_ms=agreed_ms,
        )
        self.log_start = LogStart(self, outbox)
        self.traffic = measures.traffic_of(topic)
        self.appending = Appending(
            self,
            state=state,
            overlay=self.overlay,
            transactions=self.transactions,
            log_start=self.log_start,
            options=options,
            outbox=outbox,
            in_sync=in_sync,
            alive=alive,
            large_room=large_room,
            measures=measures,
            traffic=self.traffic,
        )
        self.polls = LongPolls()
        self._asked: list[Pending[bool]] = NO_ITEMS
        self.commands = Commands(self, self.transactions, options)

    # --- what the front end reads ------------------------------------------------------------
    @property
    def group_id(self) -> GroupId:
        return self.group.group_id

    @property
    def is_leader(self) -> bool:
        return self.group.node.raft.state is StateType.LEADER

    @property
    def serving(self) -> bool:
        """True if this replica leads and has applied the first entry of its own term."""
        return self.group.serving

    @property
    def held(self) -> list[Append]:
        """Batches that are not appended yet."""
        return self.appending.held

    @property
    def is_proved(self) -> bool:
        """True if the loop has run without a gap since a quorum last confirmed the leader.

        Otherwise `prove` comes before a read.
        """
        return self._proved == self._gaps.look()

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Confirm by a read index that this replica still leads."""
        gap = self._gaps.count

        def proved(passed: bool) -> None:
            if passed:
                self._proved = max(self._proved, gap)
            done(passed)

        self.read_index(deadline_ns=deadline_ns, done=proved)

    @property
    def term(self) -> Term:
        """Raft term, which is the partition's leader epoch."""
        return self.group.node.term

    @property
    def leader_server(self) -> ServerId:
        """Server id of the leader known to this replica, 0 for none."""
        return server_of(self.group.node.lead)

    @property
    def log_start_offset(self) -> Offset:
        """First offset that may be read.

        Records below it are deleted; some of them may still be on disk.
        """
        return max(self.state.log_start_offset, self.group.log.log_start_offset)

    @property
    def end_offset(self) -> Offset:
        """Offset after the last entry of this replica's log, committed or not."""
        return self.group.node.next_offset()

    @property
    def last_stable_offset(self) -> Offset:
        """Offset below which all records are committed and belong to no open transaction.

        Never moves back on replicas that lead and serve.
        """
        overlay, producers = self.overlay, self.state.producers
        if self.group.serving and not overlay.unstable and not producers.open:
            return self.high_watermark
        return self.transactions.stable()[1]

    @property
    def stable_index(self) -> Index:
        """Index of the last stable entry."""
        return self.transactions.stable()[0]

    def aborted(self, start: Offset, end: Offset) -> list[AbortedRange]:
        """Return the aborted transactions that may have records in [start, end).

        The range must be stable. Ordered by their markers (KIP-98).
        """
        return self.state.aborted.between(start, end) if self.state.aborted else []

    @property
    def aborted_age(self) -> int:
        """Age of the list of aborted transactions.

        While it is unchanged, `aborted` is complete for everything read since it was first checked.
        """
        return self.state.aborted.age

    # --- append ------------------------------------------------------------------------------
    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
        begins_epoch: bool = False,
    ) -> None:
        """Append one checked v2 batch, writable, and call `done` once with the outcome.

        It is acknowledged when a majority and `copies_min` replicas hold it durably, or all
        replicas if they are fewer. `verify` is required for a batch of a transaction;
        `begins_epoch`: that transaction began a new epoch of its producer (KIP-890).

        `done` may run before this returns. `batch` is patched in place (base offset and leader
        epoch lie outside its CRC). It may be reused after the turn, except a large one: that is
        kept as it is.
        """
        self.appending.begin(
            Append(batch, header, copies_min, deadline_ns, done, verify, begins_epoch)
        )

    def append_verified(self, verified: Sequence[Append]) -> None:
        self.appending.append_verified(verified)

    # --- read --------------------------------------------------------------------------------
    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> storage.Slices:
        """Return committed batches from `offset`, or stable ones.

        Raise NotInMemory or OffsetOutOfRange (KIP-74).
        """
        if offset < self.log_start_offset:
            raise storage.OffsetOutOfRange(f"offset {offset} is below {self.log_start_offset}")
        end = self.transactions.stable()[0] if stable else self.group.commit
        return self.group.log.read(offset, end, bytes_max)

    def in_memory(self, offset: Offset, count_max: int) -> list[storage.Buffer]:
        """Return up to `count_max` committed batches from `offset` on, if they are in memory.

        For measurements: reads no file, and does not count as a read.
        """
        return self.group.log.in_memory(offset, self.group.commit, count_max)

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[storage.Slices | storage.StorageError], None],
        *,
        stable: bool = False,
    ) -> None:
        """As `read`, from disk and off the loop. `done` may run before this returns."""
        group = self.group
        end = self.transactions.stable()[0] if stable else group.commit
        group.store.read_cold(group.log, offset, end, bytes_max, done)

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Start a read index (§8).

        True: `high_watermark` covers everything acknowledged before this call.
        """
        if not self.group.node.is_leader:
            done(False)
            return
        self.group.reads.ask(deadline_ns, done)
        self._outbox.mark_dirty(self.group)

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Call `done` with True once this leader may serve, possibly at once.

        With False if it does not lead, stops leading, or reaches the deadline.
        """
        if not self.group.node.is_leader:
            done(False)
        elif self.group.serving:
            done(True)
        else:
            if self._asked is NO_ITEMS:
                self._asked = []
            self._asked.append(Pending(deadline_ns, done))

    def producers(self) -> Iterable[ActiveProducer]:
        """Return the idempotent producers of committed batches as applied here; by id.

        See `Producers.active`.
        """
        return self.state.producers.active()

    # --- commands ------------------------------------------------------------------------------
    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """See `LogStart.delete_records`."""
        self.log_start.delete_records(offset, deadline_ns=deadline_ns, done=done)

    def expire_producers(self, now_ns: int, *, kept: int, may_append: bool) -> None:
        """See `Commands.expire_producers`."""
        self.commands.expire_producers(
            self.state.producers, now_ns, kept=kept, may_append=may_append
        )

    def propose(self, entry: Entry) -> bool:
        """Append a command. Return False if it is refused."""
        try:
            self.group.propose(entry)
        except ProposalDropped:
            return False
        self._outbox.mark_dirty(self.group)
        return True

    # --- the group's owner -------------------------------------------------------------------
    def load(self, items: Items, listed: AbortedTransactions | None = None) -> None:
        """Load the stored state, before the replica runs. `listed`: see `PartitionState.load`."""
        self.state.load(items, listed)
        self.state.producers.ids_given_out(self._next_producer_id())

    def replay(self, entries: Sequence[Entry]) -> None:
        self.apply(entries)

    def install(self, items: Items) -> None:
        self.load(items)

    def items(self) -> Items:
        return self.state.items()

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items | None:
        state = self.state
        if not state.lists_all:
            return None
        if is_short:
            return state.snapshot_items(start)
        return state.items() if len(state.aborted) <= UNSHORTENED_MAX else None

    @property
    def snapshots_are_short(self) -> bool:
        """True if all linked servers read short snapshots.

        Servers that are away are not counted: they must not keep a lost replica from being
        replaced. A snapshot is made anew if one returns with an older version.
        """
        return not speaks_less(VERSION_OF_SHORT_SNAPSHOTS, self.group, self._alive)

    def scan(self) -> None:
        """Return None: a partition's state is read in one piece."""

    @property
    def item_count(self) -> int:
        return self.state.item_count

    def start(self) -> None:
        """Make committed records readable, once the group exists."""
        self.high_watermark = self.group.log.offset_after(self.group.commit)

    def committed(self, commit: Index) -> None:
        """Complete the waiters up to `commit`: a majority holds their entries durably.

        A waiter that requires more copies is completed when these are durable. If too few replicas
        are left in sync, it fails: its entry is committed, but with fewer copies than requested.
        Called also when there may be more copies; `commit` is then unchanged.
        """
        self.high_watermark = self.group.log.offset_after(commit)
        appending = self.appending
        if appending.waiters and appending.waiters[0].index <= commit:
            appending.committed(commit)
        if appending.uncopied:
            appending.answer_copied()
        if self.polls.waits:
            self._outbox.wake(self)

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """See `LongPolls.wait_for`."""
        return self.polls.wait_for(offset, callback, stable_offset=stable_offset)

    def wake_later(self) -> None:
        self._outbox.wake(self)

    def wake(self) -> None:
        """Run the long polls whose offsets became committed or stable. Use: once a turn."""
        polls = self.polls
        polls.wake(self.high_watermark, self.last_stable_offset if polls.for_stable else Offset(0))

    def serving_started(self) -> None:
        self.appending.append_held()
        asked, self._asked = self._asked, NO_ITEMS
        for one in asked:
            one.done(True)

    def room_available(self) -> None:
        self.appending.append_held()

    def leadership_lost(self) -> None:
        """Answer every request.

        Held batches were never appended; appended ones have an unknown outcome.
        """
        self.overlay.clear()
        held, waiters = self.appending.leadership_lost()
        asked, self._asked = self._asked, NO_ITEMS
        commands = self.commands.leadership_lost()
        for command in commands:
            command.done(UNKNOWN)
        for deletion in self.log_start.leadership_lost():
            deletion.done(ErrorCode.REQUEST_TIMED_OUT)
        held += self.transactions.leadership_lost()
        for append in held:
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for waiter in waiters:
            waiter.done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for one in asked:
            one.done(False)

    def leader_changed(self) -> None:
        """Run every long poll: the leader or the term changed."""
        self.polls.run_all()

    def expire(self, now_ns: int) -> None:
        """Answer requests past their deadline."""
        self.log_start.check_push_back(now_ns)
        self.appending.expire(now_ns)
        # `iter` keeps `end_all` from searching the queue for an answer.
        end_all(iter(take_late(self._asked, now_ns)), False)
        self.commands.expire(now_ns)
        self.log_start.expire(now_ns)
        self.polls.drop_cancelled()

    @property
    def busy(self) -> bool:
        """True if any request with a deadline waits here."""
        return bool(
            self.appending.held
            or self.appending.waiters
            or self.appending.uncopied
            or self._asked
            or self.polls.waits
            or self.commands.waiting
            or self.log_start.deletions
            or self.transactions.verifying
            or self.transactions.endings
        )

    def close(self) -> None:
        """Answer every request: the replica is deleted or the server stops."""
        self.leadership_lost()
        self.leader_changed()

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Return True for deletions, Raft's entries and ends of transactions, not for records."""
        return not entry.records or is_control(entry)

    def stopped(self) -> None:
        """Do nothing: `close` has answered every request."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        return self.state.take_dirty()

    def installed(self) -> None:
        """Do nothing."""
