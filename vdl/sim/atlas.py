"""The fault atlas: decides when data may be destroyed for good.

A crashed machine comes back with its disk. A wiped disk, or a journal damaged where it had been
durable, does not: its data is on the group's other replicas or nowhere. Raft survives one such loss
at a time, because every committed entry is on at least one of the other voters, and no majority
exists without the voter that has most. So a loss may begin, even while other machines are down, if
for every group:

* it has its full number of voters;
* none of them has lost anything: the previous loss has been repaired;
* each of them has applied the same membership. Membership takes effect when it is applied. A
  replica that missed a promotion which only the lost leader knew to be committed still has the old
  membership, and perhaps no majority of it.

A damaged entry does not lose its replica, but each entry needs one good copy. So none is damaged
twice, and nothing else is destroyed while some are not repaired, or while a power cut could still
cost a log what a bad page has left of it.

Does not depend on how anything is damaged or repaired.
"""

from __future__ import annotations

from collections.abc import Sequence

from ids import GroupId
from vdl.logstream.host import Host
from vdl.logstream.membership.replicas import replica_ids
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.machine import Machine
from vdl.sim.raft_watch import RaftWatch

SERVERS_MIN = 3
"""Fewer servers cannot repair a loss."""


def why_not(machines: Sequence[Machine], watch: RaftWatch) -> str:
    """Return why nothing may be destroyed now; empty if it may."""
    if len(machines) < SERVERS_MIN:
        return "too few servers"
    newest = newest_host(machines)
    if newest is None:
        return "no server knows the catalog"
    groups = [*range(1 + newest.coordinator_count), *sorted(newest.catalog.groups)]
    for group_id in groups:
        reason = _why_not(group_id, newest, watch)
        if reason:
            return f"group {group_id}: {reason}"
    for machine in machines:
        if reason := machine.unhealed() or machine.exposed():
            return reason
        if machine.bereft and not _has_recovered(machine, groups, newest, watch):
            return f"{machine.name} has not recovered"
        machine.bereft = False
    return ""


def newest_host(machines: Sequence[Machine]) -> Host | None:
    """Return the running server that has applied most of the catalog."""
    hosts = [
        machine.server.host
        for machine in machines
        if machine.server is not None and machine.server.host is not None
    ]
    return max(
        (host for host in hosts if CATALOG_GROUP in host.groups),
        key=lambda host: host.groups[CATALOG_GROUP].applied,
        default=None,
    )


def _why_not(group_id: GroupId, newest: Host, watch: RaftWatch) -> str:
    seen = watch.group(group_id)
    membership = seen.membership
    observers = frozenset(replica_ids(newest.catalog.observers(group_id)))
    if membership.is_joint or membership.learners != observers:
        return "its membership is changing"
    if newest.catalog.move(group_id).is_open:
        return "its replicas move"
    if group_id not in newest.catalog.moves and len(membership.incoming) < seen.most_voters:
        return "a voter is missing"
    if membership.incoming != frozenset(replica_ids(newest.catalog.replicas(group_id))):
        return "a voter does not know that its group changes"
    if not watch.members_known(group_id):
        return "a voter does not know its members"
    return ""


def _has_recovered(
    machine: Machine, groups: Sequence[GroupId], newest: Host, watch: RaftWatch
) -> bool:
    """Return True if a machine that lost data has members in place of all it lost.

    Also if its server is not in the cluster, which has removed it.
    """
    if newest.catalog.directory_of(machine.server_id) is None:
        return True
    server = machine.server
    if server is None or server.host is None or server.state is not ServerState.SERVING:
        return False
    host = server.host
    listed = [g for g in groups if newest.catalog.replica_number(g, machine.server_id)]
    return not host.lost_groups and all(
        g in host.groups and host.groups[g].replica_id in watch.group(g).membership.members()
        for g in listed
    )
