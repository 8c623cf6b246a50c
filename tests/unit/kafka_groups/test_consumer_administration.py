"""KIP-848 groups: descriptions for tools, permission to commit, and retention of offsets."""

from __future__ import annotations

from typing import Any

import pytest

from rpc.hello import PROTOCOL_VERSION, VERSION_OF_MANY_POSITIONS
from tests.unit.kafka_groups.client import GROUP, leave, stable_group
from tests.unit.kafka_groups.cluster import Cluster
from tests.unit.kafka_groups.consumer import Consumer, settle
from vdl.errors import ErrorCode
from vdl.kafka.wire import consumer_group_describe as describe_wire
from vdl.kafka.wire import delete_groups as delete_wire
from vdl.kafka.wire import describe_groups as old_describe_wire
from vdl.kafka.wire import list_groups as list_wire
from vdl.kafka.wire import offset_commit as commit_wire
from vdl.kafka.wire import offset_delete as offset_delete_wire
from vdl.kafka.wire import offset_fetch as fetch_wire
from vdl.state import commands
from vdl.state.group_kinds import GroupKind

DAY_MS, MINUTE_MS = 86_400_000, 60_000


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(1)
    found.create_topic("t", partitions=2)
    found.create_topic("u", partitions=1)
    return found


def commit(
    cluster: Cluster, member_id: str, epoch: int, topic: str = "t", *, version: int = 9
) -> ErrorCode:
    request = commit_wire.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[
            commit_wire.OffsetCommitRequestTopic(
                topic, partitions=[commit_wire.OffsetCommitRequestPartition(0, 5)]
            )
        ],
    )
    (answered,) = cluster.call(8, version, request).response.topics
    return ErrorCode(answered.partitions[0].error_code)


def fetch(cluster: Cluster, member_id: str | None, epoch: int) -> tuple[ErrorCode, list[int]]:
    topics = [fetch_wire.OffsetFetchRequestTopics("t", partition_indexes=[0])]
    asked = fetch_wire.OffsetFetchRequestGroup(GROUP, member_id, epoch, topics)
    (group,) = cluster.call(9, 9, fetch_wire.OffsetFetchRequest(groups=[asked])).response.groups
    found = [one.committed_offset for topic in group.topics for one in topic.partitions]
    return ErrorCode(group.error_code), found


def listed(cluster: Cluster, **filters: Any) -> list[tuple[str, str, str]]:
    answer = cluster.call(16, 5, list_wire.ListGroupsRequest(**filters)).response
    return [(one.group_state, one.group_type, one.protocol_type) for one in answer.groups]


