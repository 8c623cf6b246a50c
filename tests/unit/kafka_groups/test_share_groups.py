"""Share groups on their coordinator: members, assignments, offsets, administration (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka_groups.cluster import Call, Cluster
from vdl.errors import ErrorCode
from vdl.kafka.groups.led_share_groups import SPARE_BYTES
from vdl.kafka.wire import alter_share_group_offsets as alter_wire
from vdl.kafka.wire import delete_groups as delete_groups_wire
from vdl.kafka.wire import delete_share_group_offsets as delete_wire
from vdl.kafka.wire import describe_share_group_offsets as describe_wire
from vdl.kafka.wire import list_groups as list_wire
from vdl.kafka.wire import share_group_describe as group_wire
from vdl.kafka.wire import share_group_heartbeat as wire
from vdl.state import commands, coordinator
from vdl.state.coordinator import Coordinator
from vdl.state.features import SHARE_VERSION
from vdl.state.share_states import ClaimedShareState
from vdl.state.table import decode_value

HEARTBEAT, DESCRIBE, DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 76, 77, 90, 91, 92
LIST_GROUPS, DELETE_GROUPS = 16, 42
GROUP = "queue"


def cluster(**options: Any) -> Cluster:
    made = Cluster(**options)
    made.apply_catalog(commands.UpdateFeatures([commands.FeatureUpdate(SHARE_VERSION, 1)]))
    made.create_topic("t", partitions=3)
    return made


def beat(made: Cluster, member: str, epoch: int, topics: list[str] | None = None) -> Call:
    request = wire.ShareGroupHeartbeatRequest(GROUP, member, epoch, None, topics)
    return made.call(HEARTBEAT, 1, request)


def join(made: Cluster, member: str, *topics: str) -> Any:
    answer = beat(made, member, 0, list(topics or ("t",))).response
    assert answer.error_code == ErrorCode.NONE, answer
    return answer


def places(answer: Any) -> list[int]:
    """Return the partitions of the one topic."""
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]


def claim(made: Cluster, index: int, epoch: int = 1, number: int = 1) -> ClaimedShareState:
    """Claim the state as the leader of the partition does."""
    topic_id = made.servers[1].catalog.topics["t"].topic_id
    command = commands.ClaimSharePartition(GROUP, topic_id, index, epoch, number)
    answer = made.machine(GROUP).apply(command, 0, 0)
    assert answer.error is ErrorCode.NONE
    return decode_value(answer.data, ClaimedShareState)


def test_one_member_reads_everything_and_more_share_it() -> None:
    made = cluster()
    first = join(made, "a")
    assert (first.member_id, first.member_epoch, places(first)) == ("a", 1, [0, 1, 2])
    assert first.heartbeat_interval_ms == 5_000
    second = join(made, "b")
    assert second.member_epoch == 2
    first = beat(made, "a", 1).response
    assert first.member_epoch == 2
    assert sorted(places(first) + places(second)) == [0, 1, 2]
    assert beat(made, "a", 2).response.assignment is None, "nothing is new"
    assert made.machine(GROUP).share.states.of(GROUP).keys() == {
        (made.servers[1].catalog.topics["t"].topic_id, index) for index in range(3)
    }
    made.assert_replicas_equal()


def test_with_more_members_than_partitions_each_reads_one_and_each_is_read() -> None:
    made = cluster()
    for number in range(7):
        join(made, f"m{number}")
    assignment = made.machine(GROUP).share.groups.groups[GROUP].assignment
    assert {len(some) for some in assignment.values()} == {1}
    readers = [place[1] for some in assignment.values() for place in some]
    assert sorted(readers.count(index) for index in range(3)) == [2, 2, 3]


def test_members_with_other_topics_read_those() -> None:
    made = cluster()
    made.create_topic("u", partitions=1)
    join(made, "a", "t", "u")
    join(made, "b", "u")
    assignment = made.machine(GROUP).share.groups.groups[GROUP].assignment
    assert len(assignment["a"]) == 4
    assert len(assignment["b"]) == 1


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "code"),
    [
        ("", 0, ["t"], ErrorCode.INVALID_REQUEST),
        ("x", 0, None, ErrorCode.INVALID_REQUEST),
        ("x", 0, [], ErrorCode.INVALID_REQUEST),
        ("x", -2, None, ErrorCode.INVALID_REQUEST),
        ("x", 3, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", -1, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 9, None, ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_heartbeats_that_are_refused(
    member: str, epoch: int, topics: list[str] | None, code: ErrorCode
) -> None:
    made = cluster()
    join(made, "a")
    assert beat(made, member, epoch, topics).response.error_code == code


def test_topic_is_read_once_all_of_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only a part had room, the rest would begin at 0, as a partition that was added."""
    made = cluster()
    join(made, "a")
    made.create_topic("u", partitions=4)
    topic_id = made.servers[1].catalog.topics["u"].topic_id
    states = made.machine(GROUP).share.states
    room = SPARE_BYTES + 4 * states.size_of(GROUP)
    bytes_max = made.machine(GROUP).shared_bytes + room - 1
    with monkeypatch.context() as full:
        full.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
        assert places(beat(made, "a", 1, ["t", "u"]).response) == [0, 1, 2]
        assert alter(made, "u", 1, 40).error_code == coordinator.COORDINATOR_IS_FULL
        join(made, "b", "t", "u")
        beat(made, "b", -1)
        assert not any(topic == topic_id for topic, _ in states.of(GROUP))
    epoch = made.machine(GROUP).share.groups.groups[GROUP].epoch
    assert len(places(beat(made, "a", epoch).response)) == 7
    begins = {i: one.start_offset for (topic, i), one in states.of(GROUP).items()}
    assert begins == dict.fromkeys(range(4), -1)
    assert all(one.start_offset == -1 for one in states.of(GROUP).values())
    made.assert_replicas_equal()


