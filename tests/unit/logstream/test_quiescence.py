"""Idle groups rest while servers are heard, without delaying elections."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raft.follower import become_follower
from raft.node import RawNode
from raft.types import NONE, StateType
from vdl.clock import MS
from vdl.logstream.elections.quiescence import Quiescence
from vdl.logstream.options import TICK_NS
from vdl.state.commands import CreateTopics, NewTopic

RESTED_MS = 15_000
"""Time after which every group rests, having been checked once at most."""


TIMEOUT_NS = 600 * MS
SILENT_NS = Quiescence(1, TIMEOUT_NS).silent_ns


class Woken:
    """A `Quiescence` of server 1 among five, and the ids of the groups that it woke."""

    def __init__(self) -> None:
        self.silences: dict[int, int | None] = dict.fromkeys((2, 3, 4, 5), 0)
        self.woken: list[int] = []
        self.at_rest = Quiescence(1, TIMEOUT_NS)

    def look(self, **silent: int | None) -> None:
        """Check again, with these silences by "s" and server; None: not linked."""
        self.silences |= {int(name[1:]): ns for name, ns in silent.items()}
        linked = {server: ns for server, ns in self.silences.items() if ns is not None}
        unlinked = len(self.silences) - len(linked)
        self.woken = [g.group_id for g in self.at_rest.look(linked, unlinked=unlinked)]


def fake_group(group_id: int, *servers: int) -> Any:
    membership = SimpleNamespace(incoming={server << 16 | 1 for server in servers}, outgoing=set())
    node = SimpleNamespace(raft=SimpleNamespace(membership=membership))
    return SimpleNamespace(group_id=group_id, node=node)


def test_group_rests_while_its_leader_is_heard_and_others_do_not_matter() -> None:
    """At the limit and below it."""
    world = Woken()
    assert not world.at_rest.follow(fake_group(11, 1, 2, 3), 2), "nothing is known yet"
    world.look(s2=SILENT_NS - 1, s3=SILENT_NS)
    assert world.at_rest.follow(fake_group(11, 1, 2, 3), 2)
    assert not world.at_rest.follow(fake_group(12, 1, 2, 3), 3)
    world.look(s2=SILENT_NS)
    assert world.woken == [11]
    world.look(s2=SILENT_NS, s3=0)
    assert world.woken == []
    assert len(world.at_rest) == 0


def test_led_group_rests_while_a_majority_is_heard() -> None:
    """Any two silent or lost servers concern it only if they are its own."""
    world = Woken()
    world.look()
    for group in (fake_group(11, 1, 2, 3), fake_group(12, 1, 4, 5), fake_group(13, 1, 2)):
        assert world.at_rest.lead(group)
    world.look(s2=SILENT_NS)
    assert world.woken == [13]
    assert not world.at_rest.lead(fake_group(13, 1, 2))
    world.look(s3=None)
    assert world.woken == [11]
    world.look(s4=SILENT_NS, s2=0, s3=0)
    assert world.woken == []
    world.look(s4=0, s2=SILENT_NS, s5=SILENT_NS)
    assert world.woken == []
    assert world.at_rest.lead(fake_group(14, 1, 3, 4))
    world.look(s4=SILENT_NS)
    assert world.woken == [12]


def test_group_that_rests_for_another_leader_is_woken_for_that_one() -> None:
    world = Woken()
    world.look()
    group = fake_group(11, 1, 2, 3)
    assert world.at_rest.follow(group, 2)
    assert world.at_rest.follow(group, 3)
    world.look(s2=SILENT_NS)
    assert world.woken == []
    world.look(s3=SILENT_NS)
    assert world.woken == [11]


# --- with real groups ---------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives a node's id each time it is checked for when it is due."""
    asked: list[int] = []
    ticks_until_due = RawNode.ticks_until_due

    def noted(node: RawNode) -> int:
        asked.append(node.id)
        return ticks_until_due(node)

    monkeypatch.setattr(RawNode, "ticks_until_due", noted)
    return asked


def rested(cluster: Any, partitions: int = 1) -> list[int]:
    new = NewTopic("t", b"t".ljust(16), assignments=[[1, 2, 3]] * partitions)
    groups: list[int] = cluster.propose(CreateTopics([new])).topics[0].group_ids
    cluster.run(RESTED_MS)
    return groups


def wait_led(cluster: Any, group_id: int, *, without: int) -> float:
    """Return the milliseconds until another server than `without` serves, in steps of ten."""
    for passed_ms in range(0, 10_000, 10):
        for node in cluster.nodes.values():
            stream = node.host.stream(group_id)
            if node.id != without and stream is not None and stream.serving:
                return passed_ms
        cluster.run(10)
    raise AssertionError("nobody else serves")


