"""Followers that may be read from, and the leader's choice for a rack's consumers (KIP-392)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.logstream.conftest import SERVERS, Cluster
from tests.unit.logstream.damage import Damage
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.state.commands import RegisterServer

RACKS = {1: "a", 2: "b", 3: "b"}
SILENCE_MS = 3_000
"""Longer than two election timeouts."""


@pytest.fixture
def racked(cluster: Cluster) -> tuple[Any, int, int]:
    """Return three servers in two racks, a group with some records, and its leader.

    The leader is server 1, in rack `a`.
    """
    world: Any = cluster
    for server, rack in RACKS.items():
        directory_id = world.record.directory_of(server)
        world.propose(RegisterServer(server, directory_id, rack, {}, True))
    group_id = world.create_topic()
    for _ in range(3):
        world.append(world.leader(group_id))
    world.run(3_000)
    assert server_of(world.leader(group_id).group.replica_id) == 1
    return world, group_id, 1


def may_serve(cluster: Any, group_id: int) -> list[int]:
    return [s for s in cluster.servers if cluster.nodes[s].host.may_serve_reads(group_id)]


def chosen(cluster: Any, group_id: int, rack: str, offset: int = 3) -> int:
    server = cluster.nodes[1].host.read_replica(group_id, rack, offset)
    assert isinstance(server, int)
    return server


def test_followers_in_sync_may_be_read_from(racked: tuple[Any, int, int]) -> None:
    cluster, group_id, leader = racked
    assert may_serve(cluster, group_id) == [s for s in SERVERS if s != leader]
    assert not cluster.nodes[2].host.may_serve_reads(999)


def test_leader_names_a_replica_of_the_rack(racked: tuple[Any, int, int]) -> None:
    cluster, group_id, _ = racked
    assert chosen(cluster, group_id, "b") in {2, 3}
    assert chosen(cluster, group_id, "a") == -1  # the leader is in that rack itself
    assert chosen(cluster, group_id, "nowhere") == -1
    assert cluster.nodes[2].host.read_replica(group_id, "b", 0) == -1  # it does not lead


def test_replica_that_is_away_is_not_named(racked: tuple[Any, int, int]) -> None:
    """A replica whose process ended a moment ago is not named either."""
    cluster, group_id, _ = racked
    cluster.nodes[2].crash()
    cluster.run(50)
    assert chosen(cluster, group_id, "b") == 3
    cluster.nodes[3].crash()
    cluster.run(50)
    assert chosen(cluster, group_id, "b") == -1


def test_replica_that_lacks_what_is_asked_for_is_not_named(racked: tuple[Any, int, int]) -> None:
    """Among replicas that lack entries the one is chosen that has those this consumer needs."""
    cluster, group_id, _ = racked
    group = cluster.leader(group_id).group
    behind = replica_id_of(2, 1)
    cluster.nodes[3].crash()
    cluster.run(50)
    cluster.append(cluster.leader(group_id))
    cluster.run(200)
    group.node.raft.progress[behind].match -= 1  # as before it acknowledged the last record
    assert chosen(cluster, group_id, "b", offset=3) == 2
    assert chosen(cluster, group_id, "b", offset=4) == -1


@pytest.mark.parametrize("is_whole", [True, False])
def test_replica_with_damage_is_not_named_until_it_is_repaired(
    racked: tuple[Any, int, int], monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """It would refuse, and the leader would name it again: no server would serve the consumer."""
    cluster, group_id, _ = racked
    cluster.nodes[3].crash()
    damage = Damage(monkeypatch)
    damage.log = cluster.nodes[2].host.groups[group_id].log
    damage.replica = group_id, replica_id_of(2, 1)
    damage.damaged, damage.is_whole = ((1, 2),), is_whole
    cluster.run(2_500)
    assert 2 in cluster.nodes[1].host.in_sync_of(group_id)
    assert chosen(cluster, group_id, "b") == -1
    damage.damaged, damage.is_whole = (), True
    cluster.run(2_500)
    assert chosen(cluster, group_id, "b") == 2
    assert 2 in may_serve(cluster, group_id)


def test_follower_that_hears_no_leader_serves_nobody(racked: tuple[Any, int, int]) -> None:
    """Its knowledge is out of date."""
    cluster, group_id, leader = racked
    cluster.nodes[leader].crash()
    cluster.nodes[2].crash()
    cluster.run(SILENCE_MS)
    assert may_serve(cluster, group_id) == []


def test_learner_and_replaced_replica_serve_nobody(racked: tuple[Any, int, int]) -> None:
    """A leaving replica serves nothing either: it may have been removed without knowing it."""
    cluster, group_id, _ = racked
    host = cluster.nodes[2].host
    group = host.groups[group_id]
    placement = group.placement
    group.placement = tuple(r for r in placement if server_of(r) != 2)
    assert not host.may_serve_reads(group_id)
    group.placement = placement
    assert host.may_serve_reads(group_id)
    membership = group.node.raft.membership
    voters = membership.incoming - {group.replica_id}
    group.node.raft.membership = type(membership)(
        incoming=voters, learners=frozenset({group.replica_id})
    )
    assert not host.may_serve_reads(group_id)


def test_follower_out_of_sync_serves_nobody(racked: tuple[Any, int, int]) -> None:
    """The leader reports so; the follower may be far behind."""
    cluster, group_id, leader = racked
    in_sync = cluster.nodes[leader].host.in_sync[group_id]
    in_sync.replicas -= {replica_id_of(2, 1)}
    cluster.nodes[leader].host.liveness.in_sync_changed(in_sync.group)
    cluster.run(150)
    assert may_serve(cluster, group_id) == [3]


def test_follower_wakes_its_own_readers_when_a_commit_is_heard_of(
    racked: tuple[Any, int, int],
) -> None:
    """The commit index comes with the next entries, or 50 ms later."""
    cluster, group_id, _ = racked
    stream = cluster.nodes[2].host.stream(group_id)
    woken: list[int] = []
    stream.wait_for(stream.high_watermark, lambda: woken.append(stream.high_watermark))
    cluster.append(cluster.leader(group_id))
    cluster.run(100)
    assert woken == [4]
