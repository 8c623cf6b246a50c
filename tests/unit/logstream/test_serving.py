"""A server that serves no clients leads no groups that they need, and its peers know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raft.messages import MsgTimeoutNow
from vdl.clock import MS
from vdl.logstream.elections import overload
from vdl.logstream.options import TICK_NS
from vdl.logstream.state import CATALOG_GROUP


def led(node: Any) -> list[int]:
    """Return the groups that a server leads."""
    return [number for number, group in node.host.groups.items() if group.node.is_leader]


def leader_of(cluster: Any, group_id: int) -> int:
    """Return the server that leads a group, 0 for none."""
    live = [node for node in cluster.nodes.values() if not node.clock.stopped]
    return next((node.id for node in live if group_id in led(node)), 0)


def start_closed(cluster: Any, server_id: int) -> Any:
    """Restart a server that does not serve."""
    node = cluster.nodes[server_id]
    node.crash()
    cluster.closed.add(server_id)
    node.start()
    return node


def test_server_that_does_not_serve_is_elected_by_nobody_when_another_goes(cluster: Any) -> None:
    """It is the preferred leader, and the present leader goes.

    The third server leads, though only after an election timeout.
    """
    group_id = cluster.create_topic()
    assert leader_of(cluster, group_id) == 1
    closed = start_closed(cluster, 1)
    cluster.run(3_000)
    second = leader_of(cluster, group_id)
    assert second in {2, 3}
    cluster.nodes[second].crash()
    cluster.run(3_000)
    assert leader_of(cluster, group_id) == 5 - second
    cluster.nodes[second].start()
    cluster.run(10_000)
    assert led(closed) == []
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(100)
    assert fates[0].error == 0
    closed.host.begin_serving()
    cluster.run(12_000)
    assert leader_of(cluster, group_id) == 1


def test_server_that_does_not_serve_votes_and_acknowledges(cluster: Any) -> None:
    """It works as a follower like any other."""
    group_id = cluster.create_topic()
    start_closed(cluster, 1)
    cluster.run(3_000)
    second = leader_of(cluster, group_id)
    cluster.nodes[5 - second].crash()
    cluster.run(2_000)
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(100)
    assert fates[0].error == 0
    cluster.nodes[5 - second].start()
    cluster.run(1_000)
    cluster.nodes[second].crash()
    cluster.run(3_000)
    assert leader_of(cluster, group_id) == 5 - second


def test_server_that_does_not_serve_is_handed_nothing(cluster: Any) -> None:
    """KIP-460: a request for the preferred leader is answered that it is not available."""
    group_id = cluster.create_topic()
    start_closed(cluster, 1)
    cluster.run(3_000)
    leader = leader_of(cluster, group_id)
    refused: list[frozenset[int] | None] = []
    cluster.nodes[leader].host.elect_preferred(
        leader, [group_id], deadline_ns=cluster.deadline(), done=refused.append
    )
    cluster.run(500)
    assert refused == [frozenset({group_id})]
    assert not cluster.nodes[leader].host.groups[group_id].node.transferring


def test_server_that_does_not_serve_does_not_campaign_when_it_is_told_to(cluster: Any) -> None:
    """Thesis §3.10: a peer of an older version may not know the status."""
    group_id = cluster.create_topic()
    closed = start_closed(cluster, 1)
    cluster.run(3_000)
    leader = cluster.nodes[leader_of(cluster, group_id)].host.groups[group_id].node
    replica = closed.host.groups[group_id].node
    term = replica.term
    replica.step(MsgTimeoutNow(replica.id, leader.id, term))
    cluster.run(1_000)
    assert replica.term == term
    assert led(closed) == []


def test_set_in_which_no_server_serves_leads_the_catalog_and_nothing_else(
    make_cluster: Callable[..., Any],
) -> None:
    """No server serves before the catalog has a leader. When one serves, it gets the catalog."""
    cluster = make_cluster()
    cluster.create_topic()
    for node in cluster.nodes.values():
        node.crash()
    cluster.closed.update(cluster.servers)
    for node in cluster.nodes.values():
        node.start()
    cluster.run(3_000)
    assert [number for node in cluster.nodes.values() for number in led(node)] == [CATALOG_GROUP]
    first = leader_of(cluster, CATALOG_GROUP)
    other = cluster.nodes[1 + first % 3]
    other.host.begin_serving()
    cluster.run(5_000)
    groups = sorted(other.host.groups)
    assert sorted(led(other)) == groups
    for node in cluster.nodes.values():
        node.host.begin_serving()
    cluster.run(10_000)
    assert [leader_of(cluster, group_id) for group_id in groups].count(0) == 0


def test_server_that_starts_again_and_again_does_not_take_the_catalog_from_those_that_serve(
    cluster: Any,
) -> None:
    """It is the catalog's preferred leader, and stops when it would serve clients.

    While it runs for a moment, its peers have just lost it as their leader.
    """
    closed = start_closed(cluster, 1)
    for _ in range(20):
        cluster.run(300)
        assert CATALOG_GROUP not in led(closed)
        closed.crash()
        closed.start()
    assert leader_of(cluster, CATALOG_GROUP) in {2, 3}


def test_set_that_starts_as_a_whole_waits_for_no_timeout(make_cluster: Callable[..., Any]) -> None:
    """Its first server leads the catalog as soon as it learns that no other server serves."""
    cluster = make_cluster()
    for node in cluster.nodes.values():
        node.crash()
    cluster.closed.update(cluster.servers)
    for node in cluster.nodes.values():
        node.start()
    cluster.run(300)
    assert leader_of(cluster, CATALOG_GROUP) == 1


def test_server_alone_leads_all_when_it_serves(make_cluster: Callable[..., Any]) -> None:
    """The catalog at once, and the rest as soon as clients are served."""
    cluster = make_cluster(servers=(1,))
    node = start_closed(cluster, 1)
    cluster.run(100)
    assert led(node) == [CATALOG_GROUP]
    node.host.begin_serving()
    cluster.run(100)
    assert sorted(led(node)) == sorted(node.host.groups)


def test_groups_of_servers_that_serve_at_one_time_are_led_in_one_term(
    make_cluster: Callable[..., Any],
) -> None:
    """All have waited for longer than an election timeout, yet they campaign in turn."""
    cluster = make_cluster()
    cluster.create_topic()
    for node in cluster.nodes.values():
        node.crash()
    cluster.closed.update(cluster.servers)
    for node in cluster.nodes.values():
        node.start()
    cluster.run(5_000)
    before = {n: g.node.term for n, g in cluster.nodes[1].host.groups.items() if n}
    for node in cluster.nodes.values():
        node.host.begin_serving()
    cluster.run(1_000)
    groups = cluster.nodes[1].host.groups
    assert {n: groups[n].node.term for n in before} == {n: term + 1 for n, term in before.items()}
    assert all(leader_of(cluster, n) for n in before)


def test_stopping_server_is_not_elected_again(cluster: Any) -> None:
    """It has transferred everything, and the new leader dies before it is gone itself."""
    group_id = cluster.create_topic()
    stopping = cluster.nodes[1]
    for _ in range(40):
        if not stopping.host.transfer_leaderships():
            break
        cluster.run(5)
    second = leader_of(cluster, group_id)
    assert second in {2, 3}
    cluster.nodes[second].crash()
    for _ in range(30):
        cluster.run(100)
        assert led(stopping) == []
    assert leader_of(cluster, group_id) == 5 - second
    assert leader_of(cluster, CATALOG_GROUP) == 5 - second


def test_server_that_is_late_for_long_gives_its_leaderships_away(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other servers answer in time. If all are late, leaderships do not move."""
    monkeypatch.setattr(overload, "LATE_NS", 2_000 * MS)
    group_id = cluster.create_topic()
    late = cluster.nodes[1].host
    election_ns = late.options.election_ticks * TICK_NS
    late.overload._loop_time = Late(election_ns)
    cluster.run(5_000)
    assert leader_of(cluster, group_id) in {2, 3}
    assert led(cluster.nodes[1]) == []
    for node in cluster.nodes.values():
        node.host.overload._loop_time = Late(election_ns)
    cluster.run(3_000)
    elections = sum(node.host.stats.elections for node in cluster.nodes.values())
    cluster.run(10_000)
    assert sum(node.host.stats.elections for node in cluster.nodes.values()) == elections
    late.overload._loop_time = Late(0)
    cluster.run(20_000)
    assert leader_of(cluster, group_id) == 1


