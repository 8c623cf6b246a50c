"""A replica rebuilt on a slow disk under a steady load: it must become a voter.

It always lacks hundreds of entries, and has each of them some syncs after its leader. A partition
of its own is written to, directly at its leader, without a client. One of its other servers gets an
empty disk with slow syncs, and its successor must catch up from then on.

Does not depend on what else has happened in this world.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ids import GroupId
from vdl.clock import MS
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.replica_ids import server_of
from vdl.records.batch import Record, build_batch, read_header
from vdl.sim.machine import Machine
from vdl.sim.workload import create_topic

if TYPE_CHECKING:
    from vdl.sim.world import World

S = 1_000 * MS
TOPIC = "lagging"
_ALREADY_THERE = 36
VALUE_BYTES = 50
STEP_NS = 10 * MS
BATCHES_PER_STEP = 10
"""A thousand batches a second."""
UNDER_WAY_BYTES = 1 << 20
"""More than arrives during two syncs of the slow disk."""
MADE_NS = 60 * S
REPLACED_NS = 60 * S
PROMOTED_NS = 20 * S
"""Limit under load, once its membership is decided: dozens of syncs and rounds."""


def judge_slow_learner(world: World) -> None:
    """Rebuild a replica under load and check its promotion. The world must have settled before.

    Nothing is checked if leaders change.
    """
    _create(world)
    if not world.wait(MADE_NS, lambda: _led(world) is not None and not world.watch.settled()):
        return
    led = _led(world)
    assert led is not None, "it was there just now"
    leader, stream = led
    life, group = leader.life, stream.group
    servers = [server_of(replica) for replica in group.members]
    victims = [m for m in world.machines if m.server_id in servers and m is not leader]
    if not victims or world.why_no_loss():
        return
    victim = min(victims, key=world.watch.led)
    world.watch.sent_bytes_max += UNDER_WAY_BYTES
    victim.wipe()
    victim.disk.steady_sync_ns = world.options.learner_sync_ms * MS
    victim.start()
    old = group.placement

    def is_as_before() -> bool:
        return leader.life is life and stream.serving

    def has_come() -> bool:
        return group.placement != old and group.is_settled

    world.wait(REPLACED_NS, lambda: not is_as_before() or group.placement != old)
    until_ns = world.time.now_ns + PROMOTED_NS
    while is_as_before() and not has_come() and world.time.now_ns < until_ns:
        for _ in range(BATCHES_PER_STEP):
            _append(world, leader, stream)
        world.run_for(STEP_NS)
    if is_as_before() and not has_come():
        members = f"{sorted(group.node.membership.incoming)} of {sorted(group.placement)}"
        world.watch.violate("never-promoted", f"{members} vote after {PROMOTED_NS // MS} ms")
    victim.disk.steady_sync_ns = 0


def _create(world: World) -> None:
    client = world.fresh_client("lagging")

    def answered(error: int) -> None:
        if error not in {0, _ALREADY_THERE}:
            client.backoff(3, partial(create_topic, client, TOPIC, 1, answered))

    create_topic(client, TOPIC, 1, answered)


def _led(world: World) -> tuple[Machine, LogStream] | None:
    """Return the machine and stream that serve the partition, None if there is none yet."""
    for machine in world.machines:
        host = machine.server.host if machine.server is not None else None
        groups: list[GroupId] = sorted(host.groups) if host is not None else []
        for group_id in groups:
            stream = host.stream(group_id) if host is not None else None
            if stream is not None and stream.topic == TOPIC and stream.serving:
                return machine, stream
    return None


def _append(world: World, leader: Machine, stream: LogStream) -> None:
    life = leader.life
    if life is None:
        return
    batch = memoryview(build_batch([Record(None, bytes(VALUE_BYTES))]))
    world.time.enter(life.clock)
    deadline_ns = life.clock.now_ns() + S
    stream.append(batch, read_header(batch), deadline_ns=deadline_ns, done=_ignore)
    world.time.enter(None)


def _ignore(found: object) -> None:
    """Ignore the result of an append."""
