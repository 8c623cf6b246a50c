"""Migration of a group to the consumer protocol and back while members are active (KIP-848)."""

from __future__ import annotations

import pytest

from tests.unit.kafka_groups.client import GROUP, heartbeat, join, leave, sync
from tests.unit.kafka_groups.cluster import Cluster
from tests.unit.kafka_groups.consumer import Consumer, group_of, indexes
from tests.unit.kafka_groups.test_offsets import commit, commit_error
from vdl.errors import ErrorCode
from vdl.kafka.groups.led_consumer_groups import LedConsumerGroups
from vdl.kafka.wire import consumer_protocol_subscription as subscription_wire
from vdl.state import coordinator
from vdl.state.commands import SubscribedTopic
from vdl.state.consumer_group import GroupState
from vdl.state.group_kinds import GroupKind
from vdl.state.modern.migration import upgraded
from vdl.state.subscription import read_assignment, read_subscription, write_assignment


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    """Return a subscription as Kafka's consumers encode it."""
    whole = subscription_wire.ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[
            subscription_wire.TopicPartition(name, some) for name, some in (owned or {}).items()
        ],
        generation_id=3,
        rack_id="r",
    )
    parts = subscription_wire.encode(whole, 3)
    return b"\x00\x03" + b"".join(bytes(part) for part in parts)


class ClassicConsumer:
    """Member of the classic protocol that keeps its partitions while it rejoins."""

    def __init__(self, cluster: Cluster, *topics: str) -> None:
        self.cluster = cluster
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []
        first = join(cluster, protocols=self.protocols()).response
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.member_id = first.member_id

    def protocols(self) -> dict[str, bytes]:
        owned = {self.topics[0]: self.owned} if self.owned else None
        return {"cooperative-sticky": subscription(*self.topics, owned=owned)}

    def rejoin(self, assignment: bytes = b"") -> None:
        """Send JoinGroup and SyncGroup; alone in a classic group it leads, and assigns."""
        call = join(self.cluster, self.member_id, protocols=self.protocols())
        if not call.done:
            self.cluster.advance(1_100)
        answer = call.response
        assert answer.error_code == ErrorCode.NONE
        self.generation = answer.generation_id
        assignments = {self.member_id: assignment} if answer.leader == self.member_id else None
        answer = sync(
            self.cluster, self.member_id, self.generation, assignments,
            protocol_name="cooperative-sticky",
        ).response  # fmt: skip
        assert answer.error_code == ErrorCode.NONE
        named = read_assignment(bytes(answer.assignment))
        assert named is not None
        self.owned = sorted(index for _, some in named for index in some)

    def beat(self) -> ErrorCode:
        """Send a heartbeat; join again if the response requires it."""
        error = heartbeat(self.cluster, self.member_id, self.generation)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin()
        return error


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(3)
    found.create_topic("t", partitions=4)
    return found


def settle(cluster: Cluster, *members: Consumer | ClassicConsumer) -> None:
    for _ in range(8):
        cluster.advance(1_100)
        for member in members:
            member.beat()


def started(cluster: Cluster) -> ClassicConsumer:
    classic = ClassicConsumer(cluster, "t")
    classic.rejoin(write_assignment([("t", [0, 1, 2, 3])]))
    assert classic.owned == [0, 1, 2, 3]
    return classic


def test_classic_group_is_upgraded_by_who_joins(cluster: Cluster) -> None:
    """The classic member keeps id, generation and partitions, gives up half, and continues."""
    classic = started(cluster)
    new = Consumer(cluster, "new", "t")
    new.join()
    assert new.error is ErrorCode.NONE
    assert not new.owned
    settle(cluster, classic, new)
    assert (classic.owned, indexes(new)) == ([0, 1], [2, 3])
    assert group_of(cluster).state.value == "Stable"
    assert group_of(cluster).members[classic.member_id].classic is not None
    cluster.assert_replicas_equal()