class Late:
    """The time of a loop with a fixed lateness at each check."""

    late_total_ns = 0

    def __init__(self, late_ns: int) -> None:
        self.late_ns = late_ns


@pytest.mark.parametrize("closed_at", [2, 3])
def test_server_that_does_not_serve_and_has_most_hands_it_on(cluster: Any, closed_at: int) -> None:
    """It has records that the other remaining server lacks, and does not serve.

    No replica could lead for as long as that lasts. It leads until the other one has caught up.
    """
    group_id = cluster.create_topic()
    behind = 5 - closed_at
    cluster.nodes[behind].crash()
    fates = [cluster.append(cluster.leader(group_id)) for _ in range(20)]
    cluster.run(500)
    assert [fate[0].error for fate in fates] == [0] * 20
    closed = start_closed(cluster, closed_at)
    cluster.run(300)
    cluster.nodes[1].crash()
    cluster.nodes[behind].start()
    cluster.run(20_000)
    assert led(closed) == []
    assert leader_of(cluster, group_id) == behind
    stream = cluster.leader(group_id)
    assert stream.group.log.offset_after(stream.group.log.commit_index) == 20
    fates = [cluster.append(stream)]
    cluster.run(100)
    assert fates[0][0].error == 0
    cluster.nodes[behind].crash()
    cluster.run(20_000)
    assert led(closed) == [], "one that does not serve leads for no other reason"


def test_server_that_does_not_serve_leaves_it_to_others_for_some_timeouts(cluster: Any) -> None:
    """An election on slow disks takes that long; the replica with most entries waits for it."""
    group_id = cluster.create_topic()
    cluster.nodes[3].crash()
    cluster.append(cluster.leader(group_id))
    cluster.run(500)
    closed = start_closed(cluster, 2)
    cluster.run(1_000)
    cluster.nodes[1].crash()
    cluster.nodes[3].start()
    term = closed.host.groups[group_id].node.term
    cluster.run(3_000)
    assert closed.host.groups[group_id].node.term == term
    assert leader_of(cluster, group_id) == 0
    cluster.nodes[1].start()
    cluster.run(4_000)
    assert leader_of(cluster, group_id) in {1, 3}
    cluster.run(20_000)
    assert led(closed) == []
