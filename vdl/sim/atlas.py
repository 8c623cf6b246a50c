"""When a replica may be taken away for good: the fault atlas.

Whatever crashes comes back with its disk. A disk that is wiped, or whose journal is damaged where
it had been durable, does not: what it held is on its group's other replicas or nowhere. Raft
survives one such loss at a time, so one may begin only while every group has its full number of
voters, all of them live and caught up; that also says that the loss before has been made good.

Must not know: how anything is broken or made good.
"""

from __future__ import annotations

from collections.abc import Sequence

from vdl.logstream.group import Group
from vdl.logstream.host import Host
from vdl.logstream.turn import server_of
from vdl.server import ServerState
from vdl.sim.machine import Condition, Machine
from vdl.sim.raft_watch import RaftWatch

SERVERS_MIN = 3
"""With fewer there is nobody to make good what is lost."""


def why_not(machines: Sequence[Machine], watch: RaftWatch) -> str:
    """Why nothing may be taken away now; empty when it may."""
    if len(machines) < SERVERS_MIN:
        return "too few servers"
    hosts: dict[int, Host] = {}
    for machine in machines:
        life = machine.life
        if machine.condition is not Condition.RUNNING or life is None or life.clock.paused:
            return f"{machine.name} does not run"
        host = life.server.host
        if host is None or life.server.state is not ServerState.SERVING:
            return f"{machine.name} does not serve"
        hosts[machine.server_id] = host
    for group_id in sorted({group_id for host in hosts.values() for group_id in host.groups}):
        reason = _why_not(group_id, hosts, watch)
        if reason:
            return f"group {group_id}: {reason}"
    return ""


def _why_not(group_id: int, hosts: dict[int, Host], watch: RaftWatch) -> str:
    leader = _leader(group_id, hosts)
    if leader is None:
        return "nobody serves it"
    membership = leader.node.membership
    if membership.is_joint or membership.learners:
        return "its membership is changing"
    if len(membership.incoming) < watch.group(group_id).most_voters:
        return "a voter is missing"
    for voter in sorted(membership.incoming):
        replica = hosts[server_of(voter)].groups.get(group_id)
        if replica is None or replica.replica_id != voter:
            return f"the voter on server {server_of(voter)} does not run"
        if replica.node.stable < leader.node.commit:
            return f"the voter on server {server_of(voter)} is behind"
    return ""


def _leader(group_id: int, hosts: dict[int, Host]) -> Group | None:
    """The replica that serves in the highest term."""
    replicas = [host.groups[group_id] for host in hosts.values() if group_id in host.groups]
    return max(
        (group for group in replicas if group.serving),
        key=lambda group: group.node.term,
        default=None,
    )
