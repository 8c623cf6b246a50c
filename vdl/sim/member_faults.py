"""Faults of clusters whose servers join and leave, at moments that chance alone seldom hits.

`StrikeBetween` stops a server that takes part in a step while that step is in progress: the leader
of the catalog, which drives all steps, the server that joins or leaves, or one that a partition is
moved to. `LostJoiner` gives an added server an empty disk. `Apart` cuts the added servers off from
the initial ones, as a new site whose network fails.

Does not depend on how servers join and leave.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Protocol

from ids import ServerId
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.host import Host
from vdl.logstream.state import CATALOG_GROUP
from vdl.sim.atlas import newest_host
from vdl.sim.machine import Machine

if TYPE_CHECKING:
    from vdl.sim.network import Network
    from vdl.sim.raft_watch import RaftWatch

PAUSE_CHANCE = 0.4
POWER_CHANCE = 0.3


class Target(Protocol):
    """Part of a world that these faults act on."""

    @property
    def machines(self) -> list[Machine]: ...
    @property
    def initial(self) -> list[Machine]: ...
    @property
    def network(self) -> Network: ...
    @property
    def raft(self) -> RaftWatch: ...
    def note(self, text: str) -> None: ...
    def why_no_loss(self) -> str: ...


class StrikeBetween:
    """Kill, power loss or pause of a server while one joins or leaves."""

    def begin(self, world: Target, rng: Random) -> bool:
        host = newest_host(world.machines)
        busy = sorted(_busy(host)) if host is not None else []
        running = [m for m in world.machines if m.life is not None]
        chosen = [m for m in running if m.server_id in busy]
        if not chosen:
            return False
        leaders = [m for m in running if _leads_catalog(m)]
        self.machine = rng.choice(leaders if leaders and rng.random() < 1 / 2 else chosen)
        self.machine.note("is struck while a server joins or leaves")
        if rng.random() < PAUSE_CHANCE:
            self.machine.pause()
        elif rng.random() < POWER_CHANCE:
            self.machine.power_cut()
        else:
            self.machine.kill()
        return True

    def end(self, world: Target) -> None:
        self.machine.resume()
        self.machine.start()


class LostJoiner:
    """Loss of an added server's disk: it restarts with an empty one, and waits to be added again.

    One with replicas of partitions loses it only while these have enough others (`atlas.py`).
    """

    def begin(self, world: Target, rng: Random) -> bool:
        host = newest_host(world.machines)
        if host is None:
            return False
        added = [m for m in world.machines if m.server_id in host.catalog.added]
        if not added:
            return False
        self.machine = rng.choice(added)
        if _has_replicas(world, host, self.machine) and world.why_no_loss():
            return False
        self.machine.wipe()
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


class Apart:
    """Network partition between the initial servers and the others, with some initial ones."""

    def begin(self, world: Target, rng: Random) -> bool:
        initial = [machine.name for machine in world.initial]
        others = [m.name for m in world.machines if m not in world.initial]
        if not others:
            return False
        far = rng.sample(initial, rng.randint(0, len(initial) - 1))
        near = [name for name in initial if name not in far]
        self.pairs = [pair for one, other in product(near, others + far) for pair in (
            (one, other), (other, one)
        )]  # fmt: skip
        for one, other in self.pairs:
            world.network.cut(one, other)
        world.note(f"added servers and {far} are apart")
        return True

    def end(self, world: Target) -> None:
        for one, other in self.pairs:
            world.network.heal(one, other)


def _busy(host: Host) -> set[ServerId]:
    """Return the servers that join, leave, or are to take replicas from one that leaves."""
    catalog = host.catalog
    busy = {
        added.server_id
        for added in catalog.added.values()
        if added.is_leaving or added.server_id not in catalog.servers
    }
    for group_id in catalog.open_moves:
        move = catalog.moves[group_id]
        listed = {replica.server_id for replica in catalog.listed(group_id)}
        if not listed.isdisjoint(catalog.added):
            busy |= listed.difference(move.origin)
    return busy


def _leads_catalog(machine: Machine) -> bool:
    host = machine.server.host if machine.server is not None else None
    group = host.groups.get(CATALOG_GROUP) if host is not None else None
    return group is not None and group.node.is_leader


def _has_replicas(world: Target, host: Host, machine: Machine) -> bool:
    """Return True if a group has, or is about to have, a voter on the machine."""
    catalog = host.catalog
    if catalog.held[machine.server_id] or catalog.has_votes(machine.server_id):
        return True
    return any(
        machine.server_id in map(server_of, world.raft.group(group_id).membership.voters())
        for group_id in (*range(1 + host.coordinator_count), *catalog.groups)
    )
