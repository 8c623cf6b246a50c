"""An operator who adds servers to the cluster, removes them and takes them back.

Machines beside the initial ones start with empty disks and wait. The operator sends a request to a
server that is drawn among those that run, at any time and without waiting for the last one to end:
the next may come at any point of it. Any server may be removed, also one with which the cluster
began. Partitions are moved to an added server, some of them to lead there. It may get another
address, which the operator reports later. A machine whose server was removed gets an empty disk,
and a file with the servers that are there, and waits again; one that lost its disk is added again.

Rules, from the logs' membership changes and the disks:

* A server that waits has no birth record and no log.
* No group has a member on a server that was never added, or that was removed, or of which the
  catalog lists no replica there.
* No server votes in the catalog or in a coordinator of which the catalog lists no vote there.
* In the end no server is about to join or to leave, no votes move, one that waits can be added, and
  every server dials the added ones at their present address, and those that were removed nowhere.

Does not depend on faults or on how replicas move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from ids import GroupId, ServerId
from rpc.birth import encode_answer
from rpc.links import Links
from rpc.peer import FrameType
from vdl.clock import MS
from vdl.config.values import Address
from vdl.errors import ErrorCode
from vdl.logstream.bootstrap import encode_record
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.host import Host
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.clock import VirtualTime
from vdl.sim.machine import PEER_PORT, Machine
from vdl.sim.raft_watch import RaftWatch
from vdl.state.commands import AlterReassignments, Reassign

OTHER_PEER_PORT = PEER_PORT + 1
LOOK_NS = 20 * MS
"""Interval at which the rules are checked."""
REQUEST_NS = 2_000 * MS
SOON = 0.3
"""Chance that the next request comes at once, while the last has just begun."""
SOON_MS = (1, 600)
AGAIN_NS = 500 * MS
"""Interval of the requests that end what faults have left, when no others are sent any more."""
REACHED = 0.9
"""Chance that a request goes to a server that can add the machine's, if there is one."""
RESTORED = 0.3
"""Chance that a server that leaves is taken back."""
READDRESSED = 0.1
"""Chance that an added server gets another address instead of being removed."""
FILLED = 0.6
"""Chance that partitions are moved to an added server that has none instead."""
ANY = 0.5
"""Chance that a request concerns any of the servers, not only those beside the initial ones."""
LATE = 0.3
"""Chance that a removed server with an empty disk is answered as if it were not removed yet."""
FIRST = 0.4
"""Chance that such a partition prefers it as its leader."""