def test_member_that_finds_no_room_disturbs_no_classic_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again for as long as there is none: each time all members would rejoin."""
    classic = started(cluster)
    machine = cluster.machine(GROUP)
    group = machine.group(GROUP)
    assert group is not None
    topic = cluster.servers[1].catalog.topics["t"]
    known = [SubscribedTopic("t", topic.topic_id, 4, topic.partitions[-1])]
    converted = upgraded(group, known, 0)
    assert converted is not None
    bytes_max = machine.shared_bytes - group.bytes + converted.bytes
    with monkeypatch.context() as full:
        full.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
        new = Consumer(cluster, "new", "t")
        new.join()
        assert new.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert classic.beat() is ErrorCode.NONE
    new.join()
    assert new.error is ErrorCode.NONE
    settle(cluster, classic, new)
    assert (classic.owned, indexes(new)) == ([0, 1], [2, 3])
    cluster.assert_replicas_equal()


def downgrading(cluster: Cluster) -> ClassicConsumer:
    """Return a classic member after the last member of the consumer protocol has left."""
    classic = started(cluster)
    new = Consumer(cluster, "new", "t")
    new.join()
    settle(cluster, classic, new)
    assert new.leave() is ErrorCode.NONE
    cluster.advance(1)
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CLASSIC
    return classic


def test_classic_members_of_a_downgraded_group_keep_what_they_have(cluster: Cluster) -> None:
    """They are requested to join the next generation and stay in theirs until then, as in Kafka.

    A member in another generation would drop its partitions and commit nothing.
    """
    classic = downgrading(cluster)
    error = heartbeat(cluster, classic.member_id, classic.generation)
    assert error is ErrorCode.REBALANCE_IN_PROGRESS
    member = {"member_id": classic.member_id, "generation_id_or_member_epoch": classic.generation}
    assert commit_error(commit(cluster, **member)) is ErrorCode.NONE
    before = classic.generation
    classic.rejoin(write_assignment([("t", [0, 1, 2, 3])]))
    assert classic.generation == before + 1
    cluster.assert_replicas_equal()


def test_static_member_of_the_classic_protocol_joins_a_converted_group(cluster: Cluster) -> None:
    """It needs no member id for that, nor does its next process."""
    new = Consumer(cluster, "new", "t")
    new.join()
    protocols = {"range": subscription("t")}
    ids = []
    for _ in range(2):
        call = join(cluster, group_instance_id="i", protocols=protocols)
        for _ in range(4):
            cluster.advance(1_100)
            new.beat()
        assert call.response.error_code == ErrorCode.NONE
        ids.append(call.response.member_id)
    assert set(group_of(cluster).members) == {"new", ids[1]}
    assert group_of(cluster).static_members == {"i": ids[1]}


def test_member_that_commits_and_sends_no_heartbeat_is_removed(cluster: Cluster) -> None:
    """It would keep partitions that others wait for."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    for _ in range(7):
        cluster.advance(10_000)
        answer = commit(cluster, 5, generation_id_or_member_epoch=one.epoch, member_id="one")
    assert commit_error(answer) is ErrorCode.UNKNOWN_MEMBER_ID
    two.join()
    assert indexes(two) == [0, 1, 2, 3]


