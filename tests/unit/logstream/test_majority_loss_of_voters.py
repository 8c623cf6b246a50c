"""A majority of the disks is gone for good after votes have moved, or while they move."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.logstream.conftest import Cluster
from tests.unit.logstream.test_added_servers import leave
from tests.unit.logstream.test_majority_loss import Survived, fill, row_of
from tests.unit.logstream.test_votes import GROUPS, four, numbers, voters
from vdl.commands.recover import _show
from vdl.logstream.majority_loss.survivor import Fate, NotRecoverable
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.commands import CreateTopics, NewTopic

__all__ = ["four"]  # a fixture


def topic_on(cluster: Cluster, servers: list[int]) -> int:
    new = NewTopic("events", b"events".ljust(16), assignments=[servers])
    return int(cluster.propose(CreateTopics([new]), via=2).topics[0].group_ids[0])


def lose_all_but(cluster: Cluster, survivor: int) -> None:
    """Stop all servers, and lose all disks but one."""
    for server, node in cluster.nodes.items():
        if not node.clock.stopped:
            node.crash()
        if server != survivor:
            node.store = None
            node.directories += 1


def recover(cluster: Cluster, survivor: int) -> None:
    survived = Survived(cluster, survivor)
    survived.take_over()
    survived.put_back()


def has_left(cluster: Cluster) -> bool:
    """Return True if some groups have removed server 1, whose replicas are still there."""
    found = voters(cluster.nodes[2])[1:]
    return {2, 3, 4} in found and CATALOG_GROUP + 1 in numbers(cluster.nodes[1])


@pytest.mark.parametrize("survivor", [2, 4])
def test_voter_of_now_goes_on_alone_and_the_others_are_taken_in(
    four: Cluster, survivor: int
) -> None:
    leave(four, 1)
    four.run(10_000)
    group_id = topic_on(four, [2, 3, 4])
    four.run(500)
    fill(four, group_id, 5)
    lose_all_but(four, survivor)
    plan = Survived(four, survivor).plan()
    assert {row.fate for row in plan.groups} == {Fate.KEPT}
    assert row_of(plan, "coordinator-1").voters == [2, 3, 4]
    recover(four, survivor)
    four.nodes[survivor].start()
    four.run(3_000)
    assert four.leader(group_id).high_watermark == 5
    for server in {2, 3, 4} - {survivor}:
        four.nodes[server].start()
        four.nodes[server].links.set_peer(survivor, ("node", survivor))
    four.run(5_000)
    four.run(20_000)
    assert voters(four.nodes[survivor]) == [{2, 3, 4}] * 9
    four.nodes[survivor].crash()
    four.run(5_000)
    assert four.leader(group_id).high_watermark == 5


@pytest.mark.parametrize("survivor", [1, 2, 4])
def test_move_of_votes_goes_on_after_the_recovery(four: Cluster, survivor: int) -> None:
    """Also if the survivor is the server that leaves, whose replicas some groups have removed."""
    leave(four, 1)
    while not has_left(four):
        four.run(20)
    lose_all_but(four, survivor)
    recover(four, survivor)
    for server in sorted(four.nodes, key=lambda server: server != survivor):
        four.nodes[server].start()
        if server != 4:
            four.nodes[server].links.set_peer(4, ("node", 4))
        four.run(3_000)
    four.run(20_000)
    catalog = four.nodes[2].host.catalog
    assert voters(four.nodes[2]) == [{2, 3, 4}] * 9
    assert not catalog.is_member(1)


def test_plan_says_where_the_survivor_had_no_vote_any_more(
    four: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The voters of now have the entries that were committed since. None are copied to it."""
    leave(four, 1)
    while not has_left(four):
        four.run(20)
    lose_all_but(four, 1)
    _show(Survived(four, 1).plan(), Path("data1"))
    shown = capsys.readouterr().out
    assert (
        "Not a voter: the copy of coordinator-1 here may lack more than those of servers 2, 3, 4"
        in shown
    )
    assert "being copied" not in shown


def test_directory_without_coordinators_names_those_that_have_them(four: Cluster) -> None:
    leave(four, 1)
    four.run(700)
    while any(map(four.nodes[1].host.catalog.replica_number, GROUPS[1:], [1] * 8)):
        four.run(20)
    lose_all_but(four, 1)
    with pytest.raises(NotRecoverable, match="those of servers 2, 3, 4 should have them"):
        Survived(four, 1).plan()


def test_directory_of_a_removed_server_is_called_so(four: Cluster) -> None:
    leave(four, 1)
    four.run(10_000)
    lose_all_but(four, 1)
    with pytest.raises(NotRecoverable, match=r"has removed this server.* servers 2, 3, 4 "):
        Survived(four, 1).plan()
