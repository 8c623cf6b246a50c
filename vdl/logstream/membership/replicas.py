"""The replicas of this server: created, replaced and deleted according to the catalog.

The initial replicas of the catalog and the coordinators come from the birth record, when this
directory is first opened and never again: it may have deleted them since. All others come only from
the *applied* catalog: a replica is created when the catalog lists it here, and deleted
only when an applied catalog of this cluster has assigned its group id and does not list it (a
catalog that lags must not delete replicas of groups that it does not know yet).

A replica number is created here once: its log is the memory of its votes. A deletion that a
restart forgot would create the deleted replica again, without memory. Hence the catalog's entries
are applied only as far as its commit index is durable (`Owner.is_remembered`), and the state of a
snapshot is acted on only once the snapshot is durable (`Hosting.remembers_catalog`). And because a
directory may be new, or its catalog replica may be new and replay the log from its start:

* nothing is created unless the catalog lists this server with this data directory;
* nor before the catalog replica here has applied the command that assigned its own number. One
  whose predecessor was lost replays the whole past, in a directory that has acted on it before. The
  predecessor was lost before its successor was requested, so it acted on less;
* a number is created only above every number that this directory has held of that group;
* a new replica is created, durably, before the one that it replaces is deleted, and that one is
  kept until a leader of the group feeds the new one (`fed`): only then does a majority have the
  acknowledged entries.

Does not depend on messages, timers or leaders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import segments.api as storage
from ids import NO_REPLICA, GroupId, Index, NodeId, ReplicaNumber
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state.catalog import GroupInfo
from vdl.state.reassignment import FIRST_REPLICA, ReplicaInfo

SETS_SHARED = 1_024
"""Most sets of replica ids that are kept to be shared."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Initial and present members of a group, as Raft ids."""

    initial: list[NodeId]
    """Members with which its log begins."""
    present: list[NodeId]
    """Wanted members, as far as the catalog is applied here; preferred leader first."""


class Hosting(Protocol):
    """The host, as called for replicas."""

    def start_state_group(self, log: storage.Log, placement: Placement) -> None:
        """Open a catalog or coordinator replica."""

    def start_stream(self, log: storage.Log, info: GroupInfo, placement: Placement) -> None:
        """Open a partition replica."""

    def is_wanted(self, log: storage.Log) -> bool:
        """Return True if the replica is still to run here: checked while it is being opened."""

    def opened(self, group: Group) -> None:
        """Let a replica that has been opened take part."""

    def remembers_catalog(self) -> bool:
        """Return True if a restart would find the catalog that is applied here, or a later one."""

    def stop_group(self, group_id: GroupId, *, deleted: bool) -> None:
        """Take a replica out of service, and answer every waiting request.

        Its group is deleted, or continues without it, or its successor follows.
        """

    def replica_lost(self, log: storage.Log) -> None:
        """Stop a replica for good: its log lost entries that it may have acknowledged."""


def replica_ids(replicas: Sequence[ReplicaInfo]) -> list[NodeId]:
    """Return the Raft ids of replicas, in their order."""
    return [replica_id_of(replica.server_id, replica.replica_number) for replica in replicas]


@lru_cache(maxsize=SETS_SHARED)
def replica_id_tuple(replicas: tuple[ReplicaInfo, ...]) -> tuple[NodeId, ...]:
    """Return the Raft ids of replicas, in their order. Groups with the same share one value."""
    return tuple(replica_ids(replicas))