def test_topics_that_are_not_decided_yet_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups may begin to read at the same time, and only one of them has room."""
    made = cluster()
    made.create_topic("large", partitions=1_000)
    names = [f"queue{number}" for number in range(100)]
    where = made.servers[1].coordinator_group
    one, other = [name for name in names if where(name) == where(names[0])][:2]
    machine = made.machine(one)
    states = machine.share.states
    room = SPARE_BYTES + 1_500 * states.size_of(one)
    with monkeypatch.context() as full:
        bytes_max = machine.shared_bytes + room
        full.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
        made.commits = False
        for name in (one, other, one):
            request = wire.ShareGroupHeartbeatRequest(name, "a", 0, None, ["large"])
            made.call(HEARTBEAT, 1, request)
        made.commits = True
        made.pump()
        assert len(states.of(one)) == 1_000
        assert machine.share.groups.groups[one].topics
        assert not states.of(other)
    beat_again = wire.ShareGroupHeartbeatRequest(other, "a", 1, None, None)
    made.call(HEARTBEAT, 1, beat_again)
    assert len(states.of(other)) == 1_000
    made.assert_replicas_equal()


def test_a_leave_is_decided_alike_by_a_replica_that_has_just_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full coordinator creates no share-partitions then, whichever command came before."""
    topic = commands.ShareTopic("t", b"t" * 16, [101, 102, 103])
    machine, restarted = Coordinator(), Coordinator()
    for index, member in enumerate("ab"):
        join_group = commands.JoinShareGroup(GROUP, member, "", "c", "h", ["t"], [], 10)
        assert machine.apply(join_group, 0, index).error is ErrorCode.NONE
    bytes_max = machine.bytes_held + 3 * machine.share.states.size_of(GROUP) // 2 + 60
    monkeypatch.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
    machine.apply(commands.RefreshShareGroup(GROUP, [topic]), 0, 8)
    assert 0 < len(machine.share.states.of(GROUP)) < 3, "it is full"
    restarted.load(machine.items())
    for one in (machine, restarted):
        one.apply(commands.LeaveShareGroup(GROUP, ["b"], [topic]), 0, 9)
    assert machine.items() == restarted.items()
    assert machine.bytes_held <= bytes_max


