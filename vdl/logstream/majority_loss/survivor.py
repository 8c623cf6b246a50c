"""A survivor's data directory, read without a server: what it holds of each group, and what not.

Every group is read to the end of its log here, as if all of it were committed: that is what the
recovery makes of it. The result is a plan; nothing is changed. A group is

* *kept*: its replica here is intact, and becomes the only voter;
* *alone*: it is the only voter already;
* *lost*: there is no intact replica here. Its records are gone;
* *unknown*: the catalog here does not know the group, because it was created later. Its log is
  removed.

Coordinators here may name unknown groups, too. The catalog leaves the ids of all of them out: what
belongs to one would otherwise count for the next partition with its id.

What the lost servers had beyond the end of a log here cannot be known.

Does not depend on the command line, the network or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

import segments.api as storage
from ids import NO_SERVER, GroupId, Index, NodeId, ServerId
from raft.errors import InvalidConfChange
from raft.membership import Membership, changed, decode_conf_change, restored
from raft.types import CONF_CHANGE_KINDS, Entry
from segments.io.inline_workers import InlineWorkers
from vdl.errors import ErrorCode
from vdl.logstream.bootstrap import BirthRecord, decode_record
from vdl.logstream.group.applying import Applying
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.group.snapshots import for_the_owner
from vdl.logstream.group.storage import as_entry
from vdl.logstream.membership.open_replica import load_state
from vdl.logstream.membership.replicas import replica_ids
from vdl.logstream.state import CATALOG_GROUP
from vdl.records.markers import Marker
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator
from vdl.state.partition import PartitionState
from vdl.state.producers import Overlay, Producer
from vdl.state.transactions import EPOCH_MAX, TransactionalId, TransactionState

READ_BYTES = 4 << 20
LOOK_BACK = 64
"""Number of entries at the end of a partition's log among which its last record is looked for."""
OFFSETS_MAX = 1_000
"""Number of committed offsets beyond the end of their partition that a plan lists."""
UNKNOWN = -1
LEFT_OUT_MAX = 1_000_000
"""Number of group ids that a recovery leaves out at most."""
LEFT_OUT_AT_ONCE = 10_000
LEFT_OUT_TOPIC = b"vdl-ids-left-out"
"""Id of the topics that use up group ids: one at a time."""


class NotRecoverable(Exception):
    """The directory cannot go on alone. Nothing was changed."""


class Fate(Enum):
    """Future of a group: see the module."""

    KEPT = "kept"
    ALONE = "alone"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class GroupPlan:
    """Contents of this directory for one group. -1 is a number that is not known."""

    group_id: GroupId
    name: str
    fate: Fate
    why: str = ""
    """Reason for which a group is lost."""
    last_index: int = UNKNOWN
    commit_index: int = UNKNOWN
    """Highest entry that is known here to be committed. Later ones are kept all the same."""
    term: int = UNKNOWN
    voters: list[ServerId] = field(default_factory=list)
    is_voter: bool = True
    """False if the replica here has no vote: yet, or any more, since its server leaves."""
    log_start_offset: int = UNKNOWN
    committed_offset: int = UNKNOWN
    end_offset: int = UNKNOWN
    """Partitions: offset after the last record here. Records from there on may be lost."""
    last_ms: int = UNKNOWN
    """Timestamp of the last record or command here, in ms since 1970."""
    open_transactions: int = 0
    aborted_transactions: int = 0
    """Open transactions with a part here that no coordinator here knows. They are aborted."""
    committed_transactions: int = 0
    """Open transactions with a part here that a coordinator here has committed and completed. The
    part here is committed as well."""
    consumer_groups: int = 0
    """Coordinators: consumer groups with committed offsets."""
    transactional_ids: int = 0


@dataclass(slots=True)
class Replica:
    """An intact replica of this directory at the end of its log."""

    log: storage.Log
    replica_id: NodeId
    membership: Membership
    """Configuration at the end of the log."""
    committed: Membership
    """Configuration as known to be committed: the one that a server would start with."""
    markers: list[Marker] = field(default_factory=list)
    """Partitions: ends of transactions that would otherwise stay open."""
    endings: list[commands.EndTransactionOffsets] = field(default_factory=list)
    """Coordinators: likewise, for committed offsets."""
    left_out: list[commands.CreateTopics | commands.DeleteTopics] = field(default_factory=list)
    """Catalog: commands that use up the ids of unknown groups."""

    @property
    def is_alone(self) -> bool:
        return all(
            membership.incoming == {self.replica_id} and not membership.is_joint
            for membership in (self.membership, self.committed)
        )

    @property
    def is_changed(self) -> bool:
        """True if the recovery appends to its log."""
        return bool(not self.is_alone or self.markers or self.endings or self.left_out)


