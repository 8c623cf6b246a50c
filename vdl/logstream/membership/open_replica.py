"""Opening of a replica: checkpointed state, replay of committed entries, Raft node.

A machine's state and the group's members are loaded from the last checkpoint, or from a snapshot
that no checkpoint has covered yet. The entries committed since are replayed, without observers or
pending requests; then the node starts with its applied index. Reading may need the disk, so opening
ends in a callback.

Entries that cannot be read end the replay early: the replica starts with the state from before
them. Its vote, its place in the log and all other entries are intact, so it takes part, and the
rest is applied once the damaged range is repaired (`Group.is_whole`, `entry_repair`).

A server may have thousands of partitions. A few are opened in each turn, in order of arrival, so
that the server stays responsive; the catalog and the coordinators do not wait.

Does not depend on the set of replicas, messages, or leaders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import segments.api as storage
from ids import NO_INDEX, Index, NodeId
from raft.membership import Membership, changed, decode_conf_change, restored
from raft.types import CONF_CHANGE_KINDS, Entry
from vdl.logstream.group import snapshots
from vdl.logstream.group.feed_throttle import FeedThrottle
from vdl.logstream.group.group import Group, Surroundings
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.owner import Owner
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.group.snapshots import (
    Items,
    Members,
    OpenSnapshot,
    for_the_owner,
    members_of,
    pass_over,
    revision_of,
)
from vdl.logstream.group.state_encoding import StateEncodings
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.group.state_loading import LOADED_PER_TURN, StateLoading
from vdl.logstream.group.storage import as_entry
from vdl.logstream.membership.replicas import Hosting, Placement
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import HostState
from vdl.state.aborted import AbortedTransactions, count_of
from vdl.state.partition import PartitionState

BLOCKS_ON_LOOP_MAX = 64
"""Number of blocks of aborted transactions beyond which they are decoded in a thread: each takes
0.1 ms, and there may be thousands."""
REFUSED_RETRY_MS = 1_000
"""Delay before a read is repeated for which there was no descriptor or no memory."""


class Openable(Owner, Protocol):
    """An owner whose state is not loaded yet."""

    def load(self, items: Items) -> None:
        """Load the stored state."""

    def replay(self, entries: Sequence[Entry]) -> None:
        """Apply entries at start-up, without observers or pending requests."""


class ReplicaOpener:
    """Opener of the replicas of one server."""

    def __init__(self, state: HostState, liveness: Liveness, hosting: Hosting) -> None:
        self._state = state
        self._hosting = hosting
        self._in_line: deque[Callable[[], None]] = deque()
        self._left = state.options.openings_per_turn
        """Number of partitions that may still be opened in this turn."""
        self._is_armed = False
        self.throttle = FeedThrottle(state.clock, state.options.catch_up_bytes_per_second)
        """Shared by all replicas that are opened here."""
        self.encodings = StateEncodings(state.clock, lambda: state.outbox.is_closed)
        """Encodings of states for snapshots."""
        self._server = Surroundings(
            store=state.store,
            options=state.options,
            tick=state.loop_time.tick,
            throttle=self.throttle,
            encodings=self.encodings,
            is_linked=state.is_linked,
            heard_ago=liveness.heard_ago,
            full=state.full,
        )

    def open(self, log: storage.Log, placement: Placement, owner: LogStream | StateGroup) -> None:
        """Open a replica, now or later.

        `Hosting.opened` receives its group, or `replica_lost` its log if the state is not on this
        disk. If the replica is not wanted any more, neither is called, and `owner` is not touched:
        it may belong to the successor.
        """
        if isinstance(owner, StateGroup):
            self._begin(log, placement, owner)
        elif self._left > 0:
            self._left -= 1
            self._arm()
            self._begin(log, placement, owner)
        else:
            self._in_line.append(partial(self._begin, log, placement, owner))

    def _begin(self, log: storage.Log, placement: Placement, owner: LogStream | StateGroup) -> None:
        wanted = partial(self._hosting.is_wanted, log)
        if not wanted():
            return
        state = self._state
        try:
            found = load_state(state.store, log, placement.initial)
        except storage.ReadRefused:
            # The state is intact: it is read again when there is memory.
            again = partial(self._begin, log, placement, owner)
            state.store.workers.call_later(REFUSED_RETRY_MS, again)
            return
        if found is None:
            self._hosting.replica_lost(log)
            return
        applied, members, items = found
        large = owner.large
        loaded: dict[bytes, bytes | None] | None = None
        if large is not None and (log.installed_state or applied == NO_INDEX):
            # No checkpoint holds any of it. To avoid encoding all of it for the first one, keep the
            # items as loaded, with the changes of the replay.
            loaded = {}
        then = partial(self._make, log, placement, owner, loaded)
        replay = Replay(
            state.store,
            log,
            owner,
            members,
            bytes_max=state.options.cold_read_bytes,
            then=then,
            wanted=wanted,
        )
        if large is not None and items.count > LOADED_PER_TURN:
            self.encodings.add(
                StateLoading(
                    items.pieces,
                    large,
                    took=(lambda _: None) if loaded is None else loaded.update,
                    wanted=wanted,
                    loaded=lambda: replay.run(applied),
                )
            )
            return
        whole = [item for piece in items.pieces for item in piece]
        if loaded is not None:
            loaded.update(whole)

        def listed(aborted: AbortedTransactions | BaseException) -> None:
            if isinstance(aborted, BaseException):
                raise aborted
            if wanted():
                assert isinstance(owner, LogStream), owner
                owner.load(whole, aborted)
                replay.run(applied)

        if isinstance(owner, LogStream) and count_of(whole) > BLOCKS_ON_LOOP_MAX:
            state.store.workers.compute(partial(PartitionState.listed_in, whole), listed)
            return
        owner.load(whole)
        replay.run(applied)

    def _make(
        self,
        log: storage.Log,
        placement: Placement,
        owner: LogStream | StateGroup,
        loaded: dict[bytes, bytes | None] | None,
        applied: Index,
        members: Members,
    ) -> None:
        state = self._state
        group = Group(
            replica_id=replica_id_of(state.server_id, log.replica_number),
            placement=placement.present,
            log=log,
            owner=owner,
            applied=applied,
            members=members,
            rng=state.rng,  # one for all: a generator has 2.5 KB of state
            server=self._server,
            loaded=loaded,
        )
        owner.group = group
        self._hosting.opened(group)

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._state.clock.call_later(0, self._next_turn)

    def _next_turn(self) -> None:
        self._is_armed = False
        self._left = self._state.options.openings_per_turn
        while self._in_line and self._left > 0:
            self._left -= 1
            self._in_line.popleft()()
        if self._left < self._state.options.openings_per_turn:
            self._arm()


def load_state(
    store: storage.Store, log: storage.Log, initial: Sequence[NodeId]
) -> tuple[Index, Members, OpenSnapshot] | None:
    """Load the state from which to replay: (applied index, members, and with them the items).

    None if the log's start is lost and the state before it is not stored.

    A damaged checkpoint causes a replay of the whole log, never a default. Raise ReadRefused if the
    read is refused.
    """
    born = Members(NO_INDEX, tuple(sorted(initial)))
    if log.installed_state:
        state = snapshots.open_snapshot(log.installed_state)
        return log.first_index - 1, state.members, state
    try:
        applied, stored = store.load_meta(log)
        members, items = snapshots.split_members(stored, born)
    except (storage.CorruptRecord, snapshots.DecodeError):
        applied, members, items = NO_INDEX, born, []
    if applied < log.first_index - 1:
        return None
    return applied, members, OpenSnapshot(members, False, len(items), iter([items]))


class Replay:
    """Replay of the entries committed since the checkpoint, on owner and members."""

    def __init__(
        self,
        store: storage.Store,
        log: storage.Log,
        owner: Openable,
        members: Members,
        *,
        bytes_max: int,
        then: Callable[[int, Members], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._wanted = wanted
        self._store = store
        self._log = log
        self._owner = owner
        self._members = members
        self._membership: Membership = restored(members.conf_state)
        self._revision = members.revision
        self._bytes_max = bytes_max
        self._then = then

    def run(self, applied: Index) -> None:
        """Continue behind `applied`. If that needs the disk, return at once and continue later."""
        log = self._log
        # Applied entries were committed, even if the commit index, which never forces a sync, did
        # not reach the journal in time.
        end = max(log.hard_state.commit, applied) + 1
        while applied + 1 < end:
            try:
                entries = [as_entry(e) for e in log.entries(applied + 1, end, self._bytes_max)]
            except storage.NotInMemory:
                read = partial(self._read, applied)
                self._store.entries_cold(log, applied + 1, end, self._bytes_max, read)
                return
            applied = self._apply(entries)
        self._end(applied)

    def _end(self, applied: Index) -> None:
        reflects, conf_state = self._members.reflects, self._membership.conf_state()
        members = members_of(conf_state, reflects=reflects, revision=self._revision)
        self._then(applied, members)

    def _read(
        self, applied: Index, found: list[storage.StoredEntry] | storage.StorageError
    ) -> None:
        if not self._wanted():
            return
        if isinstance(found, storage.ReadRefused):
            # The entries are intact: they are read again when there is a descriptor.
            self._store.workers.call_later(REFUSED_RETRY_MS, partial(self._read_again, applied))
            return
        if isinstance(found, storage.StorageError):
            self._end(applied)
            return
        self.run(self._apply([as_entry(stored) for stored in found]))

    def _read_again(self, applied: Index) -> None:
        if self._wanted():
            self.run(applied)

    def _apply(self, entries: list[Entry]) -> Index:
        reflects = self._members.reflects
        own = for_the_owner(entries, reflects)
        pass_over(self._owner, entries, reflects)
        if own:
            self._owner.replay(own)
        if len(own) < len(entries):
            for entry in entries:
                if entry.index > reflects and entry.kind in CONF_CHANGE_KINDS:
                    change = decode_conf_change(entry.data)
                    self._membership = changed(self._membership, change)
                    self._revision = max(self._revision, revision_of(entry))
        return entries[-1].index