def test_a_group_of_another_kind_is_no_share_group() -> None:
    made = cluster()
    made.machine(GROUP).groups.ensure(GROUP, 0)
    assert beat(made, "a", 0, ["t"]).response.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_takes_no_offsets() -> None:
    made = cluster()
    join(made, "a")
    commit = commands.CommitOffsets(GROUP, -1, "", None, [])
    assert made.machine(GROUP).apply(commit, 0, 0).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_that_leaves_gives_its_partitions_to_the_others() -> None:
    made = cluster()
    join(made, "a")
    join(made, "b")
    assert beat(made, "b", -1).response.member_epoch == -1
    assert places(beat(made, "a", 2).response) == [0, 1, 2]
    assert beat(made, "b", 2).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_others_are_not() -> None:
    made = cluster()
    join(made, "a")
    join(made, "b")
    for _ in range(6):
        made.advance(10_000)
        epoch = beat(made, "a", 2).response.member_epoch
    assert epoch == 3
    assert list(made.machine(GROUP).share.groups.groups[GROUP].members) == ["a"]


def test_a_client_that_goes_before_it_has_joined_is_removed() -> None:
    """Otherwise its partitions would have no reader until the coordinator moves."""
    made = cluster()
    join(made, "a")
    made.commits = False
    beat(made, "gone", 0, ["t"]).hang_up()
    made.commits = True
    made.pump()
    members = made.machine(GROUP).share.groups.groups[GROUP].members
    assert list(members) == ["a", "gone"]
    for _ in range(6):
        made.advance(10_000)
        answer = beat(made, "a", 1, ["t"]).response
    assert list(made.machine(GROUP).share.groups.groups[GROUP].members) == ["a"]
    assert places(answer) == [0, 1, 2]


def test_a_new_coordinator_gives_everybody_a_whole_session() -> None:
    made = cluster(servers=2)
    join(made, "a")
    made.advance(40_000)
    number = made.servers[1].coordinator_group(GROUP)
    made.elect(number, 2)
    made.advance(40_000)
    assert list(made.machine(GROUP).share.groups.groups[GROUP].members) == ["a"]
    made.advance(10_000)
    assert not made.machine(GROUP).share.groups.groups[GROUP].members
    made.assert_replicas_equal()


def test_topics_that_come_and_grow_are_read() -> None:
    made = cluster()
    assert places(join(made, "a", "t", "later")) == [0, 1, 2]
    made.create_topic("later", partitions=1)
    answer = beat(made, "a", 1).response
    assert answer.member_epoch == 2
    assert len(places(answer)) == 4
    grown = commands.NewPartitions("t", 5)
    made.apply_catalog(commands.CreatePartitions([grown], False, [1], 0))
    assert len(places(beat(made, "a", 2).response)) == 6
    assert claim(made, 0).start_offset == -1
    assert claim(made, 4).start_offset == 0, "nothing of what was added is missed"


def test_a_group_is_bounded() -> None:
    made = cluster()
    for number in range(200):
        join(made, f"m{number}")
    answer = beat(made, "one more", 0, ["t"]).response
    assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_describing_and_listing() -> None:
    made = cluster()
    join(made, "a")
    request = group_wire.ShareGroupDescribeRequest([GROUP, "nobody"], True)
    found, missing = made.call(DESCRIBE, 1, request).response.groups
    assert (found.group_state, found.assignor_name, found.group_epoch) == ("Stable", "simple", 1)
    (member,) = found.members
    assert (member.member_id, member.subscribed_topic_names) == ("a", ["t"])
    ((topic,),) = [member.assignment.topic_partitions]
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    listed = made.call(LIST_GROUPS, 5, list_wire.ListGroupsRequest([], ["share"])).response
    assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in listed.groups] == [
        (GROUP, "share", "Stable", "share")
    ]


