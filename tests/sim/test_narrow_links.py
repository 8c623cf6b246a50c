"""Links of 100 Mbit/s that a few partitions fill: what is quiet beside them must not notice."""

from __future__ import annotations

from functools import partial

import pytest

from vdl.clock import MS
from vdl.kafka.wire import create_topics
from vdl.logstream.stream import Appended, LogStream
from vdl.records import PLAIN, Record, build_batch, check_batch
from vdl.sim.client import Failure, Message
from vdl.sim.machine import Machine
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
BULK = "bulk"
BATCH_BYTES = 256 << 10
IN_FLIGHT = 48
"""Batches that producers have on their way to a partition: 12 MiB, a second of the link."""
KEPT_BYTES = 16 << 20
MBIT_100 = 12_500_000
QUIET = Options(
    partitions=10,
    idempotent_producers=1,
    plain_producers=0,
    readers=0,
    members=0,
    sends_per_second=2,
    segment_kib=4 << 10,
    journal_kib=16 << 10,
    checkpoint_kib=16 << 10,
    cache_kib=64 << 10,
)


class Flood:
    """Producers that keep partitions of a topic as busy as the servers let them."""

    def __init__(self, world: World, partitions: int) -> None:
        self._world = world
        self._partitions = partitions
        self._value = bytes(range(256)) * (BATCH_BYTES // 256)
        self._on_way = dict.fromkeys(range(partitions), 0)
        self.acknowledged_bytes = 0
        self.is_over = False

    def begin(self) -> None:
        """Make the topic and fill it until told otherwise."""
        client = self._world._fresh_client("flood")
        created: list[int] = []

        def build(_version: int) -> create_topics.CreateTopicsRequest:
            topic = create_topics.CreatableTopic(BULK, self._partitions, -1)
            for name, size in (("retention.bytes", KEPT_BYTES), ("segment.bytes", KEPT_BYTES // 4)):
                topic.configs.append(create_topics.CreatableTopicConfig(name, str(size)))
            return create_topics.CreateTopicsRequest([topic], timeout_ms=2_000)

        def answered(response: Message | Failure) -> None:
            assert not isinstance(response, Failure), response
            created.append(response.topics[0].error_code)

        client.call_any(create_topics, build, answered)
        assert self._world.wait(10 * S, lambda: bool(created))
        assert created == [0]
        assert self._world.wait(10 * S, lambda: len(self._led()) == self._partitions)
        self._go_on()

    def _led(self) -> list[tuple[Machine, LogStream]]:
        """Where each partition is served."""
        found: list[tuple[Machine, LogStream]] = []
        for machine in self._world.machines:
            host = machine.server.host if machine.server is not None else None
            for group_id in sorted(host.groups) if host is not None else ():
                assert host is not None
                stream = host.stream(group_id)
                if stream is not None and stream.topic == BULK and stream.serving:
                    found.append((machine, stream))
        return found

    def _go_on(self) -> None:
        time = self._world.time
        if self.is_over:
            return
        for machine, stream in self._led():
            life = machine.life
            assert life is not None
            time.enter(life.clock)
            while self._on_way[stream.partition] < IN_FLIGHT:
                batch = memoryview(build_batch([Record(value=self._value)], PLAIN))
                header = check_batch(batch, produce_version=9, bytes_max=1 << 30)
                self._on_way[stream.partition] += 1
                done = partial(self._done, stream.partition)
                deadline_ns = life.clock.now_ns() + 60 * S
                stream.append(batch, header, deadline_ns=deadline_ns, done=done)
            time.enter(None)
        time.after(5 * MS, self._go_on)

    def _done(self, partition: int, appended: Appended) -> None:
        self._on_way[partition] -= 1
        if not appended.error:
            self.acknowledged_bytes += BATCH_BYTES


@pytest.mark.parametrize("busy", [1, 3])
def test_quiet_groups_keep_their_leaders_beside_saturated_ones(busy: int) -> None:
    """Heartbeats, votes and acknowledgements do not queue behind entries."""
    world = World(1, QUIET)
    seconds = 30

    def story() -> None:
        for source in world.machines:
            for target in world.machines:
                if source is not target:
                    world.network.narrow(source.name, target.name, MBIT_100)
        flood = Flood(world, busy)
        flood.begin()
        world.run_for(2 * S)
        elections, before = world.watch.elections, flood.acknowledged_bytes
        world.run_for(seconds * S)
        flood.is_over = True
        assert world.watch.elections == elections, "a leader was lost, and no server or link"
        carried = flood.acknowledged_bytes - before
        assert carried > MBIT_100 * seconds * 8 // 10, f"{carried} bytes: the links were not full"

    outcome = world.live(story)
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])
