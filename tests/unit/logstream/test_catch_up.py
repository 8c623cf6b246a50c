"""Followers far behind are fed from disk: reads that are not needed any more are not made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from segments.api import NotInMemory
from segments.memory import MemoryLog, MemoryStore
from vdl.logstream.group.feed_throttle import GAIN
from vdl.logstream.options import HostOptions

RESETS = 30
ENTRIES = 20


class FarBehind:
    """A follower that returns to a leader whose log has left memory, and whose disk hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: int) -> None:
        from tests.unit.logstream.conftest import Cluster

        self.cluster = cluster = Cluster(**options)
        self.group_id = cluster.create_topic()
        stream = cluster.leader(self.group_id)
        self.leader = stream.leader_server
        self.behind = self.leader % 3 + 1
        cluster.nodes[self.behind].crash()
        cluster.run(50)
        for _ in range(ENTRIES):
            cluster.append(stream)
            cluster.run(2)
        self.begun = 0
        self.hanging: list[Callable[[], None]] | None = []
        self.group = cluster.nodes[self.leader].host.groups[self.group_id]
        entries = MemoryLog.entries

        def from_memory(log: MemoryLog, first: int, end: int, bytes_max: int) -> Any:
            if log is self.group.log:
                raise NotInMemory(first, end)
            return entries(log, first, end, bytes_max)

        def from_disk(
            _store: Any, log: MemoryLog, first: int, end: int, bytes_max: int, done: Any
        ) -> None:
            assert log is self.group.log

            def answer() -> None:
                done(entries(log, first, end, bytes_max))

            self.begun += 1
            if self.hanging is None:
                cluster.nodes[self.leader].clock.call_later(1_000, answer)
            else:
                self.hanging.append(answer)

        monkeypatch.setattr(MemoryLog, "entries", from_memory)
        monkeypatch.setattr(MemoryStore, "entries_cold", from_disk)
        cluster.nodes[self.behind].start()
        cluster.run(400)

    def reset(self) -> None:
        """Reset the link between the two, and let it be made again."""
        self.cluster.network.reset(self.leader, self.behind)
        self.cluster.run(400)

    @property
    def waiting(self) -> int:
        """Reads that have not begun, for all the leader's groups."""
        pace = self.group.feeding.throttle
        return sum(map(len, pace._waiting.values())) + len(pace._behind)

    @property
    def is_back(self) -> bool:
        """True if the follower has everything."""
        stream = self.cluster.nodes[self.behind].host.stream(self.group_id)
        return bool(stream is not None and stream.high_watermark == ENTRIES)


def test_resets_of_a_link_do_not_ask_a_disk_that_hangs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most one read is under way for a follower, for any number of requests."""
    world = FarBehind(monkeypatch)
    assert world.begun == 1
    for _ in range(RESETS):
        world.reset()
        assert world.waiting <= 1
    assert world.begun == 1
    hanging, world.hanging = world.hanging or [], None
    for answer in hanging:
        answer()
    world.cluster.run(1_000)
    assert world.is_back
    assert world.begun <= 3
    assert world.waiting == 0


def test_resets_of_a_link_leave_no_reads_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """While feeding is slow: each read of the maximum size takes a minute, and one runs."""
    world = FarBehind(monkeypatch, catch_up_bytes_per_second=HostOptions().message_bytes_max // 60)
    world.hanging, hanging = None, world.hanging or []
    counts = []
    for _ in range(RESETS):
        world.reset()
        counts.append(world.begun + world.waiting)
    assert max(counts) <= 2
    for answer in hanging:
        answer()
    world.cluster.run(70_000)
    assert world.is_back
    assert world.begun <= 3


def test_leader_that_lost_its_office_feeds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting reads are withdrawn."""
    world = FarBehind(monkeypatch, catch_up_bytes_per_second=1)
    world.reset()
    assert world.waiting == 1
    other = 6 - world.leader - world.behind
    for server in (other, world.behind):
        world.cluster.network.cut(world.leader, server)
        world.cluster.network.cut(server, world.leader)
    world.cluster.run(5_000)
    assert not world.group.node.is_leader
    assert world.waiting == 0


def test_replica_taken_out_of_service_feeds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is about to be deleted."""
    world = FarBehind(monkeypatch, catch_up_bytes_per_second=1)
    world.reset()
    assert world.waiting == 1
    world.cluster.nodes[world.leader].host.stop_group(world.group_id, deleted=True)
    assert world.waiting == 0


IN_MEMORY = 50
"""Newest entries, which a log has in memory."""


def test_follower_outside_memory_returns_though_more_is_written_than_the_limit_feeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A constant limit would leave it behind for as long as producers go on."""
    from tests.unit.logstream.conftest import Cluster

    cluster = Cluster(catch_up_bytes_per_second=5_000, message_bytes_max=2_000)
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = stream.leader_server
    behind = leader % 3 + 1
    group = cluster.nodes[leader].host.groups[group_id]
    entries = MemoryLog.entries

    def from_memory(log: MemoryLog, first: int, end: int, bytes_max: int) -> Any:
        if log is group.log and first <= log.last_index - IN_MEMORY:
            raise NotInMemory(first, end)
        return entries(log, first, end, bytes_max)

    def from_disk(
        _store: Any, log: MemoryLog, first: int, end: int, bytes_max: int, done: Any
    ) -> None:
        def answer() -> None:
            found = entries(log, first, end, bytes_max)
            fed.append(len(found))
            done(found)

        cluster.nodes[leader].clock.call_later(1_000, answer)

    monkeypatch.setattr(MemoryLog, "entries", from_memory)
    monkeypatch.setattr(MemoryStore, "entries_cold", from_disk)

    def produce(seconds: int) -> None:
        """Produce 20 kB a second, four times the limit."""
        for _ in range(100 * seconds):
            cluster.append(stream, b"v" * 140)
            cluster.run(10)

    fed: list[int] = []
    cluster.nodes[behind].crash()
    produce(5)
    cluster.nodes[behind].start()
    produce(1)
    fed.clear()
    produce(2)
    # 100 entries a second are written; the limit alone allows a sixth of that.
    assert 2 * 100 * GAIN * 0.8 < sum(fed) < 2 * 100 * GAIN * 1.4
    produce(12)
    late = cluster.nodes[behind].host.stream(group_id)
    assert late is not None
    assert stream.serving
    assert stream.high_watermark - late.high_watermark < IN_MEMORY
