"""Requests to add and remove servers: refusals, lost directories, and what blocks a removal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rpc.hello import VERSION_OF_ADDED_SERVERS, Hello
from tests.unit.logstream.conftest import Cluster
from tests.unit.logstream.test_disk_full import fill, full
from vdl.errors import ErrorCode
from vdl.logstream.membership.added_servers import ServerStanding, Standing
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.commands import CreateTopics, DrainServers, NewTopic, RegisterServer

__all__ = ["full"]  # a fixture

NEW, OTHER = b"n" * 16, b"o" * 16


def answer_of(cluster: Cluster, server_id: int, directory: bytes | None = NEW) -> tuple[int, str]:
    """Have a server added that waits in a directory; None: it is not connected."""
    host = cluster.nodes[1].host
    if directory is not None:
        host.state.newcomers[server_id] = Hello(server_id, directory, 1)
    answers: list[tuple[ErrorCode, str]] = []
    host.added_servers.admit(
        server_id, "h", 9192, deadline_ns=cluster.deadline(), done=lambda *a: answers.append(a)
    )
    cluster.run(300)
    ((error, message),) = answers
    return error, message


def leave(cluster: Cluster, server_id: int = 4, *, is_leaving: bool = True) -> tuple[int, str]:
    answers: list[tuple[ErrorCode, str]] = []
    cluster.nodes[1].host.added_servers.decommission(
        server_id,
        is_leaving=is_leaving,
        deadline_ns=cluster.deadline(),
        done=lambda *a: answers.append(a),
    )
    cluster.run(300)
    ((error, message),) = answers
    return error, message


def grown(cluster: Cluster, assignments: list[list[int]]) -> list[int]:
    """Add server 4, which never runs, and topics t and u of one partition. Return their groups."""
    assert answer_of(cluster, 4) == (ErrorCode.NONE, "")
    cluster.propose(RegisterServer(4, NEW, "", {}, False))
    topics = [
        NewTopic(name, name.encode() * 16, assignments=[servers])
        for name, servers in zip("tu", assignments, strict=False)
    ]
    created = cluster.propose(CreateTopics(topics)).topics
    assert not any(topic.error for topic in created)
    groups: list[int] = [topic.group_ids[0] for topic in created]
    cluster.run(1_000)
    return groups


def described(cluster: Cluster, server_id: int = 4) -> ServerStanding:
    servers = cluster.nodes[1].host.added_servers.describe()
    assert [one.server_id for one in servers] == sorted(one.server_id for one in servers)
    return next(one for one in servers if one.server_id == server_id)


def test_waiting_server_is_described_added_and_then_joins(cluster: Cluster) -> None:
    host = cluster.nodes[1].host
    host.state.newcomers[4] = Hello(4, NEW, 1)
    host.added_servers.address_of = lambda hello: f"own{hello.server_id}:1"
    waiting = described(cluster)
    assert waiting.standing is Standing.WAITING
    assert (waiting.address, waiting.directory_id) == ("own4:1", NEW)
    assert answer_of(cluster, 4) == (ErrorCode.NONE, "")
    joining = described(cluster)
    assert (joining.standing, joining.address) == (Standing.JOINING, "h:9192")
    assert not joining.is_voter
    assert described(cluster, 2).is_voter
    cluster.propose(RegisterServer(4, NEW, "", {}, False))
    assert described(cluster).standing is Standing.MEMBER


def test_server_of_the_first_that_does_not_leave_is_taken_back_without_a_change(
    cluster: Cluster,
) -> None:
    """It stays, also where its votes keep it from being removed."""
    assert leave(cluster, 2)[0] is ErrorCode.INVALID_REQUEST
    assert leave(cluster, 2, is_leaving=False) == (ErrorCode.NONE, "")
    assert leave(cluster, 9, is_leaving=False)[0] is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_server_that_is_not_connected_is_refused(cluster: Cluster) -> None:
    error, message = answer_of(cluster, 4, None)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "server 4 is not connected to server 1" in message


def test_impossible_id_is_refused_before_it_is_proposed(cluster: Cluster) -> None:
    assert answer_of(cluster, 1 << 15) == (ErrorCode.INVALID_REQUEST, "server ids are 1 to 32767")


@pytest.mark.parametrize("old", [2, 4])
def test_server_of_an_older_version_is_refused(cluster: Cluster, old: int) -> None:
    """It would stop at the first of these commands."""
    state = cluster.nodes[1].host.state
    if old == 2:
        state.alive[2] = replace(state.alive[2], version=VERSION_OF_ADDED_SERVERS - 1)
    state.newcomers[4] = Hello(4, NEW, 1, version=VERSION_OF_ADDED_SERVERS - (old == 4))
    error, message = answer_of(cluster, 4, None)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert f"server {old} runs a version" in message
    assert not state.catalog.added


def test_initial_server_that_is_down_holds_up_an_addition(cluster: Cluster) -> None:
    """Its version is unknown. An added one knows the commands, and holds up nothing."""
    grown(cluster, [[1, 2, 3]])
    assert answer_of(cluster, 5, OTHER)[0] is ErrorCode.NONE  # 4 never ran
    cluster.nodes[3].crash()
    cluster.run(2_000)
    error, message = answer_of(cluster, 6, b"6" * 16)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "server 3 is not connected" in message


def test_small_cluster_adds_no_server() -> None:
    """With two voters, the loss of one directory may lose the catalog."""
    error, message = answer_of(Cluster((1, 2)), 4)
    assert error is ErrorCode.INVALID_REQUEST
    assert "the cluster began with 2 servers" in message


def test_lost_directory_is_replaced_by_adding_the_server_again(cluster: Cluster) -> None:
    """It gets the next numbers in the directory in which it waits, and its new address."""
    (group,) = grown(cluster, [[1, 2, 4]])
    cluster.nodes[1].host.state.newcomers.clear()
    assert not described(cluster).is_connected
    cluster.nodes[1].host.state.newcomers[4] = Hello(4, OTHER, 2)
    lost = described(cluster)
    assert lost.is_connected  # so that `vdl member add` finds where it waits
    assert (lost.directory_id, lost.reason) == (OTHER, "it lost its directory: add it again")
    assert answer_of(cluster, 4, OTHER) == (ErrorCode.NONE, "")
    catalog = cluster.nodes[1].host.catalog
    assert catalog.directory_of(4) == catalog.added[4].directory_id == OTHER
    assert catalog.replica_number(CATALOG_GROUP, 4) == catalog.replica_number(group, 4) == 2
    assert not catalog.is_removed(4, OTHER)
    assert catalog.is_removed(4, NEW)


def test_lost_directory_is_kept_while_a_partition_has_no_leader_without_it(
    cluster: Cluster,
) -> None:
    """Its records may be nowhere else."""
    grown(cluster, [[4]])
    error, message = answer_of(cluster, 4, OTHER)
    assert error is ErrorCode.BROKER_NOT_AVAILABLE
    assert "t-0" in message
    assert described(cluster).reason == message
    assert cluster.nodes[1].host.catalog.directory_of(4) == NEW


def test_initial_and_unknown_servers_do_not_leave(cluster: Cluster) -> None:
    assert leave(cluster, 1)[0] is ErrorCode.INVALID_REQUEST
    assert leave(cluster, 9)[0] is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_removal_is_blocked_by_a_partition_without_leader(cluster: Cluster) -> None:
    """It comes before one that moves."""
    grown(cluster, [[1, 2, 4], [4]])
    leave(cluster)
    cluster.run(2_500)
    one = described(cluster)
    assert one.standing is Standing.LEAVING
    assert (one.blocking, one.reason) == ("u-0", "it has no leader (not connected: 4)")


def test_removal_ends_when_a_partition_has_a_leader_again(cluster: Cluster) -> None:
    """Until then the partition and the servers that it lacks are named."""
    grown(cluster, [[1, 3, 4]])
    cluster.nodes[3].crash()
    leave(cluster)
    cluster.run(5_000)
    one = described(cluster)
    assert (one.blocking, one.reason) == ("t-0", "it has no leader (not connected: 3, 4)")
    cluster.nodes[3].start()
    cluster.run(15_000)
    assert not cluster.nodes[1].host.catalog.added


def test_removal_waits_for_servers_that_may_take_replicas(cluster: Cluster) -> None:
    """A limit on replicas, or no other server, is said to be the reason. It ends with the limit."""
    limits = [1]
    grown(cluster, [[1, 2, 4]])
    for node in cluster.nodes.values():
        node.host.added_servers.replicas_max = lambda: limits[0]
    cluster.propose(CreateTopics([NewTopic("u", b"u" * 16, assignments=[[3]])]))
    leave(cluster)
    cluster.run(2_500)
    one = described(cluster)
    assert (one.blocking, one.reason) == ("t-0", "no server may have more than 1 replicas")
    limits[0] = 0
    cluster.run(10_000)
    assert not cluster.nodes[1].host.catalog.added


def test_removal_waits_for_a_target_that_is_not_connected(cluster: Cluster) -> None:
    """With no other server, the move onto one that is down stays."""
    grown(cluster, [[1, 2, 4]])
    cluster.nodes[3].crash()
    cluster.run(2_000)
    leave(cluster)
    cluster.run(2_500)
    one = described(cluster)
    assert one.blocking == "t-0"
    assert one.reason == "server 3, which is to take it, is not connected"
    assert one.replicas == 1


def test_removal_waits_for_room_on_the_disk_of_its_only_target(
    cluster: Cluster, full: set[bytes]
) -> None:
    """The move goes on by itself when there is room, and the server is removed."""
    (group,) = grown(cluster, [[1, 2, 4]])
    for _ in range(3):
        cluster.append(cluster.leader(group))
        cluster.run(10)
    fill(cluster, full, 3)
    cluster.run(2_000)
    leave(cluster)
    cluster.run(2_500)
    one = described(cluster)
    assert (one.blocking, one.replicas) == ("t-0", 1)
    assert one.reason == "the disk of server 3, which is to take it, is full"
    full.clear()
    cluster.run(10_000)
    assert not cluster.nodes[1].host.catalog.added


def test_full_disk_takes_a_partition_only_if_no_other_can(
    cluster: Cluster, full: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain counts its server with those that are down."""
    grown(cluster, [[1, 2, 4]])
    fill(cluster, full, 3)
    cluster.run(2_000)
    plans: list[DrainServers] = []
    catalog = cluster.nodes[1].host.catalog
    monkeypatch.setattr(catalog, "drain_plan", plans.append)
    leave(cluster)
    cluster.run(1_500)
    assert plans[-1].alive == [1, 2]
    fill(cluster, full, 1, 2)
    cluster.run(2_000)
    assert plans[-1].alive == [1, 2, 3], "a full server is a better choice than one that is down"


