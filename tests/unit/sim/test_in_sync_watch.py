"""The watch of reported in-sync replicas, and of acknowledgements that need copies."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.clock import MS
from vdl.logstream.host import Host
from vdl.sim.in_sync_watch import InSyncWatch
from vdl.sim.options import Options
from vdl.sim.world import TOPIC, World

S = 1_000 * MS
STRICT = Options(
    coordinators=1, partitions=1, idempotent_producers=1, readers=0, members=0, min_in_sync=3
)


def names(world: World) -> set[str]:
    return {violation.name for violation in world.watch.violations}


def deafen(world: World, seconds: float) -> None:
    """Cut a follower of the topic off from RAFT frames, though its links are up."""
    world.frames.active = True
    leader = world.leader()
    (deaf, *_) = [machine for machine in world.machines if machine is not leader]
    world.frames.deaf.add(deaf.server_id)
    world.run_for(int(seconds * S))
    world.frames.deaf.clear()


def world_of(options: Options) -> World:
    world = World(1, options)
    world.frames.deafness = True
    return world


def test_follower_that_starves_breaks_nothing() -> None:
    """It leaves the list, strict appends wait or are refused, and all is in sync at the end."""
    world = world_of(STRICT)
    outcome = world.live(lambda: deafen(world, 6))
    assert outcome.violations == []
    assert outcome.acknowledgements
    assert world.watch._in_sync.checked


def test_list_that_means_links_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that report all linked servers report a starving follower."""
    monkeypatch.setattr(Host, "in_sync_of", lambda host, group_id: tuple(host.alive_servers()))
    world = world_of(Options(coordinators=1, partitions=1, idempotent_producers=2))
    world.live(lambda: deafen(world, 6))
    assert names(world) == {"not-in-sync"}


def test_acknowledgement_on_a_majority_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """`min.insync.replicas` = 3: while one follower starves nothing may be acknowledged."""
    from vdl.logstream.group import log_stream as stream

    def append(self: Any, *arguments: Any, copies_min: int = 1, **named: Any) -> None:
        original(self, *arguments, copies_min=1, **named)

    original = stream.LogStream.append
    monkeypatch.setattr(stream.LogStream, "append", append)
    world = world_of(STRICT)
    world.live(lambda: deafen(world, 3))
    assert names(world) == {"too-few-copies"}
    assert f"{TOPIC}-0" in str(world.watch.violations[0])


def test_settled_world_has_all_replicas_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica missing from the list is not healed, whatever its log holds."""
    world = World(2, Options(coordinators=1, partitions=1))
    assert world.live(lambda: world.run_for(S)).violations == []
    assert world.watch.settled() == ""
    monkeypatch.setattr(Host, "in_sync_of", lambda host, group_id: (1,))
    assert "in sync" in world.watch.settled()


def test_watch_without_servers_looks_at_nothing() -> None:
    world = World(3, Options())
    watch = InSyncWatch([], world.watch.raft, lambda name, detail: None)
    watch.look(0)
    assert not watch.checked
