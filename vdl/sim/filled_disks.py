"""The disks of all servers but one leader's fill: requests that free space must succeed.

Disks of one size fill at about the same time, and the server that still has room leads. Appends
there then wait for the others, and a deletion waits behind them. A partition of its own is written
to, directly at its leader, without a client. When the others are full, appends are often in flight.
A deletion must be answered then, and new records must be refused.

A full disk may also end a process, and the leader may change: then nothing is checked. Does not
depend on what else has happened in this world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.replica_ids import server_of
from vdl.records.batch import Record, build_batch, read_header
from vdl.sim.machine import Machine
from vdl.sim.workload import create_topic

if TYPE_CHECKING:
    from vdl.sim.world import World

S = 1_000 * MS
TOPIC = "filling"
_ALREADY_THERE = 36
VALUE_BYTES = 4_000
UNDER_WAY_MAX = 8
MADE_NS = 60 * S
FILLED_NS = 30 * S
HEARD_NS = 1 * S
"""Time after which the leader has long been notified of full disks."""
ANSWERED_NS = 10 * S
"""A hundred heartbeats: a full disk takes a little data with each."""


class Filling:
    """The partition, and the batches appended to it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: list[list[Appended]] = []
        self._is_made = False
        self._create()

    def _create(self) -> None:
        client = self._world.fresh_client("filling")

        def answered(error: int) -> None:
            self._is_made = error in {0, _ALREADY_THERE}
            if not self._is_made:
                client.backoff(3, partial(create_topic, client, TOPIC, 1, answered))

        create_topic(client, TOPIC, 1, answered)

    def leader(self) -> tuple[Machine, LogStream] | None:
        """Return the machine and stream that serve the partition, None if there is none yet."""
        for machine in self._world.machines if self._is_made else ():
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                stream = host.stream(group_id) if host is not None else None
                if stream is not None and stream.topic == TOPIC and stream.serving:
                    return machine, stream
        return None

    def append(self, machine: Machine, stream: LogStream) -> list[Appended]:
        """Append one batch. The list receives its result once it is known, a refusal at once."""
        life = machine.life
        assert life is not None, f"{machine.name} leads"
        batch = memoryview(build_batch([Record(None, bytes(VALUE_BYTES))]))
        fates: list[Appended] = []
        self._world.time.enter(life.clock)
        deadline_ns = life.clock.now_ns() + FILLED_NS
        stream.append(batch, read_header(batch), deadline_ns=deadline_ns, done=fates.append)
        self._world.time.enter(None)
        return fates

    def append_many(self, machine: Machine, stream: LogStream) -> None:
        """Append until `UNDER_WAY_MAX` batches have no result."""
        self._under_way = [fates for fates in self._under_way if not fates]
        for _ in range(UNDER_WAY_MAX - len(self._under_way)):
            self._under_way.append(self.append(machine, stream))


def judge_filled_disks(world: World) -> None:
    """Fill the disks, check, and make room again. The world must have settled before."""
    filling = Filling(world)
    if not world.wait(MADE_NS, lambda: filling.leader() is not None and not world.watch.settled()):
        return
    led = filling.leader()
    assert led is not None, "it was there just now"
    leader, stream = led
    servers = {server_of(replica) for replica in stream.group.members}
    replicas = [machine for machine in world.machines if machine.server_id in servers]
    others = [machine for machine in replicas if machine is not leader]
    term, lives = stream.term, [machine.life for machine in replicas]
    weather = world.network.weather
    world.network.weather = replace(weather, loss=0.0)
    world.note(f"all disks but that of {leader.name} fill")
    for other in others:
        other.fill_disk(0)

    def is_filled() -> bool:
        filling.append_many(leader, stream)
        return all(map(_is_full, others))

    def is_as_before() -> bool:
        is_led = stream.serving and stream.term == term
        return is_led and lives == [machine.life for machine in replicas]

    filled = world.wait(FILLED_NS, lambda: not is_as_before() or is_filled())
    if filled and is_as_before():
        _judge_deletion(world, leader, stream, is_as_before)
        world.run_for(HEARD_NS)
    if filled and is_as_before() and not filling.append(leader, stream):
        world.watch.violate("records-wait", f"{leader.name} takes what others have no room for")
    for other in others:
        other.disk.room = None
    world.network.weather = weather


def _is_full(machine: Machine) -> bool:
    host = machine.server.host if machine.server is not None else None
    return host is not None and not host.state.store.accepts_appends


def _judge_deletion(
    world: World, leader: Machine, stream: LogStream, is_as_before: Callable[[], bool]
) -> None:
    answers: list[ErrorCode] = []
    life = leader.life
    assert life is not None, f"{leader.name} leads"
    world.time.enter(life.clock)
    stream.delete_records(
        stream.high_watermark, deadline_ns=life.clock.now_ns() + ANSWERED_NS, done=answers.append
    )
    world.time.enter(None)
    world.wait(ANSWERED_NS, lambda: bool(answers) or not is_as_before())
    if is_as_before() and answers != [ErrorCode.NONE]:
        full = [machine.name for machine in world.machines if _is_full(machine)]
        what = f"{stream.topic}: {answers} after {ANSWERED_NS // MS} ms, {full} are full"
        world.watch.violate("deletion-waits", what)
