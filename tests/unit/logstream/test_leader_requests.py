"""Requests to the leader for clients of any server: elections, and the catalog's quorum."""

from dataclasses import replace
from typing import Any

import pytest

from rpc.hello import VERSION_OF_QUERIES
from rpc.queries import AskQuorum, Quorum
from tests.unit.logstream.test_transfers import create_topics, led
from vdl.clock import MS
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.membership import leader_requests
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.peers import queries


def elect(cluster: Any, asked: int, leader: int, groups: list[int]) -> frozenset[int] | None:
    found: list[Any] = []
    cluster.nodes[asked].host.elect_preferred(
        leader, groups, deadline_ns=cluster.deadline(), done=found.append
    )
    cluster.run(20)
    (answer,) = found
    assert answer is None or isinstance(answer, frozenset)
    return answer


def moved(cluster: Any, groups: list[int], to: int) -> None:
    """Transfer the leaderships to another server than the preferred one."""
    for group_id in groups:
        for node in cluster.nodes.values():
            group = node.host.groups[group_id]
            if group.node.is_leader:
                target = next(r for r in group.members if server_of(r) == to)
                group.node.transfer_leader(target)
                node.host.mark_dirty(group)
    cluster.run(300)
    assert led(cluster, groups)[to] == len(groups)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_preferred_leader_is_elected_whichever_server_is_asked(
    cluster: Any, asked: int, monkeypatch: Any
) -> None:
    """There are more groups than one query names. A transfer elects it, in a later term."""
    monkeypatch.setattr(Transfers, "return_some", lambda transfers: None)
    monkeypatch.setattr(leader_requests, "GROUPS_MAX", 2)
    groups = create_topics(cluster, 5, first=1)
    moved(cluster, groups, 2)
    terms = [cluster.nodes[1].host.groups[group].node.term for group in groups]
    assert elect(cluster, asked, 2, groups) == frozenset()
    cluster.run(200)
    assert led(cluster, groups)[1] == len(groups)
    assert all(
        cluster.nodes[1].host.groups[group].node.term == term + 1
        for group, term in zip(groups, terms, strict=True)
    )
    assert elect(cluster, asked, 1, groups) == frozenset(), "it leads: nothing is to be done"


def test_leader_hands_over_only_what_it_leads_and_to_whom_can_lead(cluster: Any) -> None:
    """The answer lists the rest: led elsewhere, unknown, or with the preferred replica away."""
    (away,) = create_topics(cluster, 1, first=3, name="away")
    (elsewhere,) = create_topics(cluster, 1, first=1, name="elsewhere")
    cluster.nodes[3].crash()
    cluster.run(3_000)
    leader = next(i for i in (1, 2) if cluster.nodes[i].host.groups[away].node.is_leader)
    asked = [away, 99_999] + ([elsewhere] if leader == 2 else [])
    assert elect(cluster, 3 - leader, leader, asked) == frozenset(asked)
    cluster.run(500)
    assert cluster.nodes[leader].host.groups[away].node.is_leader


def test_question_that_cannot_be_answered_ends(cluster: Any, monkeypatch: Any) -> None:
    """There is no link, an older version, a lost link, no answer in time, or too many queries."""
    groups = create_topics(cluster, 1, first=2)
    host = cluster.nodes[1].host
    hello = host.state.alive[2]
    host.state.alive[2] = replace(hello, version=VERSION_OF_QUERIES - 1)
    assert elect(cluster, 1, 2, groups) is None
    host.state.alive[2] = hello
    found: list[Any] = []
    monkeypatch.setattr(type(cluster.nodes[2].host), "_leader_frame", lambda *arguments: None)
    monkeypatch.setattr(queries.Queries, "query_received", lambda *arguments: None)
    soon_ns = cluster.time.now_ns + 300 * MS
    host.elect_preferred(2, groups, deadline_ns=soon_ns, done=found.append)
    cluster.run(250)
    assert found == []
    cluster.run(200)
    assert found == [None]
    monkeypatch.setattr(queries, "WAITING_MAX", 1)
    for _ in range(2):
        host.elect_preferred(2, groups, deadline_ns=cluster.deadline(), done=found.append)
    assert found == [None, None], "one waits, one is too many"
    cluster.nodes[2].crash()
    cluster.run(50)
    assert found == [None, None, None]


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_quorum_is_described_by_the_leader_of_the_catalog(cluster: Any, asked: int) -> None:
    """Any server answers. A member that is away lags, and was last heard of when it still ran."""
    create_topics(cluster, 1, first=1)
    cluster.run(2_500)
    before_ms = cluster.nodes[asked].clock.wall_ms()
    leader = cluster.nodes[asked].host.leader_of(0)[0]
    quorum = describe(cluster, asked)
    assert quorum.leader == leader
    assert sorted(member.server_id for member in quorum.members) == [1, 2, 3]
    assert {member.last for member in quorum.members} == {quorum.commit}
    for member in quorum.members:
        assert not member.is_learner
        assert before_ms - 2_000 <= member.caught_up_ms <= before_ms + 200
        assert before_ms - 2_000 <= member.heard_ms <= before_ms + 200
    lost = next(i for i in (1, 2, 3) if i not in (asked, leader))
    cluster.nodes[lost].crash()
    cluster.run(5_000)
    later_ms = cluster.nodes[asked].clock.wall_ms()
    create_topics(cluster, 1, first=leader, name="later")
    quorum = describe(cluster, asked)
    (member,) = [member for member in quorum.members if member.server_id == lost]
    assert member.last < quorum.commit
    assert before_ms - 1_000 <= member.heard_ms < later_ms - 4_000
    assert member.caught_up_ms == member.heard_ms, "a dead one is caught up no more (KIP-836)"


def describe(cluster: Any, asked: int) -> Quorum:
    found: list[Any] = []
    host = cluster.nodes[asked].host
    host.describe_quorum(deadline_ns=cluster.deadline(), done=found.append)
    cluster.run(20)
    (answer,) = found
    assert isinstance(answer, Quorum)
    return answer


def test_quorum_without_a_leader_is_not_described(cluster: Any) -> None:
    """A server that does not lead gives no answer, nor does one that knows no leader."""
    for server_id in (2, 3):
        cluster.nodes[server_id].crash()
    cluster.run(5_000)
    found: list[Any] = []
    host = cluster.nodes[1].host
    host.describe_quorum(deadline_ns=cluster.deadline(), done=found.append)
    cluster.run(50)
    assert found == [None]
    assert host._requests._answer(AskQuorum(0)) is None