def offsets(made: Cluster, topics: Any = None, group: str = GROUP) -> Any:
    asked = describe_wire.DescribeShareGroupOffsetsRequestGroup(group, topics)
    request = describe_wire.DescribeShareGroupOffsetsRequest([asked])
    (answer,) = made.call(DESCRIBE_OFFSETS, 1, request).response.groups
    return answer


def alter(made: Cluster, topic: str, index: int, offset: int) -> Any:
    partition = alter_wire.AlterShareGroupOffsetsRequestPartition(index, offset)
    named = alter_wire.AlterShareGroupOffsetsRequestTopic(topic, [partition])
    request = alter_wire.AlterShareGroupOffsetsRequest(GROUP, [named])
    return made.call(ALTER_OFFSETS, 0, request).response


def test_offsets_are_described_and_set_where_nobody_is() -> None:
    made = cluster()
    for server in made.servers.values():
        server.stream = lambda _: None  # type: ignore[method-assign]
    join(made, "a")
    (topic,) = offsets(made).topics
    assert [p.start_offset for p in topic.partitions] == [-1, -1, -1]
    assert alter(made, "t", 1, 40).error_code == ErrorCode.NON_EMPTY_GROUP
    before = claim(made, 1)
    beat(made, "a", -1)
    answer = alter(made, "t", 1, 40)
    assert answer.error_code == ErrorCode.NONE
    assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.NONE]
    (topic,) = offsets(made).topics
    assert [p.start_offset for p in topic.partitions] == [-1, 40, -1]
    after = claim(made, 1, 2)
    assert after.state_epoch > before.state_epoch
    assert after.start_offset == 40
    unknown = alter(made, "nothing", 0, 1)
    ((partition,),) = [t.partitions for t in unknown.responses]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    named = [describe_wire.DescribeShareGroupOffsetsRequestTopic("nothing", [0])]
    ((partition,),) = [t.partitions for t in offsets(made, named).topics]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(made, group="nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_all_offsets_are_described_as_often_as_a_group_is_named_up_to_a_bound() -> None:
    """A request of a million names gets no response of gigabytes."""
    made = cluster()
    join(made, "a")
    asked = [describe_wire.DescribeShareGroupOffsetsRequestGroup(GROUP, None) for _ in range(100)]
    request = describe_wire.DescribeShareGroupOffsetsRequest(asked)
    groups = made.call(DESCRIBE_OFFSETS, 1, request).response.groups
    assert [len(group.topics) for group in groups] == [1] * 11 + [0] * 89
    assert [g.error_code for g in groups] == [0] * 11 + [ErrorCode.INVALID_REQUEST] * 89


def test_partitions_beside_those_that_were_set_begin_where_the_setting_says() -> None:
    """Kafka creates them without an offset, except those that AlterShareGroupOffsets names.

    Partitions added later are read from their beginning, also in such a group.
    """
    made = cluster()
    made.create_topic("new", partitions=3)
    join(made, "a")
    beat(made, "a", -1)
    (topic,) = alter(made, "new", 1, 40).responses
    assert [p.error_code for p in topic.partitions] == [ErrorCode.NONE]
    grown = commands.NewPartitions("new", 4)
    made.apply_catalog(commands.CreatePartitions([grown], False, [1], 0))
    join(made, "a", "new")
    states = made.machine(GROUP).share.states.of(GROUP)
    starts = {index: s.start_offset for (id_, index), s in states.items() if id_ != topic_id(made)}
    assert starts == {0: -1, 1: 40, 2: -1, 3: 0}
    made.assert_replicas_equal()


def test_offset_that_is_taken_back_is_where_the_setting_says() -> None:
    """-1 is no offset, as in Kafka; nor is any other negative number."""
    made = cluster()
    join(made, "a")
    beat(made, "a", -1)
    for offset in (-1, -7):
        alter(made, "t", 1, 40)
        before = claim(made, 1, 1)
        assert before.start_offset == 40
        assert alter(made, "t", 1, offset).error_code == ErrorCode.NONE
        after = claim(made, 1, 2)
        assert after.start_offset == -1
        assert after.state_epoch > before.state_epoch


def test_offsets_are_set_before_anybody_comes() -> None:
    """The group is created, as in Kafka (KAFKA-19662), if it gets any offset."""
    made = cluster()
    answer = alter(made, "nothing", 0, 1)
    assert answer.error_code == ErrorCode.NONE
    assert made.machine(GROUP).kind_of(GROUP) is None
    answer = alter(made, "t", 1, 40)
    assert answer.error_code == ErrorCode.NONE
    assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.NONE]
    states = made.machine(GROUP).share.states.of(GROUP)
    assert {index: state.start_offset for (_, index), state in states.items()} == {
        0: -1,
        1: 40,
        2: -1,
    }
    described = group_wire.ShareGroupDescribeRequest([GROUP])
    (group,) = made.call(DESCRIBE, 1, described).response.groups
    assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Empty")
    assert places(join(made, "a")) == [0, 1, 2]
    made.assert_replicas_equal()
    assert claim(made, 1).start_offset == 40


