"""Failover after the leader's process has died, over three hosts whose ticks coincide."""

from typing import Any

import pytest

from raft.node import RawNode
from vdl.clock import MS


def survivors(cluster: Any, group_id: int) -> tuple[Any, list[Any]]:
    """Return the leader's node, and the two others in the order of their turns."""
    leader = cluster.nodes[cluster.leader(group_id).leader_server]
    placement = leader.host.groups[group_id].placement
    order = [cluster.nodes[replica >> 16] for replica in placement]
    return leader, [node for node in order if node is not leader]


def gap_ms(cluster: Any, group_id: int, died_ns: int) -> float:
    """Return the time without a leader since then, in steps of a millisecond."""
    for _ in range(5_000):
        try:
            cluster.leader(group_id)
        except AssertionError:
            cluster.run(1)
        else:
            break
    return float((cluster.time.now_ns - died_ns) / MS)


def test_survivors_stand_in_turn(cluster: Any) -> None:
    """Two candidates in one tick split the votes of the remaining replicas."""
    groups = [cluster.create_topic(f"t{n}") for n in range(10)]
    cluster.run(1_000)
    leader, (first, _) = survivors(cluster, groups[0])
    died_ns = cluster.time.now_ns
    leader.crash()
    for group_id in groups:
        assert gap_ms(cluster, group_id, died_ns) < 40
        assert cluster.leader(group_id).leader_server == first.id


def test_replica_that_lacks_entries_loses_its_turn_and_no_time(cluster: Any) -> None:
    """Its request is refused, and the other one campaigns at its turn."""
    group_id = cluster.create_topic()
    cluster.run(500)
    leader, (first, second) = survivors(cluster, group_id)
    first.host.frame = lambda *arguments: None
    cluster.append(cluster.leader(group_id))
    cluster.run(5)
    ends = [node.host.groups[group_id].node.last_index for node in (first, second)]
    assert ends[0] < ends[1]
    died_ns = cluster.time.now_ns
    leader.crash()
    del first.host.frame
    assert gap_ms(cluster, group_id, died_ns) < 80
    assert cluster.leader(group_id).leader_server == second.id


