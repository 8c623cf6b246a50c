"""The state of one server's log streams, shared by the code that maintains them.

`HostState` is to a server what `raft.state` is to one replica: plain data with a few invariants. It
makes no decisions and calls no collaborator. The code that works on it (`peers/`, `elections/`,
`membership/`, `cleanup/`, `periodic.py`, `host.py`) takes it as an argument, and besides it only
the collaborators that it calls itself, which are in the same folder or in a lower one. Results for
higher layers are returned, or left in `outbox` for the turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Final

import segments.api as storage
from ids import GroupId, NodeId, ServerId
from rpc.hello import Hello
from rpc.streams import Transport
from vdl.clock import Clock
from vdl.log import Log
from vdl.logstream.bootstrap import BirthRecord
from vdl.logstream.front import Front, NoFront
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import InSyncReplicas
from vdl.logstream.group.large_room import LargeRoom
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.measures import Measures
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.replica_ids import SERVER_SHIFT
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.logstream.stats import HostStats
from vdl.logstream.time.cluster_time import ClusterTime
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.logstream.time.loop_time import LoopTime
from vdl.state.catalog import Catalog, GroupInfo
from vdl.state.coordinator import Coordinator

BOOT_BITS: Final = 62
"""Bits of the number that distinguishes processes. Numbers that start there stay below 2⁶⁴."""

CATALOG_GROUP: Final = GroupId(0)
"""Group id of the catalog; those of the coordinators follow."""


class HostState:
    """State of one server's log streams.

    Invariant: no field but `front` is ever set to another object; objects are changed in place.
    """

    __slots__ = (
        "alive", "boot", "cache_bytes_max", "catalog", "catalog_group", "clock", "dissenting",
        "front", "full", "gaps", "groups", "in_sync", "large_room", "log", "loop_time", "lost",
        "measures", "newcomers", "options", "outbox", "record", "request_numbers", "rng",
        "server_id", "silent", "state_groups", "stats", "store", "streams", "system_groups",
        "time", "transport", "unheard", "unled_ns",
    )  # fmt: skip

    def __init__(
        self,
        *,
        server_id: ServerId,
        record: BirthRecord,
        store: storage.Store,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        options: HostOptions,
        log: Log,
        cache_bytes_max: int,
    ) -> None:
        self.server_id = server_id
        self.record = record
        self.store = store
        self.transport = transport
        self.clock = clock
        self.rng = rng
        self.options = options
        self.log = log
        self.cache_bytes_max = cache_bytes_max
        self.boot = rng.getrandbits(BOOT_BITS)
        """Random number drawn at start. It distinguishes proposals and requests of this process
        from those of earlier ones, also if the directory was restored from an older copy."""
        self.request_numbers: Iterator[int] = count(self.boot)
        """Numbers of requests to other servers. A response carries the number, and may arrive after
        a restart. Invariant: no number is used twice, for any kind of request, nor by another
        process of this server."""
        self.stats = HostStats()
        self.measures = Measures(clock.now_ns, self.stats.replication)
        self.large_room = LargeRoom(store, self.stats)
        self.front: Front = NoFront()
        """Clients and topic settings. Set once, when the host starts."""
        self.outbox = Outbox(clock)
        # --- time ---
        self.loop_time = LoopTime(clock)
        """Time base of the groups' timers."""
        self.gaps = LoopGaps(clock, limit_ns=options.election_ticks * TICK_NS)
        self.time = ClusterTime(
            clock,
            voters=[server for server, _ in record.initial_voters],
            own=server_id,
            hold_ms=options.clock_hold_ms,
            log=log,
        )
        self.alive: dict[ServerId, Hello] = {}
        """Linked servers, by server id, with the HELLO of each."""
        self.newcomers: dict[ServerId, Hello] = {}
        """Linked servers without a birth record, by server id, with the HELLO of each."""
        # --- groups ---
        self.catalog = Catalog(
            record.cluster_id,
            coordinator_groups=record.coordinator_groups,
            initial_voters=dict(record.initial_voters),
        )
        """Catalog as applied here; it may lag behind, and is empty before its replica has
        opened."""
        self.system_groups = self._make_system_groups()
        """The catalog and the coordinators, by group id, running here or not."""
        self.catalog_group = self.system_groups[CATALOG_GROUP]
        self.groups: dict[GroupId, Group] = {}
        """Replicas that take part, by group id. A group that was looked up before a wait for a disk
        or a timer may be gone afterwards: see `is_here`."""
        self.streams: dict[GroupId, LogStream] = {}
        """Log streams of the partitions among `groups`. Invariant: each is the owner of its
        group."""
        self.state_groups: dict[GroupId, StateGroup] = {}
        """Catalog and coordinators among `groups`, once their state is whole."""
        self.lost: dict[GroupId, storage.Log] = {}
        """Replicas here that lost durable data, take no part, and have no successor here yet; by
        group id. Invariant: none of their groups is in `groups`."""
        self.dissenting: dict[GroupId, set[NodeId]] = {}
        """Replicas of linked servers that reported that they cannot follow this server as leader:
        they do not count towards a majority."""
        self.unled_ns = 0
        """Time at which a group was last left without a leader, as known here (monotonic ns); 0:
        never. Use: its next leader is awaited for a moment."""
        # --- peers ---
        self.silent: set[ServerId] = set()
        """Servers whose link was lost, and which were neither linked nor refused a connection
        since: they may be alive. Invariant: none of them is in `alive`."""
        self.full: set[ServerId] = set()
        """Servers that reported a full disk, and whose link has not been lost since."""
        self.unheard: set[ServerId] = set()
        """Servers from which no byte has come for an election timeout, linked or not."""
        self.in_sync = InSyncReplicas(options, clock, self.alive)
        """In-sync replicas of the groups led here."""

    def _make_system_groups(self) -> dict[GroupId, StateGroup]:
        return {
            group_id: StateGroup(
                server_id=self.server_id,
                boot=self.boot,
                machine=self.catalog if group_id == CATALOG_GROUP else Coordinator(),
                time=self.time,
                outbox=self.outbox,
                alive=self.alive,
                is_essential=group_id == CATALOG_GROUP,
            )
            for group_id in map(GroupId, range(1 + self.record.coordinator_groups))
        }

    def hello_of(self, server_id: ServerId) -> Hello | None:
        """Return the HELLO of a linked server, with a birth record or without; None if it is not
        linked."""
        return self.newcomers.get(server_id) or self.alive.get(server_id)

    @property
    def unflushed_bytes_max(self) -> int:
        """Unflushed bytes of all groups beyond which followers take no more records.

        Producers wait earlier, at half of the cache.
        """
        return self.cache_bytes_max * 3 // 4

    def answers_reach(self, asker: Hello | None) -> bool:
        """Return True if the process that sent a request with this HELLO is the one linked now.

        A later process of its server must not receive the response: an older version starts its
        request numbers from the beginning again.
        """
        hello = None if asker is None else self.alive.get(asker.server_id)
        return asker is not None and hello is not None and hello.is_same_process(asker)

    def is_here(self, group: Group) -> bool:
        """Return True if this replica still takes part: it may have been stopped or replaced."""
        return self.groups.get(group.group_id) is group

    def name_of(self, group_id: GroupId) -> str:
        """Return the readable name of a group: topic and partition.

        Empty if the group is unknown here.
        """
        if group_id == CATALOG_GROUP:
            return "catalog"
        if group_id in self.system_groups:
            return f"coordinator-{group_id}"
        info: GroupInfo | LogStream | None = self.catalog.groups.get(group_id)
        if info is None and group_id in self.groups:  # the catalog may not have been applied yet
            owner = self.groups[group_id].owner
            info = owner if isinstance(owner, LogStream) else None
        return f"{info.topic}-{info.partition}" if info is not None else ""

    def told_of(self, group_id: GroupId) -> str:
        """Return `name_of` the group, or its number if there is no other name."""
        return self.name_of(group_id) or f"group-{group_id}"

    def is_linked(self, replica: NodeId) -> bool:
        """Return True if the replica's server is linked.

        Inlines `server_of`: called for each batch of a leader and each follower.
        """
        return replica >> SERVER_SHIFT in self.alive