def test_offsets_of_a_group_of_another_kind_are_not_set() -> None:
    made = cluster()
    made.machine(GROUP).groups.ensure(GROUP, 0)
    assert alter(made, "t", 1, 40).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert made.machine(GROUP).share.states.of(GROUP) == {}


def topic_id(made: Cluster) -> bytes:
    """Return the id of the topic that every test has."""
    return made.servers[1].catalog.topics["t"].topic_id


def test_offsets_are_deleted_where_nobody_is() -> None:
    made = cluster()
    join(made, "a")

    def delete(*topics: str) -> Any:
        named = [delete_wire.DeleteShareGroupOffsetsRequestTopic(name) for name in topics]
        request = delete_wire.DeleteShareGroupOffsetsRequest(GROUP, named)
        return made.call(DELETE_OFFSETS, 0, request).response

    assert delete("t").error_code == ErrorCode.NON_EMPTY_GROUP
    beat(made, "a", -1)
    answer = delete("t", "nothing", "t")
    assert [(one.topic_name, one.error_code) for one in answer.responses] == [
        ("t", ErrorCode.NONE),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (again,) = delete("t").responses
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not made.machine(GROUP).share.states.of(GROUP)
    made.assert_replicas_equal()


def test_a_deleted_group_takes_its_share_partitions_along() -> None:
    made = cluster()
    join(made, "a")
    request = delete_groups_wire.DeleteGroupsRequest([GROUP])
    (refused,) = made.call(DELETE_GROUPS, 2, request).response.results
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    beat(made, "a", -1)
    (deleted,) = made.call(DELETE_GROUPS, 2, request).response.results
    assert deleted.error_code == ErrorCode.NONE
    assert not made.machine(GROUP).items()
    made.assert_replicas_equal()


def test_share_partitions_of_deleted_topics_go() -> None:
    made = cluster(offsets_retention_check_ms=1_000)
    join(made, "a")
    made.apply_catalog(commands.DeleteTopics(["t"]))
    made.advance(2_000)
    assert not made.machine(GROUP).share.states.of(GROUP)
    answer = beat(made, "a", 1).response
    assert answer.assignment.topic_partitions == []


def test_nothing_is_served_before_share_groups_are_finalised() -> None:
    made = cluster()
    for server in made.servers.values():
        server.catalog.features.levels.pop(SHARE_VERSION)
    assert beat(made, "a", 0, ["t"]).response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert alter(made, "t", 0, 0).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert offsets(made).error_code == ErrorCode.UNSUPPORTED_VERSION