@pytest.mark.parametrize("why", ["full", "closed"])
def test_survivor_that_should_not_lead_comes_last(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It would otherwise have the first turn.

    If its disk is full, leadership would move to it and away again; if it serves no clients, no
    replica would campaign in its turn.
    """
    groups = [cluster.create_topic(f"t{n}") for n in range(10)]
    cluster.run(500)
    leader, (first, second) = survivors(cluster, groups[0])
    if why == "closed":
        first.crash()
        cluster.closed.add(first.id)
        first.start()
    else:
        store = type("FullStore", (type(first.store),), {"accepts_appends": False})
        monkeypatch.setattr(first.store, "__class__", store)
    cluster.run(3_000)
    assert {leader.id} == {cluster.leader(group_id).leader_server for group_id in groups}
    terms = [leader.host.groups[group_id].node.term for group_id in groups]
    died_ns = cluster.time.now_ns
    leader.crash()
    for group_id, term in zip(groups, terms, strict=True):
        assert gap_ms(cluster, group_id, died_ns) < 40
        assert cluster.leader(group_id).leader_server == second.id
        assert cluster.leader(group_id).group.node.term == term + 1


def test_survivor_campaigns_when_a_leader_that_hears_nobody_gives_up(cluster: Any) -> None:
    """The others hear the leader, and learn only from its list that it resigned.

    One of them campaigns at once, the other waits: an election timeout later both would campaign.
    """
    groups = [cluster.create_topic(f"t{n}") for n in range(10)]
    cluster.run(1_000)
    leader, others = survivors(cluster, groups[0])
    for other in others:
        cluster.network.cut(other.id, leader.id)
    led = [group_id for group_id in groups if leader.host.groups[group_id].node.is_leader]
    assert led
    terms = {group_id: leader.host.groups[group_id].node.term for group_id in led}
    while any(leader.host.groups[group_id].node.is_leader for group_id in led):
        cluster.run(1)
    cluster.run(
        350
    )  # its list is sent ten times a second, and one may receive it later than the other
    for group_id in led:
        serving = [other for other in others if other.host.stream(group_id).serving]
        assert len(serving) == 1
        assert serving[0].host.groups[group_id].node.term == terms[group_id] + 1


@pytest.mark.parametrize("phase_ms", range(0, 600, 100))
def test_leader_that_hears_nobody_leads_no_longer_than_an_election_timeout(
    cluster: Any, phase_ms: int
) -> None:
    """It may take two heartbeats longer.

    Producers are active, so the others were heard of until the end, in any phase of the
    check-quorum period.
    """
    group_id = cluster.create_topic("t")
    leader, others = survivors(cluster, group_id)
    group = leader.host.groups[group_id]

    def produces(milliseconds: int) -> None:
        for _ in range(milliseconds // 10):
            cluster.append(leader.host.stream(group_id), ms=10)
            cluster.run(10)

    produces(1_000 + phase_ms)
    for other in others:
        cluster.network.cut(other.id, leader.id)
    produces(490)  # the last byte may have come a tenth of a second before
    assert group.node.is_leader
    produces(330)
    assert not group.node.is_leader


def test_late_acknowledgements_cost_quiet_groups_no_leader(cluster: Any) -> None:
    """All messages between servers are late by more than half an election timeout each way.

    So it is between overloaded loops. All messages arrive, and no leader is replaced.
    """
    groups = [cluster.create_topic(f"t{n}") for n in range(10)]
    cluster.run(1_000)
    terms = {group_id: cluster.leader(group_id).term for group_id in groups}
    for delay_ms in range(0, 320, 20):
        cluster.network.delay_ns = lambda source, target, size, ms=delay_ms: ms * MS
        cluster.run(1_000)
    cluster.run(20_000)
    assert {group_id: cluster.leader(group_id).term for group_id in groups} == terms


def test_election_timer_that_was_nearly_due_is_nobodys_turn(cluster: Any) -> None:
    """Leader lists prove that a leader is alive, and are looked up only when a timer is due.

    That may be, for all remaining replicas, in the tick in which the leader dies.
    """
    group_id = cluster.create_topic()
    cluster.run(1_000)
    leader, others = survivors(cluster, group_id)
    for node in others:
        follower = node.host.groups[group_id].node
        follower.set_election_timeout(follower.raft.election_elapsed + 1)
    died_ns = cluster.time.now_ns
    leader.crash()
    assert gap_ms(cluster, group_id, died_ns) < 40


def test_survivors_that_stand_at_one_time_split_no_vote(tied: Any) -> None:
    """If turns coincide, one of two candidates gives way to the other."""
    gaps = []
    for n in range(5):
        group_id = tied.create_topic(f"t{n}")
        tied.run(1_000)
        leader, _ = survivors(tied, group_id)
        died_ns = tied.time.now_ns
        leader.crash()
        gaps.append(gap_ms(tied, group_id, died_ns))
        leader.start()
        tied.run(500)
    assert max(gaps) < 60


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("sync_ms", [100, 300, 500, 700, 1_500, 2_000])
def test_slow_disks_cost_their_syncs_and_no_second_election(
    cluster: Any, sync_ms: int, is_busy: bool
) -> None:
    """The cost is the candidate's vote, another one and the first entry, in series.

    What was being written before comes first. A timer that starts another election in the meantime
    would repeat all of it, for ever.
    """
    groups = [cluster.create_topic(f"t{n}") for n in range(6)]
    cluster.run(1_000)
    leader, _ = survivors(cluster, groups[0])
    terms = [leader.host.groups[group_id].node.term for group_id in groups]
    for node in cluster.nodes.values():
        node.workers.sync_ns = sync_ms * MS
    cluster.run(3_000)
    if is_busy:
        for group_id in groups:
            cluster.append(leader.host.stream(group_id), ms=60_000)
        cluster.run(sync_ms * 0.7)
    died_ns = cluster.time.now_ns
    leader.crash()
    gaps = [gap_ms(cluster, group_id, died_ns) for group_id in groups]
    assert max(gaps) < (4 if is_busy else 3) * sync_ms + 100
    assert [cluster.leader(group_id).group.node.term - 1 for group_id in groups] == terms


def test_candidate_that_dies_is_not_waited_for(cluster: Any) -> None:
    """A voter with a slow disk would wait for its election for four times as long."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    leader = cluster.nodes[cluster.leader(group_id).leader_server]
    group = leader.host.groups[group_id]
    transferee = next(replica for replica in group.placement if replica != group.replica_id)
    candidate = cluster.nodes[transferee >> 16]
    sync_ms = 800
    for node in cluster.nodes.values():
        node.workers.sync_ns = sync_ms * MS
    group.node.transfer_leader(transferee)
    leader.host.mark_dirty(group)
    others = [node.host.groups[group_id].node for node in cluster.nodes.values()]
    for _ in range(5_000):
        cluster.run(1)
        if sum(node.vote == transferee and not node.raft.vote_pending for node in others) > 1:
            break
    died_ns = cluster.time.now_ns
    candidate.crash()
    assert gap_ms(cluster, group_id, died_ns) < 5 * sync_ms + 100


def test_survivor_without_a_majority_soon_stops_asking(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its election timer goes on."""
    asked_ns: list[int] = []
    campaign_soon = RawNode.campaign_soon

    def noted(node: RawNode, ticks: int) -> None:
        asked_ns.append(cluster.time.now_ns)
        campaign_soon(node, ticks)

    monkeypatch.setattr(RawNode, "campaign_soon", noted)
    group_id = cluster.create_topic()
    cluster.run(500)
    leader, (first, _) = survivors(cluster, group_id)
    died_ns = cluster.time.now_ns
    first.crash()
    leader.crash()
    cluster.run(20_000)
    assert asked_ns
    assert max(asked_ns) - died_ns < 1_000 * MS


def test_dead_server_costs_its_groups_no_messages_and_is_fed_when_it_returns(cluster: Any) -> None:
    """Thousands of groups would send ten messages a second each for as long as it is away."""
    groups = [cluster.create_topic(f"t{n}") for n in range(20)]
    cluster.run(1_000)
    dead = cluster.nodes[3]
    dead.crash()
    cluster.run(2_000)
    for group_id in groups:
        cluster.append(cluster.leader(group_id))
    cluster.run(1_000)
    living = [node.host for node in cluster.nodes.values() if node is not dead]
    before = [host.stats.messages_out for host in living]
    cluster.run(5_000)
    assert [host.stats.messages_out for host in living] == before
    dead.start()
    cluster.run(1_000)
    for group_id in groups:
        log = cluster.leader(group_id).group.node
        assert dead.host.groups[group_id].node.last_index == log.last_index
        assert dead.host.groups[group_id].node.commit == log.commit


def test_server_whose_link_was_lost_is_silent_until_it_is_linked_or_refuses(cluster: Any) -> None:
    """Clients are sent to a server that may be alive, and to none that is certainly gone."""
    cluster.create_topic()
    cluster.run(1_000)
    deaf = cluster.nodes[1]
    assert deaf.host.silent_servers() == set()
    for other in (2, 3):
        cluster.network.cut(other, 1)
    cluster.run(4_000)
    assert deaf.host.alive_servers() == [1]
    assert deaf.host.silent_servers() == {2, 3}
    cluster.nodes[2].crash()
    cluster.network.heal(2, 1)
    cluster.network.heal(3, 1)
    cluster.run(4_000)
    assert deaf.host.alive_servers() == [1, 3]
    assert deaf.host.silent_servers() == set()