class Joiners:
    """The operator, and the rules."""

    def __init__(
        self,
        machines: Sequence[Machine],
        joiners: Sequence[Machine],
        time: VirtualTime,
        raft: RaftWatch,
        rng: Random,
        rate: float,
        violate: Callable[[str, str], None],
    ) -> None:
        """`machines`: all of them; `joiners`: those beside the initial ones. `rate`: requests per
        second; 0: none."""
        self._machines = machines
        self._joiners = joiners
        self._time = time
        self._raft = raft
        self._rng = rng
        self._rate = rate
        self._violate = violate
        self._is_working = True
        self._ever: set[ServerId] = set()
        """Servers that were ever added."""
        self.accepted = 0
        """Number of requests that took effect."""
        if rate:
            self._schedule()
        self._look()

    def stop(self) -> None:
        """Send no more requests, except for what servers wait for. What has begun goes on."""
        self._is_working = False
        self._finish()

    # --- requests ---------------------------------------------------------------------------------
    def _schedule(self) -> None:
        rng = self._rng
        if rng.random() < SOON:
            delay_ns = rng.randint(*SOON_MS) * MS
        else:
            delay_ns = int(rng.expovariate(self._rate) * 1_000 * MS)
        self._time.after(delay_ns, self._act)

    def _act(self) -> None:
        if not self._is_working:
            return
        self._schedule()
        rng = self._rng
        running = [m for m in self._machines if m.server is not None and m.server.host is not None]
        joiner = rng.choice(self._machines if rng.random() < ANY else self._joiners)
        draw = rng.random()
        if not running:
            return
        # Usually one at which it waits: a request to another is refused.
        at = [m for m in running if _waits_at(m, joiner)]
        asked = rng.choice(at if at and draw < REACHED else running)
        self._ask(asked, joiner, draw)

    def _finish(self) -> None:
        """Add servers that wait since they lost their disk, and report their addresses."""
        self._time.after(AGAIN_NS, self._finish)
        for joiner in self._machines:
            for machine in self._machines:
                host = machine.server.host if machine.server is not None else None
                # A removed server knows the catalog of long ago, and can do nothing.
                if host is None or not self.takes_part(machine):
                    continue
                waits = _waits_at(machine, joiner) and joiner.server_id in host.catalog.added
                # One that is not linked to it says so, and an operator asks another.
                is_linked = joiner.server_id in host.state.alive
                if waits or (is_linked and _is_elsewhere(host, joiner)):
                    self._ask(machine, joiner, 0.0)
                    break

    def _ask(self, asked: Machine, joiner: Machine, draw: float) -> None:
        assert asked.life is not None
        host = asked.life.server.host
        assert host is not None, asked.name
        if _is_out(host, joiner):
            joiner.wipe()
            self._write_file(host, joiner)
            joiner.start()
            if draw < LATE and joiner.life is not None:  # a power cut may strike its start
                self._answer(host, joiner)
            return
        if joiner.server is not None and _is_lost(host, joiner):
            joiner.kill()
            self._write_file(host, joiner)
            joiner.start()
            return
        self._time.enter(asked.life.clock)
        self._request(host, joiner, draw, is_waiting=_waits_at(asked, joiner))
        self._time.enter(None)

    def _answer(self, host: Host, joiner: Machine) -> None:
        """Give a machine the birth record, as a server does of which it is a member."""
        assert joiner.life is not None
        answer = encode_answer(encode_record(host.state.record))
        self._time.enter(joiner.life.clock)
        joiner.life.server.frame(host.server_id, FrameType.ANSWER, memoryview(b"".join(answer)))
        self._time.enter(None)

    def _write_file(self, host: Host, joiner: Machine) -> None:
        """Name the servers that are there in a machine's file: the first ones may be gone."""
        seeds = {
            machine.server_id: Address(machine.name, machine.peer_port)
            for machine in self._machines
            if machine is not joiner and host.catalog.is_member(machine.server_id)
        }
        joiner.config = replace(joiner.config, seeds=seeds)

    def _request(self, host: Host, joiner: Machine, draw: float, *, is_waiting: bool) -> None:
        server_id, servers, rng = joiner.server_id, host.added_servers, self._rng
        added = host.catalog.added.get(server_id)
        deadline_ns = host.clock.now_ns() + REQUEST_NS
        is_first = server_id in host.catalog.first_servers
        if (added is None and not is_first) or is_waiting or _is_elsewhere(host, joiner):
            done = partial(self._answered, f"add {server_id}")
            servers.admit(
                server_id, joiner.name, joiner.peer_port, deadline_ns=deadline_ns, done=done
            )
            return
        leaves = added is not None and added.is_leaving
        if not leaves and not is_first and rng.random() < READDRESSED:
            joiner.kill()
            joiner.peer_port = PEER_PORT if joiner.peer_port != PEER_PORT else OTHER_PEER_PORT
            joiner.start()
            return
        is_empty = not host.catalog.held[server_id]
        if is_empty and not leaves and rng.random() < FILLED:
            self._fill(host, server_id, deadline_ns)
            return
        is_leaving = not leaves or draw >= RESTORED
        servers.decommission(
            server_id,
            is_leaving=is_leaving,
            deadline_ns=deadline_ns,
            done=partial(self._answered, f"{'remove' if is_leaving else 'restore'} {server_id}"),
        )

    def _fill(self, host: Host, server_id: ServerId, deadline_ns: int) -> None:
        """Move some partitions to a server, in the place of one of their replicas each."""
        rng, changes = self._rng, []
        for _, info in sorted(host.catalog.groups.items()):
            servers = [replica.server_id for replica in info.replicas]
            place = 0 if rng.random() < FIRST else rng.randrange(len(servers))
            if rng.random() < FILLED:
                servers[place] = server_id
                changes.append(Reassign(info.topic, info.partition, servers))
        host.propose_catalog(
            AlterReassignments(changes), deadline_ns=deadline_ns, done=lambda outcome: None
        )

    def _answered(self, what: str, error: ErrorCode, message: str) -> None:
        del message
        self.accepted += error is ErrorCode.NONE
        self._machines[0].trace.note(self._time.now_ns, f"operator: {what}: {error.name}")

    # --- rules ------------------------------------------------------------------------------------
    def _look(self) -> None:
        self._time.after(LOOK_NS, self._look)
        hosts = self._hosts()
        newest = max(hosts, key=_applied, default=None)
        if newest is None or _applied(newest) < self._raft.group(CATALOG_GROUP).applied_index:
            return  # a server that does not run has a newer catalog
        catalog = newest.catalog
        self._ever |= catalog.added.keys()
        for machine in self._joiners:
            host = machine.server.host if machine.server is not None else None
            if host is not None and machine.server_id not in self._ever:
                self._violate("uninvited", f"{machine.name} takes part, and was never added")
        members = catalog.first_servers.keys() | catalog.added.keys()
        groups = [GroupId(g) for g in range(1 + newest.coordinator_count)]
        for group_id in groups:
            listed = {replica.server_id for replica in catalog.listed(group_id)}
            for replica in self._raft.group(group_id).applied_membership.voters():
                if server_of(replica) not in listed:
                    self._violate("observer-votes", f"{server_of(replica)} in group {group_id}")
        for group_id in (*groups[1:], *catalog.groups):
            listed = {replica.server_id for replica in catalog.listed(group_id)}
            for replica in self._raft.group(group_id).applied_membership.members():
                server_id = server_of(replica)
                if server_id not in members or server_id not in listed:
                    what = f"group {group_id} has a member on server {server_id}"
                    self._violate("removed-too-early", what)

    def unsettled(self) -> str:
        """Describe a server that is about to join or to leave; empty if there is none."""
        hosts = self._hosts()
        for host in hosts:
            for added in host.catalog.added.values():
                if added.is_leaving or added.server_id not in host.catalog.servers:
                    return f"server {added.server_id} is about to join or leave"
            if any(group_id <= host.coordinator_count for group_id in host.catalog.open_moves):
                return f"votes move, as server {host.server_id} has applied it"
        for machine in self._machines:
            server = machine.server
            if server is None:
                return f"{machine.name} does not run"
            is_member = any(host.catalog.is_member(machine.server_id) for host in hosts)
            if not is_member and any(_is_lost(host, machine) for host in hosts):
                continue  # it finds no server that would refuse it
            known = ServerState.SERVING if is_member else (ServerState.WAITING, ServerState.REMOVED)
            if server.state not in (known if isinstance(known, tuple) else (known,)):
                return f"{machine.name} is {server.state.value}"
            if server.state is ServerState.WAITING and not self._is_listed(machine):
                return f"{machine.name} waits, and no server can add it"
        return next(filter(None, (_wrongly_dialled(host, self._machines) for host in hosts)), "")

    def takes_part(self, machine: Machine) -> bool:
        """Return True unless the machine's server waits to be added, or was removed."""
        server = machine.server
        if server is None:
            return True
        if server.waits_to_be_added or server.state is ServerState.REMOVED:
            return False
        directory_id = server.store.directory_id
        hosts = [host for host in self._hosts() if host is not server.host]
        if server.state is ServerState.WAITING and not any(
            host.catalog.is_member(machine.server_id) for host in hosts
        ):
            return False
        return not any(h.catalog.is_removed(machine.server_id, directory_id) for h in hosts)

    def _is_listed(self, joiner: Machine) -> bool:
        """Return True if a server of the cluster lists a machine as one that waits."""
        return any(_waits_at(one, joiner) for one in self._machines if self.takes_part(one))

    def _hosts(self) -> list[Host]:
        servers = [machine.server for machine in self._machines]
        return [
            server.host
            for server in servers
            if server is not None
            and server.host is not None
            and CATALOG_GROUP in server.host.groups
            and server.state is not ServerState.REMOVED
        ]