@dataclass(frozen=True, slots=True)
class OffsetBeyond:
    """A committed offset behind the last record that is held of its partition."""

    group: str
    topic: str
    partition: int
    offset: int
    end_offset: int


@dataclass(slots=True)
class Plan:
    """Effects of the recovery of a directory, and losses that it cannot undo."""

    record: BirthRecord
    server_id: ServerId
    groups: list[GroupPlan] = field(default_factory=list)
    """By group id."""
    replicas: dict[GroupId, Replica] = field(default_factory=dict)
    """Replicas of the groups that are kept or alone."""
    unknown: list[storage.Log] = field(default_factory=list)
    ids_left_out: int = 0
    """Number of group ids that the catalog here does not know, and never gives out."""
    offsets_beyond: list[OffsetBeyond] = field(default_factory=list)
    offsets_beyond_count: int = 0

    def of(self, fate: Fate) -> list[GroupPlan]:
        """Return the groups with this fate."""
        return [group for group in self.groups if group.fate is fate]

    @property
    def changed(self) -> list[Replica]:
        """The replicas to whose logs the recovery appends."""
        return [replica for replica in self.replicas.values() if replica.is_changed]

    @property
    def is_needed(self) -> bool:
        """True if there is something to do: a group or a transaction waits for other servers."""
        return bool(self.changed)


class _Machine(Protocol):
    def load(self, items: list[tuple[bytes, bytes]]) -> None: ...


class _NobodyWaits:
    """Stands for the requests of a partition that is not served."""

    endings: Sequence[Any] = ()
    for_stable = False

    def applied(self, *result: object) -> None:
        """Do nothing."""

    answer_endings = applied
    run_all = applied


class _AppliedAlone(Applying):
    """Application of entries to the state of a partition that is not served."""

    def __init__(self, state: PartitionState) -> None:
        self.state, self.overlay = state, Overlay()
        idle: Any = _NobodyWaits()
        self.transactions = self.log_start = self.commands = self.polls = idle


class _Unreadable(Exception):
    """The state of a replica here is damaged or lost."""