@lru_cache(maxsize=SETS_SHARED)
def replica_id_set(replicas: tuple[ReplicaInfo, ...]) -> frozenset[NodeId]:
    """Return the Raft ids of replicas. Groups with the same replicas share one set."""
    return frozenset(replica_ids(replicas))


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
        """Nothing is created before: the directory may be an older copy, which has created it
        already."""
        self.waits = False
        """True if a reconciliation was put off because a restart would forget the catalog."""
        self._creating: set[GroupId] = set()
        self._started: set[GroupId] = set()
        """Groups whose replica runs or is being opened, which may need a read of the disk."""

    @property
    def is_initial_voter(self) -> bool:
        """True if the cluster was formed with this data directory."""
        return self._record.directory_of(self._server_id) == self._store.directory_id

    @property
    def is_known(self) -> bool:
        """True if the applied catalog lists this data directory and this catalog replica.

        Before that, the applied catalog is out of date.
        """
        catalog, server_id = self._catalog, self._server_id
        number = catalog.replica_number(CATALOG_GROUP, server_id)
        is_present = number >= self.number_of(CATALOG_GROUP)
        return is_present and catalog.directory_of(server_id) == self._store.directory_id

    def number_of(self, group_id: GroupId) -> ReplicaNumber:
        """Return the number of the newest replica here, even if lost; 0 if there was never one."""
        log = self._logs.get(group_id)
        return NO_REPLICA if log is None else log.replica_number

    # --- catalog and coordinators ------------------------------------------------------------
    def open_system(self) -> None:
        """Open catalog and coordinators; an initial voter creates their logs at its first start.

        A directory that has the catalog has had coordinators: the catalog says which are missing.
        """
        self._takes_part = True
        is_first_start = self.is_initial_voter and CATALOG_GROUP not in self._logs
        for group_id in map(GroupId, range(1 + self._record.coordinator_groups)):
            if group_id in self._logs:
                self._start_system(self._logs[group_id])
            elif is_first_start:
                self._create(group_id, FIRST_REPLICA, self._system_created)

    def number_received(self, number: ReplicaNumber) -> None:
        """Create the catalog replica `number`, which a member's catalog lists in this directory."""
        is_new = number > self.number_of(CATALOG_GROUP) and CATALOG_GROUP not in self._creating
        if self._takes_part and is_new:
            self._create(CATALOG_GROUP, number, self._system_created)

    def _system_created(self, log: storage.Log) -> None:
        may_act = self.is_known and self._may_act()
        if may_act and not self._is_listed(log.group_id) and self._store.note_moved_votes():
            self._delete(log)  # the votes have moved on in the meantime
            return
        self._start_system(log)
        if may_act:
            self._ensure_system(log.group_id)

    def _is_listed(self, group_id: GroupId) -> bool:
        """Return True if the applied catalog lists a replica of the group here.

        The replica of the catalog is kept as long as the directory: without it, nothing is known.
        """
        number = self._catalog.replica_number(group_id, self._server_id)
        return group_id == CATALOG_GROUP or bool(number)

    def _ensure_system(self, group_id: GroupId) -> None:
        """Create the catalog or coordinator replica that the catalog lists here, if it is new."""
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
        """Note the newest replica of its group here. Return True if it has a predecessor."""
        old = self._logs.get(log.group_id)
        self._logs[log.group_id] = log
        if old is not None:
            self.predecessors.setdefault(log.group_id, []).append(old)
        return old is not None

    def fed(self, group_id: GroupId) -> None:
        """Delete the predecessors of a replica that has entries, or a snapshot.

        They come from a leader that has applied this replica's membership: a majority has committed
        it, and holds all entries acknowledged before.
        """
        for log in self.predecessors.pop(group_id, ()):
            self._store.delete_log(log.log_id)

    def holds(self, log: storage.Log) -> bool:
        """Return True if the log is still that of a live replica of this server.

        It may be deleted, or found lost, while it is opened.
        """
        return self._logs.get(log.group_id) is log and not log.lost

    def lost_log(self, group_id: GroupId) -> storage.Log | None:
        """Return the log of the newest replica of a group here if it is lost, otherwise None."""
        log = self._logs.get(group_id)
        return log if log is not None and log.lost else None

    def lose_all(self) -> None:
        """Stop all replicas: their logs lack acknowledged entries, and are marked as lost."""
        for group_id, log in sorted(self._logs.items()):
            if group_id in self._started:
                self._hosting.stop_group(group_id, deleted=False)
                self._hosting.replica_lost(log)

    # --- reconciliation with the catalog -----------------------------------------------------
    def reconcile(self) -> None:
        """Create the replicas that the applied catalog lists here, and delete the others."""
        if not (self._may_act() and self.is_known):
            return
        catalog = self._catalog
        for group_id in map(GroupId, range(1 + self._record.coordinator_groups)):
            if group_id not in self._creating:
                self._ensure_system(group_id)
        for group_id, info in catalog.groups.items():
            if group_id not in self._creating:
                self._ensure(info, catalog.replica_number(group_id, self._server_id))
        for group_id, log in list(self._logs.items()):
            if group_id >= catalog.next_group_id or self._is_listed(group_id):
                continue
            # Older versions create a missing coordinator again, which would vote anew. Without
            # space for the note it is kept, and looked at again with the next command.
            if group_id > self._record.coordinator_groups or self._store.note_moved_votes():
                self._delete(log)

    def _may_act(self) -> bool:
        """Return False, and note that another reconciliation is due, if the catalog may be lost."""
        self.waits = not self._hosting.remembers_catalog()
        return not self.waits

    def _ensure(self, info: GroupInfo, number: ReplicaNumber) -> None:
        """Start or create the replica that the catalog lists here; `number` 0 if it lists none."""
        held = self.number_of(info.group_id)
        if number > held:
            self._create(info.group_id, number, self._created)
        elif number == held and number and info.group_id not in self._started:
            self._start(self._logs[info.group_id], info)

    def _created(self, log: storage.Log) -> None:
        """Start a created log, unless its topic is deleted or the replica is replaced already."""
        if not self._may_act():
            return
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
        # A group that continues elsewhere still has leaders, which this server reports to clients.
        is_gone = self._catalog.has_deleted(log.group_id)
        self._hosting.stop_group(log.group_id, deleted=is_gone)
        self._store.delete_log(log.log_id)
        self.fed(log.group_id)


class CatalogObserver:
    """Observer that has the next turn look at the catalog after each command or snapshot."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None:
        self._outbox.note_catalog()

    def on_installed(self, group: StateGroup) -> None:
        self._outbox.note_catalog()

    def on_serving(self, group: StateGroup) -> None:
        """Do nothing: the duties of the catalog's leader are periodic."""

    def on_stopped_serving(self, group: StateGroup) -> None:
        """Do nothing: see `on_serving`."""
