"""Check that the replicas reported as in sync hold the committed entries (Kafka's ISR).

Every half second of virtual time each server's report to a client is read. A replica is reported
wrongly if, in several checks in a row, its disk lacks entries that were committed longer ago than
the lag bound plus the time to notice and report. Only servers that hear from the leader are
checked: one that is cut off reports its last update, and so does a deposed leader that does not
know it. A leader is in sync with itself, as in Kafka, even while its own disk is behind its
followers'.

Does not depend on faults or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ids import NO_INDEX, GroupId, Index, ServerId
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import LOOK_NS
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.host import Host
from vdl.sim.machine import Machine
from vdl.sim.raft_watch import RaftWatch

IN_SYNC_LOOK_NS: Final = 500 * MS
LAG_MAX_MS: Final = 500
"""`replica.lag.time.max.ms` of simulated servers: their faults last seconds, not minutes."""

SETTLED_NS: Final = LAG_MAX_MS * MS + LOOK_NS + 500 * MS
"""Age at which every in-sync replica holds a committed entry: the leader checks each second and
notifies the others within a heartbeat; clocks drift.
"""

LOOKS_MIN: Final = 3
"""Consecutive checks that must find it wrong: a process may just have been resumed."""

HEARD_NS_MAX: Final = 300 * MS
"""A server whose last message from the leader's server is older is not checked."""

_Place = tuple[int, int, int, int]
"""Reporting server, group, term, reported server."""


class InSyncWatch:
    """Watch of the reported in-sync replicas. `violate` is called once for each group."""

    def __init__(
        self,
        machines: Sequence[Machine],
        raft: RaftWatch,
        violate: Callable[[str, str], None],
    ) -> None:
        self._machines = machines
        self._raft = raft
        self._violate = violate
        self._committed: dict[int, deque[tuple[int, Index]]] = {}
        """By group: (time, highest index known to be committed anywhere), oldest first."""
        self._wrong: dict[_Place, int] = {}
        """Number of consecutive checks that found a replica behind."""
        self._told: set[int] = set()
        self.checked = 0

    def look(self, now_ns: int) -> None:
        """Check the reports of all running servers."""
        hosts = [
            machine.server.host
            for machine in self._machines
            if machine.life is not None and not machine.life.clock.paused
            if machine.server is not None and machine.server.host is not None
        ]
        leaders: dict[GroupId, Group] = {}
        terms: dict[int, int] = {}
        for host in hosts:
            for group_id, group in host.groups.items():
                terms[group_id] = max(terms.get(group_id, 0), group.node.term)
                known = leaders.get(group_id)
                is_newer = known is None or known.node.term < group.node.term
                if group.serving and group.node.is_leader and is_newer:
                    leaders[group_id] = group
        wrong: dict[_Place, int] = {}
        for group_id, leader in sorted(leaders.items()):
            settled = self._settled(group_id, now_ns)
            if leader.node.term < terms[group_id]:
                continue
            for host in hosts:
                if not _hears(host, leader):
                    continue
                self.checked += 1
                for server in sorted(set(host.in_sync_of(group_id))):
                    if server == server_of(leader.replica_id):
                        continue
                    if not self._holds(leader, server, settled):
                        place = (host.server_id, group_id, leader.node.term, server)
                        wrong[place] = self._wrong.get(place, 0) + 1
                        if wrong[place] >= LOOKS_MIN and group_id not in self._told:
                            self._told.add(group_id)
                            what = f"group {group_id}: server {host.server_id} reports {server}"
                            self._violate(
                                "not-in-sync", (f"{what} as in sync, which lacks entry {settled}")
                            )
        self._wrong = wrong

    def _settled(self, group_id: GroupId, now_ns: int) -> Index:
        """Return the highest index committed at least `SETTLED_NS` ago."""
        known = self._committed.setdefault(group_id, deque())
        known.append((now_ns, self._raft.group(group_id).cluster.last_committed))
        while len(known) > 1 and known[1][0] <= now_ns - SETTLED_NS:
            known.popleft()
        at_ns, index = known[0]
        return index if at_ns <= now_ns - SETTLED_NS else NO_INDEX

    def _holds(self, leader: Group, server: ServerId, index: Index) -> bool:
        for replica in leader.listed:
            if server_of(replica) == server:
                last = self._raft.durable_last(leader.group_id, replica)
                return last >= index
        return False


def _hears(host: Host, leader: Group) -> bool:
    """Return True if the server knows this leader and has just heard from its server."""
    server = server_of(leader.replica_id)
    if host.leader_of(leader.group_id) != (server, leader.node.term):
        return False
    if host.server_id == server:
        return True
    heard = host.liveness.leader_heard(leader.group_id)
    return heard is not None and heard[2] <= HEARD_NS_MAX
