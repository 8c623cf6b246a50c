"""Servers of the beginning that leave: their votes move, and their directories remember it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import segments.api as storage
from ids import ServerId
from rpc.birth import decode_answer
from rpc.hello import VERSION_OF_MOVED_VOTES, Hello
from rpc.peer import FrameType
from tests.unit.logstream.conftest import Cluster, Node, directory_of
from tests.unit.logstream.test_added_servers import described, leave
from vdl.errors import ErrorCode
from vdl.logstream.bootstrap import decode_record
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.membership.added_servers import Standing
from vdl.logstream.membership.known_servers import known_servers
from vdl.logstream.membership.open_replica import ReplicaOpener
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.commands import AdmitServer, DecommissionVoter, RegisterServer

GROUPS = range(9)


@pytest.fixture
def four(cluster: Cluster) -> Cluster:
    """A cluster of three servers, and a fourth that was added and runs."""
    cluster.propose(AdmitServer(4, directory_of(4), "h4", 9192))
    cluster.servers = (1, 2, 3, 4)
    cluster.nodes[4] = Node(cluster, 4)
    for server in (1, 2, 3):
        cluster.nodes[server].links.set_peer(4, ("node", 4))
    cluster.run(3_000)
    cluster.propose(RegisterServer(4, directory_of(4), "", {}, False))
    cluster.run(1_000)
    assert cluster.nodes[4].host.is_known
    return cluster


def voters_of(node: Node, group: int) -> set[int]:
    """Return the servers that vote in a group, as its replica on a server has applied it."""
    return set(map(server_of, node.host.groups[group].node.membership.voters()))


def voters(node: Node) -> list[set[int]]:
    """Return the servers that vote in each of the system groups that run on a server."""
    return [voters_of(node, group) for group in GROUPS if group in node.host.groups]


def numbers(node: Node) -> dict[int, list[int]]:
    """Return the replica numbers of each system group in a server's directory."""
    assert node.store is not None
    found: dict[int, list[int]] = {}
    for log in node.store.logs.values():
        found.setdefault(log.group_id, []).append(log.replica_number)
    return found


def test_votes_move_before_the_server_is_removed(four: Cluster) -> None:
    """It gives up the leaderships that it has, and hears of its removal as an observer."""
    assert leave(four, 1) == (ErrorCode.NONE, "")
    assert described(four, 1).standing is Standing.LEAVING
    four.run(10_000)
    for server in (2, 3, 4):
        node = four.nodes[server]
        assert voters(node) == [{2, 3, 4}] * 9
        assert node.host.catalog.servers.keys() == {2, 3, 4}
    first = four.nodes[1]
    assert first.host.catalog.is_removed(1, directory_of(1))
    assert numbers(first) == {CATALOG_GROUP: [1]}
    assert sorted(numbers(four.nodes[4])) == list(GROUPS)


def test_directory_of_the_beginning_does_not_create_again_what_it_deleted(four: Cluster) -> None:
    """The birth record names it, and its log was the memory of its votes (law 6)."""
    leave(four, 1)
    while 1 in four.nodes[1].host.catalog.voters:
        four.run(50)
    leave(four, 1, is_leaving=False)
    four.run(5_000)
    assert numbers(four.nodes[1]) == {CATALOG_GROUP: [1]}
    assert described(four, 1).standing is Standing.MEMBER
    assert not described(four, 1).is_voter
    four.nodes[1].crash()
    four.nodes[1].start()
    four.nodes[1].links.set_peer(4, ("node", 4))
    four.run(5_000)
    assert numbers(four.nodes[1]) == {CATALOG_GROUP: [1]}
    assert four.nodes[1].host.is_known


def test_start_knows_voters_and_addresses_from_its_disk(four: Cluster) -> None:
    """A checkpoint may be behind: the entries after it count."""
    leave(four, 1)
    four.run(10_000)
    store = four.nodes[3].store
    assert store is not None
    for _ in range(2):
        known = known_servers(store, four.record)
        assert known.voters == {2, 3, 4}
        assert known.addresses == {4: ("h4", 9192)}
        store.checkpoint()
        four.run(1_000)


def test_servers_that_know_no_moved_votes_prevent_the_first_removal(four: Cluster) -> None:
    """One of an older version would stop at the command; of one that is away nothing is known."""
    state = four.nodes[1].host.state
    spoken = state.alive[2]
    state.alive[2] = replace(spoken, version=VERSION_OF_MOVED_VOTES - 1)
    error, message = leave(four, 3)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "server 2 runs a version" in message
    state.alive[2] = spoken
    four.nodes[4].crash()
    four.run(2_000)
    error, message = leave(four, 3)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "server 4 is not connected" in message
    assert not state.catalog.leaving