class Survivor:
    """Reader of one directory. Use: `plan`, once."""

    def __init__(self, store: storage.Store, workers: InlineWorkers) -> None:
        """`workers`: those of the store."""
        self._store = store
        self._workers = workers
        self._server_id = store.server_id
        self._newest: dict[GroupId, storage.Log] = {}
        for log in sorted(store.logs.values(), key=lambda log: log.replica_number):
            self._newest[log.group_id] = log
        self._coordinators: dict[GroupId, Coordinator] = {}
        self._transactional_ids: dict[int, TransactionalId] = {}
        """By producer id."""

    def plan(self) -> Plan:
        """Read everything. Raise NotRecoverable if the catalog or a coordinator is not intact."""
        encoded = self._store.cluster_record()
        if not encoded:
            raise NotRecoverable("the directory belongs to no cluster: it is empty")
        if self._server_id == NO_SERVER:
            raise NotRecoverable("the directory does not name its server: start it once")
        record = decode_record(encoded)
        plan = Plan(record, self._server_id)
        catalog = Catalog(
            record.cluster_id,
            coordinator_groups=record.coordinator_groups,
            initial_voters=dict(record.initial_voters),
        )
        self._read_system(CATALOG_GROUP, "catalog", catalog, catalog, plan)
        if catalog.directory_of(self._server_id) != self._store.directory_id:
            raise NotRecoverable("the catalog here lists another directory for this server")
        for number in map(GroupId, range(1, 1 + record.coordinator_groups)):
            coordinator = self._coordinators[number] = Coordinator()
            self._read_system(number, f"coordinator-{number}", coordinator, catalog, plan)
        self._end_forgotten_offsets(plan)
        for group_id in sorted(catalog.groups):
            self._read_partition(group_id, catalog, plan)
        for group_id, log in sorted(self._newest.items()):
            if group_id >= catalog.next_group_id:
                plan.groups.append(self._held(group_id, f"group-{group_id}", Fate.UNKNOWN, log))
        for log in self._store.logs.values():
            if log.group_id >= catalog.next_group_id:
                plan.unknown.append(log)
        self._compare_offsets(plan)
        self._leave_out(catalog, plan)
        return plan

    # --- groups ------------------------------------------------------------------------------
    def _read_system(
        self,
        group_id: GroupId,
        name: str,
        machine: Catalog | Coordinator,
        catalog: Catalog,
        plan: Plan,
    ) -> None:
        """Read the catalog or a coordinator. Raise NotRecoverable: no other group can do without
        it."""
        last_ms = UNKNOWN

        def apply(entries: Sequence[Entry]) -> None:
            nonlocal last_ms
            for entry in entries:
                if len(entry.data):
                    envelope = commands.decode(entry.data)
                    machine.apply(envelope.command, envelope.now_ms, entry.index)
                    last_ms = envelope.now_ms

        try:
            initial = replica_ids(catalog.founding(group_id))
            replica = self._replica(group_id, initial, machine, apply)
            if catalog.is_removed(self._server_id, self._store.directory_id):
                raise _Unreadable("the cluster has removed this server")
            if catalog.replica_number(group_id, self._server_id) != replica.log.replica_number:
                raise _Unreadable("the catalog here lists another replica")
        except _Unreadable as error:
            # If the catalog is damaged, these are the voters of the beginning.
            having = ", ".join(map(str, sorted(catalog.voters)))
            raise NotRecoverable(
                f"the {name} has no intact replica in this directory ({error}). A directory goes "
                "on alone only if it has the catalog and all coordinators: as far as is known "
                f"here, those of servers {having} should have them"
            ) from error
        row = self._note(name, replica, plan)
        row.last_ms = last_ms
        if isinstance(machine, Coordinator):
            row.consumer_groups = len(machine.offsets.groups())
            row.transactional_ids = len(machine.transactions)
            ids = machine.transactions.ids.values()
            row.open_transactions = sum(not known.is_idle for known in ids)
            self._transactional_ids |= {known.producer_id: known for known in ids}

    def _read_partition(self, group_id: GroupId, catalog: Catalog, plan: Plan) -> None:
        info = catalog.groups[group_id]
        name = f"{info.topic}-{info.partition}"
        number = catalog.replica_number(group_id, self._server_id)
        log = self._newest.get(group_id)
        state = PartitionState()
        applying = _AppliedAlone(state)
        try:
            if not number:
                raise _Unreadable("this server has no replica")
            if log is None or log.replica_number != number:
                raise _Unreadable("its replica here was not brought up to date yet")
            initial = replica_ids(info.founding)
            replica = self._replica(group_id, initial, state, applying.apply)
        except _Unreadable as error:
            plan.groups.append(GroupPlan(group_id, name, Fate.LOST, str(error)))
            return
        row = self._note(name, replica, plan)
        row.log_start_offset = max(state.log_start_offset, replica.log.log_start_offset)
        row.end_offset = replica.log.next_offset
        row.committed_offset = replica.log.offset_after(replica.log.commit_index)
        row.last_ms = self._time_of_last_record(replica.log)
        row.open_transactions = len(state.producers.open)
        replica.markers = [
            self._end(producer_id, producer)
            for producer_id, producer in state.producers.open.items()
            if not self._is_known(group_id, producer_id, producer)
        ]
        row.committed_transactions = sum(marker.commit for marker in replica.markers)
        row.aborted_transactions = len(replica.markers) - row.committed_transactions

    def _note(self, name: str, replica: Replica, plan: Plan) -> GroupPlan:
        log = replica.log
        fate = Fate.ALONE if replica.is_alone else Fate.KEPT
        row = self._held(log.group_id, name, fate, log)
        row.voters = sorted(server_of(voter) for voter in replica.membership.voters())
        row.is_voter = replica.replica_id in replica.membership.voters()
        plan.groups.append(row)
        plan.replicas[log.group_id] = replica
        return row

    def _held(self, group_id: GroupId, name: str, fate: Fate, log: storage.Log) -> GroupPlan:
        return GroupPlan(
            group_id, name, fate, last_index=log.last_index, commit_index=log.commit_index,
            term=max(log.hard_state.term, log.term(log.last_index)),
        )  # fmt: skip

    def _leave_out(self, catalog: Catalog, plan: Plan) -> None:
        """Have the catalog use up the ids of unknown groups, for topics that are deleted at once.

        Changes this catalog. Raise NotRecoverable if that is not possible.
        """
        named = [*self._newest]
        for coordinator in self._coordinators.values():
            named += coordinator.partition_groups()
        first, last = catalog.next_group_id, max(named, default=CATALOG_GROUP)
        plan.ids_left_out = max(0, last + 1 - first)
        if plan.ids_left_out > LEFT_OUT_MAX:
            raise NotRecoverable(
                f"group {last} is named here, and the catalog here ends at {first}"
            )
        placeable = catalog.servers.keys() - catalog.leaving
        while catalog.next_group_id <= last and placeable:
            server = self._server_id if self._server_id in placeable else min(placeable)
            name = f"vdl-ids-left-out-{catalog.next_group_id}"
            count = min(last + 1 - catalog.next_group_id, LEFT_OUT_AT_ONCE)
            topic = commands.NewTopic(name, LEFT_OUT_TOPIC, assignments=[[server]] * count)
            left_out = commands.CreateTopics([topic]), commands.DeleteTopics([name])
            for command in left_out:
                answer = catalog.apply(command, 0, Index(0))
                if any(one.error is not ErrorCode.NONE for one in answer.topics):
                    raise NotRecoverable(f"the catalog here cannot create the topic {name}")
            plan.replicas[CATALOG_GROUP].left_out += left_out
        if catalog.next_group_id <= last:
            raise NotRecoverable("the catalog here lists no server")

    # --- logs --------------------------------------------------------------------------------
    def _replica(
        self, group_id: GroupId, initial: list[NodeId], machine: _Machine, apply: Any
    ) -> Replica:
        """Read a replica to the end of its log. Raise _Unreadable."""
        log = self._newest.get(group_id)
        if log is None:
            raise _Unreadable("this server has no replica")
        if log.lost:
            raise _Unreadable("its replica here has lost acknowledged data")
        try:
            membership, committed = self._memberships(log, initial, machine, apply)
        except (storage.StorageError, msgspec.DecodeError, InvalidConfChange) as error:
            raise _Unreadable(str(error)) from error
        replica_id = replica_id_of(self._server_id, log.replica_number)
        if log.last_index == 0 and replica_id not in membership.members():
            raise _Unreadable("its replica here was not brought up to date yet")
        return Replica(log, replica_id, membership, committed)

    def _memberships(
        self, log: storage.Log, initial: list[NodeId], machine: _Machine, apply: Any
    ) -> tuple[Membership, Membership]:
        """Return the memberships at the end and at the commit index."""
        found = load_state(self._store, log, initial)
        if found is None:
            raise _Unreadable("the state before its first entry is lost")
        applied, members, state = found
        machine.load([item for piece in state.pieces for item in piece])
        membership = committed = restored(members.conf_state)
        for entries in self._entries(log, applied + 1):
            if own := for_the_owner(entries, members.reflects):
                apply(own)
            for entry in entries:
                if entry.index > members.reflects and entry.kind in CONF_CHANGE_KINDS:
                    membership = changed(membership, decode_conf_change(entry.data))
                    if entry.index <= log.commit_index:
                        committed = membership
        return membership, committed

    def _entries(self, log: storage.Log, first: Index) -> Iterator[list[Entry]]:
        """Yield the entries from `first` to the end of the log. Raise StorageError."""
        end = log.last_index + 1
        while first < end:
            try:
                found: Sequence[storage.EntryLike] = log.entries(first, end, READ_BYTES)
            except storage.NotInMemory:
                found = self._cold(log, first, end)
            yield [as_entry(one) for one in found]
            first = found[-1].index + 1

    def _cold(self, log: storage.Log, first: Index, end: Index) -> Sequence[storage.EntryLike]:
        results: list[list[storage.StoredEntry] | storage.StorageError] = []
        self._store.entries_cold(log, first, end, READ_BYTES, results.append)
        self._workers.pump()
        (result,) = results
        if isinstance(result, storage.StorageError):
            raise result
        return result

    def _time_of_last_record(self, log: storage.Log) -> int:
        """Return the timestamp of the last record in ms, UNKNOWN if it is none of the last entries
        or cannot be read."""
        newest = UNKNOWN
        try:
            for entries in self._entries(log, max(log.first_index, log.last_index + 1 - LOOK_BACK)):
                for entry in entries:
                    newest = entry.timestamp if entry.records and entry.timestamp else newest
        except storage.StorageError:
            return UNKNOWN
        return newest

    # --- transactions and offsets ------------------------------------------------------------
    def _is_known(self, group_id: GroupId, producer_id: int, producer: Producer) -> bool:
        """Return True if a coordinator here will end a partition's open transaction.

        Not if it knows only an earlier one of the producer, whose end the partition has already.
        """
        known = self._transaction(group_id, producer_id)
        return (
            known is not None and producer.epoch <= known.epoch and producer.number < known.number
        )

    def _transaction(self, group_id: GroupId, producer_id: int) -> TransactionalId | None:
        """Return the producer's transaction if a group takes part in it and will learn its end."""
        known = self._transactional_ids.get(producer_id)
        is_open = known is not None and not known.is_idle and group_id in known.participants
        return known if is_open else None

    def _end(self, producer_id: int, producer: Producer) -> Marker:
        """Return the marker for a partition's open transaction that would otherwise stay open.

        It commits if the coordinator here has completed a commit in the transaction's epoch. In the
        second version of the protocol each transaction has an epoch of its own. In the first one
        nothing in a partition tells which transaction is open, so it is aborted.
        """
        known = self._transactional_ids.get(producer_id)
        if (
            known is not None
            and known.state is TransactionState.COMPLETE_COMMIT
            and producer.epoch == known.ended_epoch < known.epoch
            and producer.number < known.number
        ):
            return Marker(
                producer_id,
                known.epoch,
                producer.coordinator_epoch,
                commit=True,
                timestamp=max(0, producer.last_timestamp),
                number=known.number,
            )
        return _abort(producer_id, producer)

    def _end_forgotten_offsets(self, plan: Plan) -> None:
        """End the transactions whose offsets wait in a coordinator for an end that never comes.

        One that the transaction's coordinator here has committed and completed is committed.
        """
        rows = {row.group_id: row for row in plan.groups}
        for group_id, coordinator in self._coordinators.items():
            endings = plan.replicas[group_id].endings
            for producer_id, number in coordinator.pending.open():
                open_one = self._transaction(group_id, producer_id)
                if open_one is not None and open_one.number >= number:
                    continue
                known = self._transactional_ids.get(producer_id)
                if (
                    known is not None
                    and known.state is TransactionState.COMPLETE_COMMIT
                    and known.number == number
                ):
                    ending = commands.EndTransactionOffsets(
                        producer_id, known.epoch, number, commits=True
                    )
                else:
                    ending = commands.EndTransactionOffsets(producer_id, 0, number, commits=False)
                endings.append(ending)
            row = rows[group_id]
            row.committed_transactions = sum(ending.commits for ending in endings)
            row.aborted_transactions = len(endings) - row.committed_transactions

    def _compare_offsets(self, plan: Plan) -> None:
        ends = {row.group_id: row.end_offset for row in plan.groups if row.end_offset >= 0}
        for coordinator in self._coordinators.values():
            for group in sorted(coordinator.offsets.groups()):
                for (topic, partition), known in coordinator.offsets.of(group).items():
                    end = ends.get(known.partition_group, known.offset)
                    if known.offset > end:
                        plan.offsets_beyond_count += 1
                        if len(plan.offsets_beyond) < OFFSETS_MAX:
                            beyond = OffsetBeyond(group, topic, partition, known.offset, end)
                            plan.offsets_beyond.append(beyond)


def _abort(producer_id: int, producer: Producer) -> Marker:
    """Return the marker that aborts an open transaction in a new epoch, which fences its producer:
    it may not know that a part of its transaction is gone."""
    return Marker(
        producer_id,
        min(producer.epoch + 1, EPOCH_MAX),
        producer.coordinator_epoch,
        commit=False,
        timestamp=max(0, producer.last_timestamp),
    )
