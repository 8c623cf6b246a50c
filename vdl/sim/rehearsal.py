"""A change of a cluster's placement, rehearsed: its servers and replicas in a world with faults.

A world begins with as many servers as the cluster did, the others are added, and a topic gets the
replicas that partitions of the cluster have. Then faults begin, the change is asked for, and
clients write all the time. At last all faults end: the change must end too, and all rules of a
world hold, so nothing acknowledged is lost and all replicas become equal.

Servers are numbered anew, the initial ones first. Sizes of the partitions are not those of the
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from ids import ServerId
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.host import Host
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.kinds import draw_of
from vdl.sim.options import Options
from vdl.sim.world import TOPIC, World
from vdl.state.catalog import Catalog
from vdl.state.commands import AlterReassignments, Reassign

S = 1_000 * MS
KIND = "members"
READY_NS = 60 * S
END_NS = 60 * S
REQUEST_NS = 2 * S
AGAIN_NS = 2 * S
"""Interval at which a request is repeated that may not have reached the catalog."""
PARTITIONS_MAX = 24
"""Partitions of a scene: a world with more takes minutes."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Subject of a rehearsal, with the ids of the live servers. Replicas are by partition."""

    initial: Sequence[ServerId]
    added: Sequence[ServerId]
    racks: Mapping[ServerId, str]
    replicas: Sequence[Sequence[ServerId]]
    moves: Mapping[int, Sequence[ServerId]]
    """Partitions that get other replicas."""
    removed: ServerId | None = None
    """A server that is drained and removed."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Result of one seed. `seconds`: virtual time from the request to the end of the change."""

    seed: int
    violations: list[str]
    seconds: float
    faults: int
    crashes: int
    acknowledgements: int


def rehearse(seed: int, scene: Scene) -> Rehearsed:
    """Run a scene with the faults of a seed."""
    drawn = draw_of(KIND, Random(f"rehearsal {seed}"))
    rehearsal = _Rehearsal(World(seed, _options(drawn, scene)), scene)
    outcome = rehearsal.world.live(rehearsal.story)
    return Rehearsed(
        seed,
        list(map(str, outcome.violations)),
        round(rehearsal.took_ns / S, 1),
        outcome.faults,
        outcome.crashes,
        outcome.acknowledgements,
    )


def _options(drawn: Options, scene: Scene) -> Options:
    """Return the options of a world like the scene, in which the operator asks for one change."""
    return replace(
        drawn,
        servers=len(scene.initial),
        joiners=len(scene.added),
        partitions=len(scene.replicas),
        member_changes=0.0,
        moves=0.0,
        growth=0,
        topic_churn=0.0,
        # An added server whose disk is lost waits for an operator, who is not there.
        joiner_wipes=0.0,
        min_in_sync=1,
        majority_first=False,
    )


class _Rehearsal:
    """The operator: builds the scene, and asks for the change."""

    def __init__(self, world: World, scene: Scene) -> None:
        self.world = world
        self.took_ns = 0
        self._scene = scene
        ids = [*scene.initial, *scene.added]
        self._number = {server: ServerId(place) for place, server in enumerate(ids, 1)}
        for server, machine in zip(ids, world.machines, strict=True):
            machine.config = replace(machine.config, rack=scene.racks.get(server, ""))

    def story(self) -> None:
        """Add servers and place replicas, ask for the change while faults happen, and wait for its
        end."""
        world, scene = self.world, self._scene
        placed = dict(enumerate(scene.replicas))
        is_built = self._until(READY_NS, self._is_grown, self._admit) and self._until(
            READY_NS, partial(self._is_placed, placed), partial(self._place, placed)
        )
        if not is_built:
            world.watch.violate("no-scene", "the servers or replicas are not as in the cluster")
            return
        is_over, ask = partial(self._is_placed, scene.moves), partial(self._place, scene.moves)
        if scene.removed is not None:
            removed = self._number[scene.removed]
            is_over, ask = partial(self._is_removed, removed), partial(self._remove, removed)
        began_ns = world.time.now_ns
        faults_ns = world.options.seconds * S
        world.nemesis.start()
        has_ended = self._until(faults_ns, is_over, ask)
        self.took_ns = world.time.now_ns - began_ns
        world.run_for(max(0, faults_ns - self.took_ns))
        world.nemesis.heal()
        if not has_ended:
            if not self._until(END_NS, is_over, ask):
                world.watch.violate("no-end", "the change has not ended, though no fault is left")
            self.took_ns = world.time.now_ns - began_ns

    def _until(
        self, limit_ns: int, is_over: Callable[[], bool], ask: Callable[[Host], None]
    ) -> bool:
        """Ask a server again and again. Return False if the limit comes first."""
        until_ns = self.world.time.now_ns + limit_ns
        while not is_over():
            left_ns = until_ns - self.world.time.now_ns
            if left_ns <= 0:
                return False
            for machine in self.world.machines:
                life, server = machine.life, machine.server
                if life is None or server is None or server.host is None:
                    continue
                if server.state is ServerState.SERVING:
                    self.world.time.enter(life.clock)
                    ask(server.host)
                    self.world.time.enter(None)
                    break
            self.world.wait(min(AGAIN_NS, left_ns), is_over)
        return True

    # --- requests ---------------------------------------------------------------------------------
    def _admit(self, host: Host) -> None:
        for machine in self.world.machines[len(self._scene.initial) :]:
            if machine.server_id in host.state.newcomers:
                host.added_servers.admit(
                    machine.server_id, machine.name, machine.peer_port,
                    deadline_ns=_deadline_ns(host), done=_ignore,
                )  # fmt: skip

    def _place(self, targets: Mapping[int, Sequence[ServerId]], host: Host) -> None:
        changes = [Reassign(TOPIC, number, self._numbers(on)) for number, on in targets.items()]
        host.propose_catalog(
            AlterReassignments(changes), deadline_ns=_deadline_ns(host), done=lambda outcome: None
        )

    def _remove(self, server: ServerId, host: Host) -> None:
        host.added_servers.decommission(
            server, is_leaving=True, deadline_ns=_deadline_ns(host), done=_ignore
        )

    def _numbers(self, servers: Sequence[ServerId]) -> list[ServerId]:
        return [self._number[server] for server in servers]

    # --- what has happened, by the newest catalog -------------------------------------------------
    def _catalog(self) -> Catalog | None:
        servers = [machine.server for machine in self.world.machines]
        hosts = [server.host for server in servers if server is not None and server.host]
        known = [host for host in hosts if CATALOG_GROUP in host.groups]
        newest = max(known, key=lambda host: host.groups[CATALOG_GROUP].applied, default=None)
        return None if newest is None else newest.catalog

    def _is_grown(self) -> bool:
        catalog = self._catalog()
        return catalog is not None and len(catalog.servers) == len(self._number)

    def _is_placed(self, targets: Mapping[int, Sequence[ServerId]]) -> bool:
        catalog = self._catalog()
        topic = None if catalog is None else catalog.topics.get(TOPIC)
        if catalog is None or topic is None:
            return False
        for number, servers in targets.items():
            group = topic.partitions[number]
            found = [replica.server_id for replica in catalog.replicas(group)]
            if found != self._numbers(servers) or catalog.move(group).is_open:
                return False
        return True

    def _is_removed(self, server: ServerId) -> bool:
        catalog = self._catalog()
        return catalog is not None and not catalog.is_member(server)


def _deadline_ns(host: Host) -> int:
    return host.clock.now_ns() + REQUEST_NS


def _ignore(error: ErrorCode, message: str) -> None:
    """Ignore an answer: the catalog shows the outcome, and a request that failed is repeated."""