def test_group_is_described_with_epochs_and_both_assignments(cluster: Cluster) -> None:
    """Includes current and target assignment."""
    one, two = Consumer(cluster, "one", "t", rack_id="r"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    request = describe_wire.ConsumerGroupDescribeRequest([GROUP, "nobody", ""], True)
    found, missing, bad = cluster.call(69, 1, request).response.groups
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Reconciling", 2, 2)
    assert (found.assignor_name, found.authorized_operations > 0) == ("uniform", True)
    first, second = found.members
    assert (first.rack_id, first.member_epoch, first.member_type) == ("r", 1, 1)
    assert first.subscribed_topic_names == ["t"]
    assert [(t.topic_name, t.partitions) for t in first.assignment.topic_partitions] == [
        ("t", [0, 1])
    ]
    assert [t.partitions for t in first.target_assignment.topic_partitions] == [[0]]
    assert [t.partitions for t in second.target_assignment.topic_partitions] == [[1]]
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bad.error_code == ErrorCode.INVALID_GROUP_ID


def test_each_protocol_describes_its_own_kind(cluster: Cluster) -> None:
    """Groups of the other protocol are not found, and the message gives the reason."""
    stable_group(cluster, 1)
    request = describe_wire.ConsumerGroupDescribeRequest([GROUP])
    (found,) = cluster.call(69, 0, request).response.groups
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "not a consumer group" in found.error_message
    other = Cluster(1)
    other.create_topic("t")
    Consumer(other, "one", "t").join()
    old = old_describe_wire.DescribeGroupsRequest([GROUP])
    (found,) = other.call(15, 6, old).response.groups
    assert (found.group_state, found.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert "not a classic group" in found.error_message


def test_groups_are_listed_by_type_and_state(cluster: Cluster) -> None:
    """KIP-518, KIP-848; names of types in any letter case."""
    one = Consumer(cluster, "one", "t")
    one.join()
    assert listed(cluster) == [("Stable", "consumer", "consumer")]
    assert listed(cluster, types_filter=["Consumer"], states_filter=["stable"])
    assert not listed(cluster, types_filter=["classic"])
    assert not listed(cluster, states_filter=["Empty"])
    one.leave()
    assert listed(cluster, states_filter=["Empty"])


def test_member_commits_in_its_present_epoch_only(cluster: Cluster) -> None:
    """Otherwise STALE_MEMBER_EPOCH; a version without epochs is refused.

    Without members in the group any client may commit.
    """
    one = Consumer(cluster, "one", "t")
    one.join()
    assert commit(cluster, "one", one.epoch) is ErrorCode.NONE
    assert commit(cluster, "one", one.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(cluster, "one", one.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(cluster, "two", one.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(cluster, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(cluster, "one", one.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    one.leave()
    assert commit(cluster, "", -1) is ErrorCode.NONE


def test_member_reads_offsets_in_its_present_epoch_only(cluster: Cluster) -> None:
    """Applies to a client that names a member; any other may read."""
    one = Consumer(cluster, "one", "t")
    one.join()
    commit(cluster, "one", one.epoch)
    assert fetch(cluster, "one", one.epoch) == (ErrorCode.NONE, [5])
    assert fetch(cluster, None, -1) == (ErrorCode.NONE, [5])
    assert fetch(cluster, "one", one.epoch + 1) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert fetch(cluster, "two", one.epoch) == (ErrorCode.UNKNOWN_MEMBER_ID, [])


def test_group_with_members_is_not_deleted_nor_offsets_in_use(cluster: Cluster) -> None:
    """KIP-229, KIP-496."""
    one = Consumer(cluster, "one", "t")
    one.join()
    for topic in ("t", "u"):
        assert commit(cluster, "one", one.epoch, topic) is ErrorCode.NONE
    request = offset_delete_wire.OffsetDeleteRequest(
        GROUP,
        [
            offset_delete_wire.OffsetDeleteRequestTopic(
                name, [offset_delete_wire.OffsetDeleteRequestPartition(0)]
            )
            for name in ("t", "u")
        ],
    )
    answered = cluster.call(47, 0, request).response.topics
    assert [topic.partitions[0].error_code for topic in answered] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    delete = delete_wire.DeleteGroupsRequest([GROUP])
    assert cluster.call(42, 2, delete).response.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    one.leave()
    assert cluster.call(42, 2, delete).response.results[0].error_code == ErrorCode.NONE
    assert cluster.machine(GROUP).kind_of(GROUP) is None
    assert not cluster.machine(GROUP).offsets.of(GROUP)


def test_offsets_of_topics_nobody_subscribes_to_expire(cluster: Cluster) -> None:
    """Offsets in use stay. A group without members is removed with its last offset."""
    one = Consumer(cluster, "one", "t")
    one.join()
    for topic in ("t", "u"):
        commit(cluster, "one", one.epoch, topic)
    machine = cluster.machine(GROUP)
    now_ms = cluster.servers[1].clock.wall_ms() + DAY_MS
    machine.apply(commands.ExpireOffsets(1_000, [], now_ms), now_ms, 1_000)
    assert set(machine.offsets.of(GROUP)) == {("t", 0)}
    settle(cluster, one)
    one.leave()
    machine.apply(commands.ExpireOffsets(1_000, [], now_ms), now_ms, 1_001)
    assert machine.kind_of(GROUP) is None


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("version", [PROTOCOL_VERSION, VERSION_OF_MANY_POSITIONS - 1])
def test_offsets_of_a_group_expire_a_while_after_its_last_member_left(
    version: int, *, deletes: bool
) -> None:
    """They may be older, because a quiet partition is not committed again.

    A client that is restarted would lose its place.
    """
    cluster = Cluster(3, offsets_retention_minutes=30)
    cluster.speak(version, 2, 3)
    for topic in ("t", "u"):
        cluster.create_topic(topic)
    one = Consumer(cluster, "one", "t", "u")
    one.join()
    for topic in ("t", "u"):
        commit(cluster, "one", one.epoch, topic)
    for _ in range(80):
        cluster.advance(MINUTE_MS // 2)
        one.beat()
    one.leave()
    if deletes:
        cluster.apply_catalog(commands.DeleteTopics(["u"]))
    cluster.advance(20 * MINUTE_MS)
    assert ("t", 0) in cluster.machine(GROUP).offsets.of(GROUP)
    if version == PROTOCOL_VERSION:
        assert (("u", 0) in cluster.machine(GROUP).offsets.of(GROUP)) is not deletes
    cluster.advance(30 * MINUTE_MS)
    assert cluster.machine(GROUP).kind_of(GROUP) is None
    cluster.assert_replicas_equal()


def test_settings_of_a_group_take_effect(cluster: Cluster) -> None:
    """Covers consumer.heartbeat.interval.ms and similar ones, from the next heartbeat on."""
    one = Consumer(cluster, "one", "t")
    one.join()
    assert one.call is not None
    assert one.call.response.heartbeat_interval_ms == 5_000
    change = commands.ConfigChange(GROUP, {"consumer.heartbeat.interval.ms": "7000"})
    cluster.apply_catalog(commands.AlterResourceConfigs([(32, change)]))
    one.send()
    assert one.call.response.heartbeat_interval_ms == 7_000


def test_group_that_is_full_takes_nobody(cluster: Cluster) -> None:
    """group.consumer.max.size; existing members continue."""
    cluster.servers[1].context.config = cluster.options.__class__(group_consumer_max_size=1)
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.send(**two.full())
    two.take()
    assert two.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    one.beat()
    assert one.error is ErrorCode.NONE


def test_classic_group_of_the_name_keeps_others_out_until_it_is_empty(cluster: Cluster) -> None:
    """A group id belongs to one kind of group at a time."""
    ids, _ = stable_group(cluster, 1)
    one = Consumer(cluster, "one", "t")
    one.send(**one.full())
    one.take()
    assert one.error is ErrorCode.GROUP_ID_NOT_FOUND, "its metadata is no subscription"
    leave(cluster, (ids[0], None))
    one.join()
    assert one.error is ErrorCode.NONE
    assert cluster.machine(GROUP).kind_of(GROUP) is GroupKind.CONSUMER