def test_downgrade_that_was_not_appended_is_proposed_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each JoinGroup is answered that the group rebalances, for ever."""
    classic = started(cluster)
    new = Consumer(cluster, "new", "t")
    new.join()
    settle(cluster, classic, new)
    with monkeypatch.context() as full:
        full.setattr(LedConsumerGroups, "_downgrade", lambda self, group_id: None)
        new.leave()
        for _ in range(4):
            cluster.advance(1_100)
            answer = join(cluster, classic.member_id, protocols=classic.protocols()).response
            assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CONSUMER
    join(cluster, classic.member_id, protocols=classic.protocols())
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CLASSIC
    classic.rejoin(write_assignment([("t", [0, 1, 2, 3])]))
    assert classic.owned == [0, 1, 2, 3]


def test_group_is_downgraded_by_an_older_command_while_a_server_does_not_know_the_new_one(
    cluster: Cluster,
) -> None:
    """Otherwise that server would stop at the new command.

    The generation is then the group's epoch, as before.
    """
    cluster.speak(10, 2)
    classic = downgrading(cluster)
    error = heartbeat(cluster, classic.member_id, classic.generation)
    assert error is ErrorCode.ILLEGAL_GENERATION
    cluster.assert_replicas_equal()


def test_group_is_downgraded_when_the_last_new_member_goes(cluster: Cluster) -> None:
    """It becomes a classic group, which rebalances."""
    classic = downgrading(cluster)
    classic.rejoin(write_assignment([("t", [0, 1, 2, 3])]))
    assert classic.owned == [0, 1, 2, 3]
    group = cluster.machine(GROUP).group(GROUP)
    assert group is not None
    assert group.state is GroupState.STABLE
    cluster.advance(11_000)
    assert not group.members, "its session runs"
    cluster.assert_replicas_equal()


@pytest.mark.parametrize("has_classic", [True, False])
@pytest.mark.parametrize("policy", ["bidirectional", "upgrade"])
def test_group_is_downgraded_when_the_last_new_member_comes_back_as_a_classic_one(
    *, has_classic: bool, policy: str
) -> None:
    """A static member takes its own place and must join the classic group, as in Kafka.

    If the policy forbids downgrades it becomes a classic member of a consumer group.
    """
    cluster = Cluster(3, group_consumer_migration_policy=policy)
    cluster.create_topic("t", partitions=4)
    classic = started(cluster) if has_classic else None
    new = Consumer(cluster, "new", "t", instance_id="i")
    new.join()
    settle(cluster, *([classic] if classic else []), new)
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CONSUMER
    protocols = {"cooperative-sticky": subscription("t")}
    answer = join(cluster, group_instance_id="i", protocols=protocols).response
    if policy == "upgrade":
        assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CONSUMER
        assert answer.error_code == ErrorCode.NONE
        return
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    cluster.advance(1)
    group = cluster.machine(GROUP).group(GROUP)
    assert group is not None
    assert set(group.static_members) == {"i"}
    call = join(cluster, group_instance_id="i", protocols=protocols)
    if classic is not None:
        assert heartbeat(cluster, classic.member_id, classic.generation) is not ErrorCode.NONE
        other = join(cluster, classic.member_id, protocols=classic.protocols())
    if not call.done:
        cluster.advance(1_100)
    assert call.response.error_code == ErrorCode.NONE
    if classic is not None:
        assert other.response.generation_id == call.response.generation_id
    assert len(group.members) == 1 + has_classic
    cluster.assert_replicas_equal()


def test_classic_member_joins_a_new_group(cluster: Cluster) -> None:
    """It joins and leaves."""
    new = Consumer(cluster, "new", "t")
    new.join()
    classic = ClassicConsumer(cluster, "t")
    classic.rejoin()
    settle(cluster, classic, new)
    assert sorted(classic.owned + indexes(new)) == [0, 1, 2, 3]
    assert len(classic.owned) == 2
    assert leave(cluster, (classic.member_id, None)).response.members[0].error_code == 0
    settle(cluster, new)
    assert indexes(new) == [0, 1, 2, 3]


def test_classic_member_that_does_not_rejoin_is_expelled(cluster: Cluster) -> None:
    """It is expelled after its rebalance timeout, although it sends heartbeats."""
    classic = started(cluster)
    new = Consumer(cluster, "new", "t")
    new.join()
    for _ in range(16):
        heartbeat(cluster, classic.member_id, classic.generation)
        new.beat()
        cluster.advance(5_000)
    assert set(group_of(cluster).members) == {"new"}
    settle(cluster, new)
    assert indexes(new) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_group_is_not_upgraded_where_that_is_not_wanted(policy: str) -> None:
    """A member of the consumer protocol finds no group of its kind."""
    cluster = Cluster(group_consumer_migration_policy=policy)
    cluster.create_topic("t")
    classic = started(cluster)
    new = Consumer(cluster, "new", "t")
    new.join()
    assert new.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.beat() is ErrorCode.NONE


def test_group_that_is_not_of_consumers_is_not_upgraded(cluster: Cluster) -> None:
    """Kafka Connect's workers are also members of groups."""
    first = join(cluster, protocol_type="connect").response
    assert join(cluster, first.member_id, protocol_type="connect").response.error_code == 0
    new = Consumer(cluster, "new", "t")
    new.join()
    assert new.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CLASSIC


def test_classic_member_of_another_type_does_not_join_a_new_group(cluster: Cluster) -> None:
    """INCONSISTENT_GROUP_PROTOCOL, as in a classic group."""
    new = Consumer(cluster, "new", "t")
    new.join()
    error = join(cluster, protocol_type="connect").response.error_code
    assert error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_empty_group_changes_its_kind_and_keeps_its_offsets(cluster: Cluster) -> None:
    """Applies in both directions, without an error or a message."""
    classic = started(cluster)
    leave(cluster, (classic.member_id, None))
    new = Consumer(cluster, "new", "t")
    new.join()
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CONSUMER
    new.leave()
    started(cluster)
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CLASSIC
    cluster.assert_replicas_equal()


def test_subscription_is_read_as_kafka_writes_it() -> None:
    """Covers topics, owned partitions and rack; invalid bytes give none."""
    whole = subscription("t", "ü", owned={"t": [3, 1]})
    found = read_subscription(whole)
    assert found is not None
    assert (found.topics, found.owned, found.rack) == ({"t", "ü"}, (("t", (3, 1)),), "r")
    for end in range(len(whole)):
        assert read_subscription(whole[:end]) is None
    assert read_assignment(write_assignment([("ü", [2, 0])])) == [("ü", [2, 0])]
