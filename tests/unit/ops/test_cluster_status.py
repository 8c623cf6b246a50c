"""`vdl status` merges the reports of several servers, even when some are silent."""

import pytest

from rpc.admin import GroupStatus, ProgressState, ReplicaProgress, Role
from vdl.commands.checks.cluster_status import (
    ClusterStatus,
    Group,
    Server,
    _add_topics,
    admin_address,
    fill_group,
)
from vdl.config.values import Address
from vdl.kafka.wire.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def replica_id(server):
    return server << 16 | 1


def replica(server, role, *, term=3, end=100, last=50, match=None, voters=(1, 2, 3)):
    progress = [
        ReplicaProgress(replica_id(number), ProgressState.REPLICATE, index, index + 1)
        for number, index in (match or {}).items()
    ]
    return GroupStatus(
        9, "orders-0", replica_id(server), role, term, replica_id(1),
        last_index=last, high_watermark=end, end_offset=end, progress=progress,
        voters=[replica_id(number) for number in voters],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PLAINTEXT://a:9092,ADMIN://b:9112", Address("b", 9112)),
        (" ADMIN://[::1]:9112 ", Address("::1", 9112)),
        ("PLAINTEXT://a:9092", None),
        ("ADMIN://nonsense", None),
        ("", None),
    ],
)
def test_admin_address_in_advertised_listeners_is_found(text, address):
    """The listener named ADMIN, in the form Kafka shows listeners."""
    assert admin_address(text) == address


def test_group_lag_is_what_the_leader_has_and_a_replica_has_not():
    """A replica's lag is in records by its own report, in durable entries by its leader's."""
    by_server = {
        1: replica(1, Role.LEADER, match={1: 50, 2: 48, 3: 20}),
        2: replica(2, Role.FOLLOWER, end=96),
    }
    group = fill_group(Group("orders-0"), [1, 2, 3], by_server)
    assert (group.leader, group.term, group.end_offset) == (1, 3, 100)
    assert [one.lag for one in group.replicas] == [0, 4, -1]
    assert [one.lag_entries for one in group.replicas] == [0, 2, 30]
    assert group.replicas[2].role == "unknown"


@pytest.mark.parametrize(
    ("voters", "roles"),
    [
        ([(1, 2, 3), (1, 2, 3), (1, 2, 3)], ["leader", "follower", "follower"]),
        ([(1, 2), (1, 2), ()], ["leader", "follower", "learner"]),
        ([(1, 2, 3), (1, 2), (1, 2, 3)], ["leader", "follower", "learner"]),
        ([(1, 2, 3), (1, 2, 3), (1, 2)], ["leader", "follower", "learner"]),
    ],
    ids=["all know it", "caught up", "a follower has not heard", "it has not heard itself"],
)
def test_replica_is_a_learner_until_all_know_that_it_votes(voters, roles):
    """An operator who stops a server relies on the others.

    A majority that does not know the new voter cannot be formed with it.
    """
    shown = (Role.LEADER, Role.FOLLOWER, Role.FOLLOWER)
    by_server = {
        number: replica(number, shown[number - 1], voters=voters[number - 1])
        for number in (1, 2, 3)
    }
    group = fill_group(Group("orders-0"), [1, 2, 3], by_server)
    assert [one.role for one in group.replicas] == roles


def test_group_whose_leader_is_not_known_to_all_has_a_leader():
    """Reports of a replica that is no longer a member, or not yet a voter, do not count."""
    by_server = {
        1: replica(1, Role.LEADER, voters=(1, 2)),
        2: replica(2, Role.FOLLOWER, voters=(1, 2)),
        3: replica(3, Role.FOLLOWER, voters=(2, 3)),
    }
    group = fill_group(Group("orders-0"), [1, 2], by_server)
    assert [one.role for one in group.replicas] == ["leader", "follower"]


def test_group_with_two_leaders_believes_the_newer_term():
    """A deposed leader that does not know it yet is not shown as the leader."""
    by_server = {1: replica(1, Role.LEADER, term=3), 2: replica(2, Role.LEADER, term=4)}
    assert fill_group(Group("orders-0"), [1, 2], by_server).leader == 2


def test_follower_that_answered_later_has_no_negative_lag():
    """Servers are queried one after another; a follower may have more by then."""
    by_server = {1: replica(1, Role.LEADER), 2: replica(2, Role.FOLLOWER, end=105)}
    assert fill_group(Group("orders-0"), [1, 2], by_server).replicas[1].lag == 0


def test_replica_is_in_sync_as_clients_are_told():
    """Status, Metadata and metrics agree on a replica."""
    row = MetadataResponsePartition(0, 0, 1, 3, [1, 2, 3], [1, 3], [])
    topic = MetadataResponseTopic(name="orders", partitions=[row])
    status = ClusterStatus("c")
    _add_topics(status, MetadataResponse(topics=[topic]), {})
    (partition,) = status.topics[0].partitions
    told = [(replica.server, replica.is_in_sync) for replica in partition.replicas]
    assert told == [(1, True), (2, False), (3, True)]


def test_internal_topic_is_no_topic_of_its_own():
    """An internal topic's partitions are the coordinators, each of which is reported as a group."""
    row = MetadataResponsePartition(0, 0, 1, 3, [1, 2, 3], [1, 3], [])
    topic = MetadataResponseTopic(name="__consumer_offsets", is_internal=True, partitions=[row])
    status = ClusterStatus("c")
    _add_topics(status, MetadataResponse(topics=[topic]), {})
    assert status.topics == []


def test_cluster_health_needs_every_server_and_every_leader():
    """Exit code of `vdl status`: one silent server or one group without a leader makes it fail."""
    healthy = ClusterStatus("c", [Server(1, "a:1")], groups=[Group("catalog", leader=1)])
    assert healthy.is_healthy
    silent = ClusterStatus("c", [Server(1, "a:1", problem="is down")], groups=healthy.groups)
    assert not silent.is_healthy
    assert not ClusterStatus("c", healthy.servers, groups=[Group("catalog")]).is_healthy