def test_groups_at_rest_cost_next_to_nothing(cluster: Any, looks: list[int]) -> None:
    """Without rest each is checked once or twice a second, on each server."""
    rested(cluster, 50)
    assert all(len(node.host.timers.at_rest) >= 50 for node in cluster.nodes.values())
    looks.clear()
    cluster.run(10_000)
    assert len(looks) < 50 * 3 * 8  # two or three for each check, and some for the catalog


def test_silent_leader_of_a_group_at_rest_is_replaced_in_the_normal_time(cluster: Any) -> None:
    """Its process is stopped: links stay, and only silence shows it."""
    (group_id,) = rested(cluster)
    cluster.network.pause(1)
    cluster.nodes[1].clock.pause()
    longest_ms = 2 * cluster.options.election_ticks * TICK_NS / MS
    assert longest_ms / 2 - 150 <= wait_led(cluster, group_id, without=1) <= longest_ms + 200


def test_leader_of_a_group_at_rest_whose_link_is_cut_is_given_an_election_timeout(
    cluster: Any,
) -> None:
    """The timeout counts from when it was last heard: rest neither shortens nor restarts it."""
    (group_id,) = rested(cluster)
    for other in (2, 3):
        cluster.network.reset(1, other)
        cluster.network.cut(1, other)
        cluster.network.cut(other, 1)
    timeout_ms = cluster.options.election_ticks * TICK_NS / MS
    taken_ms = wait_led(cluster, group_id, without=1)
    assert timeout_ms - 150 <= taken_ms <= 2 * timeout_ms + 200
    cluster.run(2 * timeout_ms)
    assert not cluster.nodes[1].host.groups[group_id].node.is_leader, "it hears no majority"


def test_leader_at_rest_that_is_alone_gives_up_within_two_timeouts(cluster: Any) -> None:
    """It is cut off without link errors: its own timers show it."""
    (group_id,) = rested(cluster)
    for other in (2, 3):
        cluster.network.cut(1, other)
        cluster.network.cut(other, 1)
    node = cluster.nodes[1].host.groups[group_id].node
    assert node.is_leader
    cluster.run(2 * cluster.options.election_ticks * TICK_NS / MS + 200)
    assert not node.is_leader


def test_followers_at_rest_of_a_leader_that_resigned_do_not_all_stand_at_once(
    cluster: Any,
) -> None:
    """Its list reports so; two candidates in one tick split the votes of the remaining replicas."""
    groups = rested(cluster, 20)
    host = cluster.nodes[1].host
    for group_id in groups:
        group = host.groups[group_id]
        become_follower(group.node.raft, group.node.term, NONE)
        host.mark_dirty(group)
    terms = {cluster.nodes[2].host.groups[group_id].node.term for group_id in groups}
    cluster.run(3_000)
    leaders = [cluster.leader(group_id) for group_id in groups]
    ends = [leader.group.node.term for leader in leaders]
    assert sum(ends) / len(ends) < max(terms) + 1.5, "votes were split"


def test_transfer_of_a_group_at_rest_ends_as_soon_as_ever(
    make_cluster: Callable[..., Any],
) -> None:
    """A failed transfer ends after an election timeout: proposals do not wait any longer."""
    cluster = make_cluster()
    (group_id,) = rested(cluster)
    leader = cluster.nodes[1].host.groups[group_id]
    cluster.nodes[2].crash()
    cluster.run(RESTED_MS)
    leader.node.transfer_leader(2 << 16 | 1)
    leader.node.raft.lead_transferee = 2 << 16 | 1
    cluster.nodes[1].host.mark_dirty(leader)
    cluster.run(2 * cluster.options.election_ticks * TICK_NS / MS)
    assert not leader.node.transferring
    assert leader.node.state is StateType.LEADER


def test_learner_does_not_rest(cluster: Any) -> None:
    """It has no timer of its own, and may be a voter with the next entry."""
    (group_id,) = rested(cluster)
    host = cluster.nodes[2].host
    group = host.groups[group_id]
    assert group_id in host.timers.at_rest
    host.timers.wake_all()
    cluster.run(200)
    group.node.raft.is_voter = False
    tick = host.loop_time.tick()
    host.timers._fall_due(group, tick)
    assert group_id not in host.timers.at_rest
    assert group.due_tick - tick <= cluster.options.election_ticks
