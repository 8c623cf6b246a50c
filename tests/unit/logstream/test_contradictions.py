"""Peers whose leader lists contain contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.logstream.peers.contradictions import TELL_NS


def appends(cluster: Any, group_id: int) -> None:
    """Append a record, which must be acknowledged."""
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(200)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]


@pytest.mark.parametrize("liar", [2, 3])
def test_row_that_contradicts_costs_neither_its_link_nor_the_rest_of_the_list(
    cluster: Any, liar: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server lists itself as the leader of a term that another one leads.

    That is logged at intervals. The leader receives the row too, and does not stop.
    """
    group_id, other = cluster.create_topic(), cluster.create_topic("others")
    for _ in range(5):
        appends(cluster, group_id)
    leader = cluster.leader(group_id)
    assert leader.leader_server == 1
    host = cluster.nodes[liar].host
    here = cluster.nodes[5 - liar].host
    downs: list[int] = []
    for node in (cluster.nodes[1], cluster.nodes[5 - liar]):
        monkeypatch.setattr(
            node.host, "link_down", lambda server, refused: downs.append(server), raising=False
        )
    host.liveness.lead(group_id, leader.term, host.groups[group_id].replica_id)
    cluster.run(TELL_NS // 1_000_000)
    assert downs == []
    assert liar in here.state.alive
    assert here.leader_of(group_id) == (1, leader.term)
    assert here.stats.contradictions >= 1
    name = here.state.told_of(group_id)
    assert cluster.nodes[5 - liar].log.errors.count(("peer_contradicts", name)) == 1
    for group in (group_id, other):
        appends(cluster, group)
    assert cluster.leader(group_id).term == leader.term
    assert {node.host.groups[group_id].node.lead >> 16 for node in cluster.nodes.values()} == {1}


def test_list_that_contradicts_the_leaders_own_messages_is_not_followed(cluster: Any) -> None:
    """The leader's own row may come later, and is not taken then; its messages are."""
    group_id = cluster.create_topic()
    appends(cluster, group_id)
    leader = cluster.leader(group_id)
    liar, here = (cluster.nodes[s].host for s in (1, 2, 3) if s != leader.leader_server)
    node = here.groups[group_id].node
    here.liveness._lists.receiver._leaders.pop(group_id)
    liar.liveness.lead(group_id, leader.term, liar.groups[group_id].replica_id)
    cluster.run(300)
    assert node.lead == leader.group.replica_id
    assert here.stats.contradictions > 0


def test_row_that_contradicts_after_an_older_one_was_denied_stops_nobody(cluster: Any) -> None:
    """A replica that lost its votes claims one term after the other."""
    group_id = cluster.create_topic()
    cluster.nodes[1].host.groups[group_id].node.newer_term(5)
    cluster.nodes[1].host.mark_dirty(cluster.nodes[1].host.groups[group_id])
    cluster.run(10_000)
    leader = cluster.leader(group_id)
    assert leader.leader_server == 1
    liar, here = cluster.nodes[3].host, cluster.nodes[2].host
    for term in (leader.term - 1, leader.term):
        liar.liveness.lead(group_id, term, liar.groups[group_id].replica_id)
        cluster.run(300)
    assert here.stats.contradictions >= 1
    appends(cluster, group_id)
    assert cluster.leader(group_id).term == leader.term
