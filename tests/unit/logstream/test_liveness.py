"""Knowledge of leaders on a server without a replica."""

from types import SimpleNamespace
from typing import Any

import pytest

from rpc.hello import Hello
from rpc.leaders import LeaderLists
from tests.unit.logstream.conftest import make_state
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.liveness import Liveness
from vdl.state.catalog import Catalog
from vdl.state.commands import CreateTopics, DeleteTopics, NewTopic, RegisterServer

HERE, PEER = 1, 2
ON_PEER = PEER << 16 | 1


def known(liveness: Liveness) -> set[int]:
    """Return the groups of which anything is remembered."""
    receiver = liveness._lists.receiver
    listed = {group for held in receiver._held.values() for group in held.listed}
    return set(receiver._leaders) | set(receiver._entered) | listed | set(liveness.led)


def topic(name: str, *partitions: list[int]) -> CreateTopics:
    return CreateTopics([NewTopic(name, name.encode().ljust(16), assignments=list(partitions))])


def registered(catalog: Catalog) -> Catalog:
    for server, directory in catalog.initial_voters.items():
        catalog.apply(RegisterServer(server, directory, "", {}, True), 0, 1)
    return catalog


class Pair:
    """A server's liveness, and the lists of its one peer, which leads groups."""

    def __init__(self) -> None:
        state = make_state()
        self.catalog = registered(state.catalog)
        state.alive[PEER] = Hello(PEER, b"2".ljust(16), 1)
        self.liveness = Liveness(state, Contradictions(state))
        self.peer = LeaderLists(lambda _: None)
        self.connect()

    def connect(self) -> None:
        self.liveness.link_up(PEER)
        self.peer.connected(HERE)

    def hear(self) -> list[int]:
        """Deliver the peer's frames. Return the groups whose leaders changed."""
        return [
            change.group
            for frame_type, buffers in self.peer.frames(HERE, 1)
            for change in self.liveness.received(PEER, frame_type, memoryview(b"".join(buffers)))
        ]

    def talk(self) -> None:
        """Deliver a heartbeat to the peer, and its acknowledgement."""
        for frame_type, buffers in self.liveness.beat(PEER):
            self.peer.received(HERE, frame_type, memoryview(b"".join(buffers)), 1)
        self.hear()


@pytest.fixture
def pair() -> Pair:
    """Return a pair in which the peer leads both groups of a topic that is then deleted here."""
    pair = Pair()
    pair.catalog.apply(topic("old", [2], [2]), 0, 1)
    pair.catalog.apply(topic("new", [2]), 0, 2)
    pair.liveness.catalog_changed()
    for group in (4, 5, 6):
        pair.peer.sender.set(group, 1, ON_PEER)
    assert pair.hear() == [4, 5, 6]
    pair.catalog.apply(DeleteTopics(["old"]), 0, 3)
    pair.liveness.catalog_changed()
    return pair


def test_leaders_of_deleted_groups_are_forgotten_without_a_replica_here(pair: Pair) -> None:
    """In both orders of the peer's report and the catalog's."""
    assert known(pair.liveness) == {6}
    pair.peer.sender.drop(4)
    assert pair.hear() == []
    assert known(pair.liveness) == {6}
    pair.peer.sender.drop(6)
    assert pair.hear() == [6]
    assert pair.liveness.listed_leader(6) == (-1, 1)
    pair.catalog.apply(DeleteTopics(["new"]), 0, 4)
    pair.liveness.catalog_changed()
    assert known(pair.liveness) == set()


def test_leader_of_a_deleted_group_that_a_lagging_peer_names_again_is_no_news(pair: Pair) -> None:
    """It lists all its groups in each session, and elects leaders until it applies the deletion."""
    pair.liveness.link_down(PEER)
    pair.peer.disconnected(HERE)
    pair.connect()
    assert pair.hear() == []
    pair.peer.sender.set(5, 2, ON_PEER)
    assert pair.hear() == []
    assert known(pair.liveness) == {6}
    for group in (4, 5):
        pair.peer.sender.drop(group)
    assert pair.hear() == []
    assert known(pair.liveness) == {6}


def test_leader_of_a_group_the_catalog_has_not_heard_of_is_known(pair: Pair) -> None:
    """The group's leader applied the catalog earlier than this server."""
    pair.peer.sender.set(7, 1, ON_PEER)
    assert pair.hear() == [7]
    pair.catalog.apply(topic("newest", [2]), 0, 4)
    pair.liveness.catalog_changed()
    assert pair.liveness.listed_leader(7) == (PEER, 1)


def test_deletions_that_come_in_a_snapshot_are_noticed() -> None:
    """A snapshot contains the existing groups, not the deletions."""
    pair = Pair()
    for group in (4, 5, 6):
        pair.peer.sender.set(group, 1, ON_PEER)
    assert pair.hear() == [4, 5, 6]
    other = registered(make_state().catalog)
    other.apply(topic("old", [2], [2]), 0, 1)
    other.apply(topic("new", [2]), 0, 2)
    other.apply(DeleteTopics(["old"]), 0, 3)
    pair.catalog.load(other.items())
    pair.liveness.catalog_changed()
    assert known(pair.liveness) == {6}


def test_topics_that_come_and_go_leave_nothing_in_the_leader_tables(cluster: Any) -> None:
    """For partitions with one replica the two other servers know the leaders, too."""
    before = {server: known(node.host.liveness) for server, node in cluster.nodes.items()}
    for number in range(5):
        name = f"topic-{number}"
        groups = set(cluster.propose(topic(name, [1], [2], [3], [2], [1])).topics[0].group_ids)
        assert all(groups <= known(node.host.liveness) for node in cluster.nodes.values())
        cluster.delete_topic(name)
    cluster.run(1_000)
    after = {server: known(node.host.liveness) for server, node in cluster.nodes.items()}
    assert after == before


def test_peer_has_read_what_was_sent_before_a_heartbeat_that_it_acknowledged() -> None:
    """One of two voters is no majority, and a server without a link will read nothing."""
    pair = Pair()
    voters = frozenset((HERE << 16 | 1, ON_PEER))
    node = SimpleNamespace(membership=SimpleNamespace(voters=lambda: voters))
    group: Any = SimpleNamespace(node=node)
    clock: Any = pair.liveness._state.clock
    pair.talk()
    sent_ns = clock.now_ns()
    assert not pair.liveness.is_unread(group, sent_ns)
    clock._time.now_ns += 1
    assert pair.liveness.is_unread(group, sent_ns + 1)
    pair.talk()
    assert not pair.liveness.is_unread(group, sent_ns + 1)
    assert pair.liveness.is_unread(group, sent_ns + 2)
    del pair.liveness._state.alive[PEER]
    assert not pair.liveness.is_unread(group, sent_ns + 2)