def _is_elsewhere(host: Host, joiner: Machine) -> bool:
    """Return True if the catalog has another address for an added server than it has now."""
    added = host.catalog.added.get(joiner.server_id)
    return added is not None and bool(added.host) and added.port != joiner.peer_port


def _is_out(host: Host, joiner: Machine) -> bool:
    """Return True if a machine has a directory that its cluster has removed, and knows or waits."""
    server = joiner.server
    if server is None or server.state is ServerState.REMOVED:
        return server is not None
    removed = host.catalog.is_removed(joiner.server_id, server.store.directory_id)
    return removed and (server.waits_to_be_added or _is_lost(host, joiner))


def _is_lost(host: Host, joiner: Machine) -> bool:
    """Return True if a machine is not in the cluster, and its file names no server that is."""
    catalog = host.catalog
    return not catalog.is_member(joiner.server_id) and not any(
        catalog.is_member(server_id) for server_id in joiner.config.seeds
    )


def _wrongly_dialled(host: Host, joiners: Sequence[Machine]) -> str:
    """Describe an address at which a server dials another and should not; empty if none."""
    transport, catalog = host.state.transport, host.catalog
    assert isinstance(transport, Links), transport
    for joiner in joiners:
        if joiner.server_id in catalog.first_servers:
            continue  # its address is in the file
        peer = transport._peers.get(joiner.server_id)
        address = None if peer is None else peer.address
        is_added = joiner.server_id in catalog.added and joiner.server_id != host.server_id
        if address != ((joiner.name, joiner.peer_port) if is_added else None):
            return f"server {host.server_id} dials {joiner.name} at {address}"
    return ""


def _waits_at(machine: Machine, joiner: Machine) -> bool:
    host = machine.server.host if machine.server is not None else None
    if host is None:
        return False
    is_linked = joiner.server_id in host.state.alive
    is_former = is_linked and not host.catalog.is_member(joiner.server_id)
    return is_former or joiner.server_id in host.state.newcomers


def _applied(host: Host) -> int:
    return host.groups[CATALOG_GROUP].applied
