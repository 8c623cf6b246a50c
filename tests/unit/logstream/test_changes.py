"""Log messages about changes of leaderships, in-sync replicas and the quorum."""

from __future__ import annotations

from typing import Any

from tests.unit.logstream.conftest import Cluster, Node, directory_of
from vdl.state.commands import CreateTopics, NewTopic, RegisterServer

PARTITIONS = 12


def told(node: Node, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in node.log.others if name == event]


def forget(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.log.others.clear()


def topic_led_by(cluster: Cluster, first: int) -> list[int]:
    """Create many partitions of three replicas, preferably led by server `first`."""
    rest = [n for n in cluster.nodes if n != first]
    new = NewTopic("orders", b"orders".ljust(16), assignments=[[first, *rest]] * PARTITIONS)
    groups: list[int] = cluster.propose(CreateTopics([new])).topics[0].group_ids
    cluster.run(5_000)
    return groups


def test_leaderships_that_move_are_one_line_a_second(cluster: Cluster) -> None:
    """The line names partitions by topic, and their number, without ids of groups or replicas."""
    topic_led_by(cluster, 1)
    led = sum(fields["partitions"] for fields in told(cluster.nodes[1], "leads"))
    assert led >= PARTITIONS
    forget(cluster)
    cluster.nodes[1].crash()
    cluster.run(6_000)
    lines = [fields for n in (2, 3) for fields in told(cluster.nodes[n], "leads")]
    assert sum(fields["partitions"] for fields in lines) >= PARTITIONS
    assert len(lines) <= PARTITIONS // 2
    names = " ".join(fields["names"] for fields in lines)
    assert "orders-" in names
    assert "more" in names


def test_replicas_that_fall_out_of_sync_are_named_by_server(cluster: Cluster) -> None:
    """They are logged once, and once when they are back.

    A new leader that has not heard of any replica yet logs nothing.
    """
    topic_led_by(cluster, 1)
    assert not any(told(node, "out_of_sync") for node in cluster.nodes.values())
    cluster.nodes[3].crash()
    cluster.run(6_000)
    gone = told(cluster.nodes[1], "out_of_sync")
    assert {fields["server"] for fields in gone} == {3}
    assert sum(fields["partitions"] for fields in gone) >= PARTITIONS
    assert len(gone) <= 3
    assert "orders-0, " in " ".join(fields["names"] for fields in gone)
    cluster.nodes[3].start()
    cluster.run(6_000)
    back = told(cluster.nodes[1], "in_sync_again")
    assert {fields["server"] for fields in back} == {3}
    # Some have another leader by then.
    assert sum(fields["partitions"] for fields in back) >= PARTITIONS
    assert told(cluster.nodes[1], "out_of_sync") == gone


def test_quorum_that_is_lost_and_reached_again_is_told_once(cluster: Cluster) -> None:
    for n in cluster.nodes:
        cluster.propose(RegisterServer(n, directory_of(n), "", {}, True))
    cluster.run(2_000)
    forget(cluster)
    for n in (2, 3):
        cluster.nodes[n].crash()
    cluster.run(3_000)
    (lost,) = told(cluster.nodes[1], "quorum_lost")
    assert lost["missing"] == "2,3"
    assert not told(cluster.nodes[1], "quorum_reached")
    cluster.nodes[2].start()
    cluster.run(3_000)
    (reached,) = told(cluster.nodes[1], "quorum_reached")
    assert reached["missing"] == "3"