def test_removal_that_is_blocked_can_be_taken_back(cluster: Cluster) -> None:
    """The server stays as it was, and nothing blocks any more."""
    grown(cluster, [[1, 2, 4]])
    cluster.nodes[3].crash()
    cluster.run(2_000)
    leave(cluster)
    cluster.run(2_500)
    assert described(cluster).reason
    assert leave(cluster, is_leaving=False)[0] is ErrorCode.NONE
    one = described(cluster)
    assert (one.standing, one.blocking, one.reason) == (Standing.MEMBER, "", "")


def test_removal_without_a_majority_of_the_catalog_says_so(cluster: Cluster) -> None:
    """Its partition is not to blame: nothing can be decided."""
    grown(cluster, [[1, 2, 4]])
    for node in cluster.nodes.values():
        node.host.added_servers.replicas_max = lambda: 1
    cluster.propose(CreateTopics([NewTopic("u", b"u" * 16, assignments=[[3]])]))
    leave(cluster)
    for server in (2, 3):
        cluster.nodes[server].crash()
    cluster.run(5_000)
    one = described(cluster)
    assert (one.blocking, one.reason) == ("catalog", "it has no leader (not connected: 2, 3)")


def test_only_voters_of_the_catalog_prove_that_a_server_is_not_alone(cluster: Cluster) -> None:
    """Servers that were added prove nothing, and their loss takes nothing away."""
    for server in range(4, 8):
        assert answer_of(cluster, server, bytes([server]) * 16)[0] is ErrorCode.NONE
        cluster.propose(RegisterServer(server, bytes([server]) * 16, "", {}, False))
    host, proofs = cluster.nodes[1].host, []
    host.confirm_links(proofs.append)
    cluster.run(500)
    state = host.state
    for server in (2, 3):
        cluster.nodes[server].crash()
    cluster.run(2_000)
    answered = state.transport.confirm

    def confirm(server: int, done: Callable[[bool], None]) -> None:
        if server > 3:
            host.clock.call_soon(lambda: done(True))
        else:
            answered(server, done)

    state.transport.confirm = confirm
    linked = {server: Hello(server, bytes([server]) * 16, 1) for server in range(4, 8)}
    state.alive.update(linked)
    host.confirm_links(proofs.append)
    for server in linked:
        del state.alive[server]
    cluster.run(500)
    assert proofs == [True, False]


def test_drained_server_is_removed(cluster: Cluster) -> None:
    """Also one that is dead: its partitions move to the others."""
    (group,) = grown(cluster, [[1, 2, 4]])
    leave(cluster)
    cluster.run(10_000)
    catalog = cluster.nodes[1].host.catalog
    assert [replica.server_id for replica in catalog.listed(group)] == [1, 2, 3]
    assert not catalog.added
    assert catalog.is_removed(4, NEW)


def test_waiting_drain_appends_nothing(cluster: Cluster) -> None:
    """Each second without an entry: the log of the catalog does not grow."""
    grown(cluster, [[1, 2, 4]])
    for node in cluster.nodes.values():
        node.host.added_servers.replicas_max = lambda: 1
    cluster.propose(CreateTopics([NewTopic("u", b"u" * 16, assignments=[[3]])]))
    leave(cluster)
    cluster.run(1_500)
    before = cluster.nodes[1].host.groups[CATALOG_GROUP].node.last_index
    cluster.run(5_000)
    assert cluster.nodes[1].host.groups[CATALOG_GROUP].node.last_index == before
