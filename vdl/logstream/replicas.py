"""Which replicas this server holds, and how one comes to life.

The founding replicas of the catalog and the coordinators come from the birth record; those of
partitions from the *applied* catalog, never from anything less: a replica is made when the catalog
lists it here, and deleted only when an applied catalog of this cluster has given out its group id
and does not list it (a catalog that lags behind must not delete what it has not heard of).

Must not know: messages, timers, who leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import segments.api as storage
from raft.types import NodeId
from vdl.logstream.birth import BirthRecord
from vdl.logstream.options import HostOptions
from vdl.logstream.state_group import StateGroup
from vdl.logstream.turn import replica_id_of
from vdl.state.catalog import Catalog, GroupInfo

CATALOG_GROUP = 0
FIRST_REPLICA = 1
"""Replica number of the founding voters of catalog and coordinator groups."""


class Hosting(Protocol):
    """What the host does with replicas."""

    def start_state_group(
        self, log: storage.Log, placement: Sequence[NodeId], then: Callable[[], None]
    ) -> None:
        """Open a catalog or coordinator replica; `then` once it runs."""

    def start_stream(self, log: storage.Log, info: GroupInfo, placement: Sequence[NodeId]) -> None:
        """Open a partition replica."""

    def stop_group(self, group_id: int) -> None:
        """Take it out of service, answering everyone who waits."""

    def replica_lost(self, log: storage.Log) -> None:
        """The log lost what it may have acknowledged: the replica never takes part again."""


def founding_placement(record: BirthRecord, group_id: int) -> list[NodeId]:
    """Replica ids of a catalog or coordinator group; the first is its preferred leader, rotated
    so that coordinators spread."""
    servers = [server_id for server_id, _ in record.founders]
    shift = group_id % len(servers)
    return [replica_id_of(server, FIRST_REPLICA) for server in servers[shift:] + servers[:shift]]


def partition_placement(info: GroupInfo) -> list[NodeId]:
    """Replica ids of a partition's group, preferred leader first."""
    return [replica_id_of(replica.server_id, replica.replica_number) for replica in info.replicas]


class Replicas:
    """The replicas of one server."""

    def __init__(
        self,
        *,
        server_id: int,
        record: BirthRecord,
        store: storage.Store,
        hosting: Hosting,
        options: HostOptions,
    ) -> None:
        self._server_id = server_id
        self._record = record
        self._store = store
        self._hosting = hosting
        self._options = options
        self._logs: dict[int, storage.Log] = {log.group_id: log for log in store.logs.values()}
        self._creating: set[int] = set()
        self._started: set[int] = set()
        """Groups whose replica runs or is being opened, which may take a read of the disk."""

    # --- founding groups ---------------------------------------------------------------------
    def open_founding(self, then: Callable[[], None]) -> None:
        """Open catalog and coordinators, making their logs at the first start; `then` when the
        catalog runs."""
        if self._record.directory_of(self._server_id) is None:
            raise ValueError(f"server {self._server_id} is not a founder of this cluster")
        for group_id in range(1 + self._record.coordinator_groups):
            done = then if group_id == CATALOG_GROUP else _nothing
            log = self._logs.get(group_id)
            if log is not None:
                self._open_founding(log, done)
            else:
                self._create(group_id, FIRST_REPLICA, partial(self._open_founding, then=done))

    def _open_founding(self, log: storage.Log, then: Callable[[], None]) -> None:
        if log.lost:
            # Without the catalog this server does not know its partitions either: it waits.
            self._hosting.replica_lost(log)
            return
        placement = founding_placement(self._record, log.group_id)
        self._hosting.start_state_group(log, placement, then)

    def _create(
        self, group_id: int, replica_number: int, opened: Callable[[storage.Log], None]
    ) -> None:
        self._creating.add(group_id)

        def created(log: storage.Log) -> None:
            self._creating.discard(group_id)
            self._logs[group_id] = log
            opened(log)

        self._store.create_log(group_id, replica_number, on_created=created)

    def holds(self, log: storage.Log) -> bool:
        """Whether the log is still one of this server's: it may be deleted while it is opened."""
        return self._logs.get(log.group_id) is log

    # --- partitions --------------------------------------------------------------------------
    def reconcile(self, catalog: Catalog) -> None:
        """Make what the applied catalog lists here, delete what it no longer does."""
        for group_id, info in catalog.groups.items():
            if group_id in self._creating or group_id in self._started:
                continue
            number = self._number_here(info)
            if number:
                self._ensure(group_id, number, catalog)
        for group_id, log in list(self._logs.items()):
            if group_id <= self._record.coordinator_groups or group_id >= catalog.next_group_id:
                continue
            listed = catalog.groups.get(group_id)
            if listed is None or self._number_here(listed) != log.replica_number:
                self._delete(group_id)

    def _number_here(self, info: GroupInfo) -> int:
        """This server's replica number in the group, 0 when it has none."""
        for replica in info.replicas:
            if replica.server_id == self._server_id:
                return replica.replica_number
        return 0

    def _ensure(self, group_id: int, number: int, catalog: Catalog) -> None:
        log = self._logs.get(group_id)
        if log is None:
            self._create(group_id, number, lambda made: self._created(made, catalog))
        elif log.replica_number == number:
            self._start(log, catalog.groups[group_id])

    def _created(self, log: storage.Log, catalog: Catalog) -> None:
        """The log exists; its topic may have been deleted while it was being made."""
        info = catalog.groups.get(log.group_id)
        if info is None:
            self._delete(log.group_id)
        else:
            self._start(log, info)

    def _start(self, log: storage.Log, info: GroupInfo) -> None:
        if log.lost:
            self._hosting.replica_lost(log)
            return
        self._started.add(log.group_id)
        self._hosting.start_stream(log, info, partition_placement(info))

    def _delete(self, group_id: int) -> None:
        log = self._logs.pop(group_id)
        self._started.discard(group_id)
        self._hosting.stop_group(group_id)
        self._store.delete_log(log.log_id)


class CatalogObserver:
    """Tells of every command that the catalog here has applied."""

    __slots__ = ("_applied",)

    def __init__(self, applied: Callable[[], None]) -> None:
        self._applied = applied

    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: int) -> None:
        self._applied()

    def on_serving(self, group: StateGroup) -> None:
        """Nothing to do: the catalog's leader has no work of its own."""

    def on_stopped_serving(self, group: StateGroup) -> None:
        """See `on_serving`."""


def _nothing() -> None:
    """Nobody waits for this one."""
