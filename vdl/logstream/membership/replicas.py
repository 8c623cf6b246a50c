"""Which replicas this server holds: made, replaced and deleted as the catalog says.

The initial replicas of the catalog and the coordinators come from the birth record; all others
from the *applied* catalog, never from anything less: a replica is made when the catalog lists it
here, and deleted only when an applied catalog of this cluster has given out its group id and does
not list it (a catalog that lags behind must not delete what it has not heard of).

A replica number is made here once: its log is the memory of what it voted for. Hence the catalog is
applied only as far as its commit index is durable (`Owner.is_remembered`): a deletion that a
restart forgot would make the deleted replica again, with no memory. And because a directory may be
new, or its catalog replica may be made anew and begin in the past:

* nothing is made unless the catalog knows this server by this very data directory;
* nor before the catalog replica here has applied the command that gave out its own number. One
  whose predecessor was lost goes through all of the past, in a directory that has acted on that
  before; the predecessor was lost before its successor was asked for, so it acted on less;
* a number is made only above every number this directory has held of that group;
* a new replica is made, durably, before the one it takes the place of is deleted, and that one is
  kept until a leader of the group feeds the new one (`fed`): only then does a majority have what
  was acknowledged.

Must not know: messages, timers, who leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import segments.api as storage
from ids import NO_REPLICA, GroupId, Index, NodeId, ReplicaNumber
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox, replica_id_of
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state.catalog import GroupInfo
from vdl.state.reassignment import FIRST_REPLICA, ReplicaInfo


@dataclass(frozen=True, slots=True)
class Placement:
    """Who a group's members were and are to be, as Raft ids."""

    initial: list[NodeId]
    """The members its log begins with."""
    present: list[NodeId]
    """What they are to be, as far as the catalog is applied here; preferred leader first."""


class Hosting(Protocol):
    """What the host does with replicas."""

    def start_state_group(self, log: storage.Log, placement: Placement) -> None:
        """Open a catalog or coordinator replica."""

    def start_stream(self, log: storage.Log, info: GroupInfo, placement: Placement) -> None:
        """Open a partition replica."""

    def is_wanted(self, log: storage.Log) -> bool:
        """Whether the replica is still to run here: asked while it is being opened."""

    def opened(self, group: Group) -> None:
        """A replica has been opened: let it take part."""

    def stop_group(self, group_id: GroupId, *, deleted: bool) -> None:
        """Take a replica out of service, answering everyone who waits: its group is deleted, or
        goes on without it, or its successor comes."""

    def replica_lost(self, log: storage.Log) -> None:
        """The log lost what it may have acknowledged: the replica never takes part again."""


def replica_ids(replicas: Sequence[ReplicaInfo]) -> list[NodeId]:
    """Raft ids of replicas, in their order."""
    return [replica_id_of(replica.server_id, replica.replica_number) for replica in replicas]