def test_server_that_is_gone_for_good_is_removed(four: Cluster) -> None:
    four.nodes[3].wipe()
    four.run(2_000)
    assert leave(four, 3) == (ErrorCode.NONE, "")
    four.run(10_000)
    assert voters(four.nodes[2]) == [{1, 2, 4}] * 9
    assert not four.nodes[2].host.catalog.is_member(3)


def test_empty_directory_of_a_removed_server_is_a_newcomer(four: Cluster) -> None:
    """It is not told that the record names it: it would wait to be replaced, for ever."""
    leave(four, 3)
    four.run(10_000)
    host = four.nodes[2].host
    sent: list[bytes] = []
    host.state.newcomers[3] = Hello(3, b"empty" + bytes(11), 1)

    def send(server: int, kind: FrameType, buffers: list[bytes], **_: object) -> bool:
        assert (server, kind) == (3, FrameType.ANSWER)
        sent.append(b"".join(buffers))
        return True

    host.state.transport.send = send  # type: ignore[assignment, method-assign]
    host.frame(3, FrameType.ASK, memoryview(b""))
    record, number = decode_answer(memoryview(sent[0]))
    assert number == 0
    assert [server for server, _ in decode_record(record).initial_voters] == [1, 2]


def test_emptied_server_that_was_given_the_record_is_listed_and_added(four: Cluster) -> None:
    """It asked a server that had not applied its removal yet, and belongs to the cluster's id."""
    leave(four, 3)
    four.run(10_000)
    four.nodes[3].wipe()
    four.run(1_000)
    four.nodes[3].start()
    four.run(3_000)
    assert described(four, 3).standing is Standing.WAITING
    assert not four.nodes[3].store.logs
    host, answers = four.nodes[1].host, []
    deadline_ns = four.deadline()
    host.added_servers.admit(3, "h3", 1, deadline_ns=deadline_ns, done=lambda *a: answers.append(a))
    four.run(3_000)
    assert answers == [(ErrorCode.NONE, "")]
    assert numbers(four.nodes[3]) == {CATALOG_GROUP: [2]}
    assert four.nodes[3].host.is_known


def test_server_that_is_cut_off_does_not_say_that_a_leaving_one_stays(four: Cluster) -> None:
    """It knows nothing of the removal, and the command that takes it back cannot be decided."""
    for other in (2, 3, 4):
        four.network.cut(1, other)
        four.network.cut(other, 1)
    four.run(3_000)
    decided = four.propose(DecommissionVoter(ServerId(2), directory_of(2)), via=3)
    assert decided.error is ErrorCode.NONE
    answers: list[Any] = []
    four.nodes[1].host.added_servers.decommission(
        ServerId(2),
        is_leaving=False,
        deadline_ns=four.deadline(),
        done=lambda *answer: answers.append(answer),
    )
    four.run(2_000)
    [(error, _)] = answers
    assert error in {ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}


def test_removal_that_nobody_can_take_over_is_refused(cluster: Cluster) -> None:
    error, message = leave(cluster, 1)
    assert error is ErrorCode.INVALID_REQUEST
    assert "add a server first" in message


@pytest.mark.parametrize("is_over", [False, True])
def test_coordinators_that_lead_before_the_catalog_is_open_keep_their_members(
    four: Cluster, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Until then, the members that are wanted are those of the birth record."""
    leave(four, 1)
    while {2, 3, 4} not in voters(four.nodes[2])[1:]:
        four.run(20)
    four.run(10_000 if is_over else 0)
    moved = [group for group in GROUPS[1:] if voters_of(four.nodes[2], group) == {2, 3, 4}]
    for node in four.nodes.values():
        node.crash()
    held: list[Callable[[], None]] = []
    begin = ReplicaOpener._begin

    def hold(opener: ReplicaOpener, log: storage.Log, *what: Any) -> None:
        if log.group_id == CATALOG_GROUP:
            held.append(partial(begin, opener, log, *what))
        else:
            begin(opener, log, *what)

    with monkeypatch.context() as opening:
        opening.setattr(ReplicaOpener, "_begin", hold)
        for node in four.nodes.values():
            node.start()
            if node.id != 4:
                node.links.set_peer(4, ("node", 4))
        four.run(5_000)
    hosts = [four.nodes[server].host for server in (2, 3)]
    assert {group for host in hosts for group in moved if host.groups[group].serving} == {*moved}
    assert [voters_of(four.nodes[2], group) for group in moved] == [{2, 3, 4}] * len(moved)
    for then in held:
        then()
    four.run(10_000)
    assert voters(four.nodes[2]) == [{2, 3, 4}] * 9
    assert not four.nodes[2].host.catalog.is_member(1)