class Replicas:
    """The replicas of one server's data directory."""

    def __init__(self, state: HostState, hosting: Hosting) -> None:
        self._server_id = state.server_id
        self._record = state.record
        self._store = state.store
        self._catalog = state.catalog
        self._hosting = hosting
        self._logs: dict[GroupId, storage.Log] = {}
        """The newest replica of each group here."""
        self.predecessors: dict[GroupId, list[storage.Log]] = {}
        """By group: replicas that have a successor here and are kept; read only."""
        for found in sorted(state.store.logs.values(), key=lambda log: log.replica_number):
            self._take(found)
        self._takes_part = False
        """Nothing is made before: the directory may be of the past, and have made it already."""
        self._creating: set[GroupId] = set()
        self._started: set[GroupId] = set()
        """Groups whose replica runs or is being opened, which may take a read of the disk."""

    @property
    def is_initial_voter(self) -> bool:
        """Whether the cluster began with this data directory."""
        return self._record.directory_of(self._server_id) == self._store.directory_id

    @property
    def is_known(self) -> bool:
        """Whether the applied catalog knows this server by this data directory, and the catalog
        replica that applied it by its number. Before that it is one of the past."""
        catalog, server_id = self._catalog, self._server_id
        number = catalog.replica_number(CATALOG_GROUP, server_id)
        is_present = number >= self.number_of(CATALOG_GROUP)
        return is_present and catalog.directory_of(server_id) == self._store.directory_id

    def number_of(self, group_id: GroupId) -> ReplicaNumber:
        """Number of the newest replica here, lost ones too; 0 when there was never one."""
        log = self._logs.get(group_id)
        return NO_REPLICA if log is None else log.replica_number

    # --- catalog and coordinators ------------------------------------------------------------
    def open_system(self) -> None:
        """Open catalog and coordinators; an initial voter makes their logs at its first start."""
        self._takes_part = True
        for group_id in map(GroupId, range(1 + self._record.coordinator_groups)):
            if group_id in self._logs:
                self._start_system(self._logs[group_id])
            elif self.is_initial_voter:
                self._create(group_id, FIRST_REPLICA, self._system_created)

    def number_received(self, number: ReplicaNumber) -> None:
        """The catalog, as a member of it has applied it, lists its replica `number` in this
        directory."""
        is_new = number > self.number_of(CATALOG_GROUP) and CATALOG_GROUP not in self._creating
        if self._takes_part and is_new:
            self._create(CATALOG_GROUP, number, self._system_created)

    def _system_created(self, log: storage.Log) -> None:
        self._start_system(log)
        if self.is_known:
            self._ensure_system(log.group_id)

    def _ensure_system(self, group_id: GroupId) -> None:
        """Have the catalog or coordinator replica that the catalog lists here."""
        number = self._catalog.replica_number(group_id, self._server_id)
        if number > self.number_of(group_id):
            self._create(group_id, number, self._system_created)

    def _start_system(self, log: storage.Log) -> None:
        group_id = log.group_id
        if group_id in self._started:
            return
        if log.lost:
            # Without the catalog this server does not know its partitions either: it waits.
            self._hosting.replica_lost(log)
            return
        self._started.add(group_id)
        self._hosting.start_state_group(log, self._placement(group_id))

    def _placement(self, group_id: GroupId) -> Placement:
        catalog = self._catalog
        return Placement(
            replica_ids(catalog.founding(group_id)), replica_ids(catalog.replicas(group_id))
        )

    def _create(
        self,
        group_id: GroupId,
        replica_number: ReplicaNumber,
        created: Callable[[storage.Log], None],
    ) -> None:
        assert replica_number > self.number_of(group_id), (group_id, replica_number)
        self._creating.add(group_id)

        def made(log: storage.Log) -> None:
            self._creating.discard(group_id)
            if self._take(log):
                self._started.discard(group_id)
                self._hosting.stop_group(group_id, deleted=False)
            created(log)

        self._store.create_log(group_id, replica_number, on_created=made)

    def _take(self, log: storage.Log) -> bool:
        """This is the newest replica of its group here; whether it has a predecessor."""
        old = self._logs.get(log.group_id)
        self._logs[log.group_id] = log
        if old is not None:
            self.predecessors.setdefault(log.group_id, []).append(old)
        return old is not None

    def fed(self, group_id: GroupId) -> None:
        """The group's replica here has entries, or a snapshot. They are of a leader that has
        applied that this replica is a member: a majority has committed that, and has all that was
        acknowledged before. Nobody needs its predecessors any more."""
        for log in self.predecessors.pop(group_id, ()):
            self._store.delete_log(log.log_id)

    def holds(self, log: storage.Log) -> bool:
        """Whether the log is still one of this server's that takes part: it may be deleted, or
        found lost, while it is opened."""
        return self._logs.get(log.group_id) is log and not log.lost

    def lost_log(self, group_id: GroupId) -> storage.Log | None:
        """The newest replica's log of a group here, if it is lost."""
        log = self._logs.get(group_id)
        return log if log is not None and log.lost else None

    def lose_all(self) -> None:
        """The logs here lack what they acknowledged, and are marked as lost: none takes part any
        more."""
        for group_id, log in sorted(self._logs.items()):
            if group_id in self._started:
                self._hosting.stop_group(group_id, deleted=False)
                self._hosting.replica_lost(log)

    # --- what the catalog says ---------------------------------------------------------------
    def reconcile(self) -> None:
        """Make what the applied catalog lists here, delete what it no longer does."""
        if not self.is_known:
            return
        catalog = self._catalog
        for group_id in map(GroupId, range(1 + self._record.coordinator_groups)):
            if group_id not in self._creating:
                self._ensure_system(group_id)
        for group_id, info in catalog.groups.items():
            if group_id not in self._creating:
                self._ensure(info, catalog.replica_number(group_id, self._server_id))
        for group_id, log in list(self._logs.items()):
            if group_id <= self._record.coordinator_groups or group_id >= catalog.next_group_id:
                continue
            if not catalog.replica_number(group_id, self._server_id):
                self._delete(log)

    def _ensure(self, info: GroupInfo, number: ReplicaNumber) -> None:
        """Have the replica run that the catalog lists here; `number` 0 when it lists none."""
        held = self.number_of(info.group_id)
        if number > held:
            self._create(info.group_id, number, self._created)
        elif number == held and number and info.group_id not in self._started:
            self._start(self._logs[info.group_id], info)

    def _created(self, log: storage.Log) -> None:
        """The log exists; its topic may have been deleted, or it may be retired already."""
        info = self._catalog.groups.get(log.group_id)
        if info is None:
            self._delete(log)
        else:
            self._ensure(info, self._catalog.replica_number(log.group_id, self._server_id))

    def _start(self, log: storage.Log, info: GroupInfo) -> None:
        if log.lost:
            self._hosting.replica_lost(log)
            return
        self._started.add(log.group_id)
        self._hosting.start_stream(log, info, self._placement(log.group_id))

    def _delete(self, log: storage.Log) -> None:
        del self._logs[log.group_id]
        self._started.discard(log.group_id)
        # A group that goes on elsewhere still has leaders, of whom this server tells clients.
        is_gone = self._catalog.has_deleted(log.group_id)
        self._hosting.stop_group(log.group_id, deleted=is_gone)
        self._store.delete_log(log.log_id)
        self.fed(log.group_id)


class CatalogObserver:
    """Notes every command that the catalog here has applied, or a snapshot, for the next turn."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None:
        self._outbox.note_catalog()

    def on_installed(self, group: StateGroup) -> None:
        self._outbox.note_catalog()

    def on_serving(self, group: StateGroup) -> None:
        """Nothing to do: what the catalog's leader does it does when time passes."""

    def on_stopped_serving(self, group: StateGroup) -> None:
        """See `on_serving`."""
