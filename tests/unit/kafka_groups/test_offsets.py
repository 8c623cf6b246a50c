"""OffsetCommit, OffsetFetch, OffsetDelete: permission to commit, responses and retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.kafka_groups.client import GROUP, heartbeat, join, leave, stable_group
from tests.unit.kafka_groups.cluster import Call, Cluster, FakeServer
from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts, Place
from vdl.kafka.groups import led_coordinator, offset_expiry
from vdl.kafka.handlers import offsets
from vdl.kafka.wire import offset_commit as commit_wire
from vdl.kafka.wire import offset_delete as delete_wire
from vdl.kafka.wire import offset_fetch as fetch_wire
from vdl.state import commands
from vdl.state.coordinator import Coordinator

COMMIT, FETCH, DELETE = 8, 9, 47
DAY_MS = 86_400_000


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(3)
    cluster.create_topic("t")
    return cluster


def commit(
    cluster: Cluster,
    offset: int = 10,
    *,
    version: int = 9,
    server: int = 1,
    topic: str = "t",
    partition: int = 0,
    metadata: str | None = "m",
    **fields: Any,
) -> Call:
    position = commit_wire.OffsetCommitRequestPartition(partition, offset)
    position.committed_metadata = metadata
    if version >= 6:
        position.committed_leader_epoch = 3
    request = commit_wire.OffsetCommitRequest(
        group_id=fields.pop("group_id", GROUP),
        topics=[commit_wire.OffsetCommitRequestTopic(topic, partitions=[position])],
        **fields,
    )
    if version >= 10:
        request.topics[0].name = ""
        request.topics[0].topic_id = id_of(cluster, topic)
    return cluster.call(COMMIT, version, request, server=server)


def id_of(cluster: Cluster, name: str) -> bytes:
    """Return the id of a topic, or an unused id if it does not exist."""
    topic = cluster.servers[1].catalog.topics.get(name)
    return b"n" * 16 if topic is None else topic.topic_id


def commit_error(call: Call) -> ErrorCode:
    ((partition,),) = (topic.partitions for topic in call.response.topics)
    return ErrorCode(partition.error_code)


def fetch(
    cluster: Cluster,
    *,
    version: int = 9,
    server: int = 1,
    group_id: str = GROUP,
    topics: dict[str, list[int]] | None = None,
) -> Call:
    if version >= 8:
        asked = fetch_wire.OffsetFetchRequestGroup(group_id)
        asked.topics = None
        if topics is not None:
            asked.topics = [
                fetch_wire.OffsetFetchRequestTopics(name=n, partition_indexes=p)
                for n, p in topics.items()
            ]
            for one in asked.topics if version >= 10 else ():
                one.topic_id = id_of(cluster, one.name)
                one.name = ""
        request = fetch_wire.OffsetFetchRequest(groups=[asked])
    else:
        request = fetch_wire.OffsetFetchRequest(group_id=group_id, topics=None)
        if topics is not None:
            request.topics = [fetch_wire.OffsetFetchRequestTopic(n, p) for n, p in topics.items()]
    return cluster.call(FETCH, version, request, server=server)


def positions(call: Call) -> dict[tuple[str, int], int]:
    response = call.response
    topics = response.groups[0].topics if call.version >= 8 else response.topics
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(11))
def test_offset_committed_in_any_version_is_fetched_in_any(cluster: Cluster, version: int) -> None:
    """Offset, leader epoch (from v6 and v5) and metadata are returned."""
    assert commit_error(commit(cluster, 42, version=version)) is ErrorCode.NONE
    for fetched in range(11):
        call = fetch(cluster, version=fetched, topics={"t": [0, 1]})
        name = "t" if fetched < 10 else ""
        assert positions(call) == {(name, 0): 42, (name, 1): -1}
        response = call.response
        topics = response.groups[0].topics if fetched >= 8 else response.topics
        found = topics[0].partitions[0]
        assert (found.metadata, found.error_code) == ("m", 0)
        if fetched >= 5:
            assert found.committed_leader_epoch == (3 if version >= 6 else -1)


@pytest.mark.parametrize("version", [7, 9, 10])
def test_position_that_is_named_a_million_times_makes_no_answer_of_gigabytes(
    cluster: Cluster, version: int
) -> None:
    """Four bytes of request stand for four kilobytes of text. Named twice it is returned twice."""
    assert commit_error(commit(cluster, 42, metadata="m" * 4_000)) is ErrorCode.NONE
    twice = fetch(cluster, version=version, topics={"t": [0, 0]}).response
    topics = twice.groups[0].topics if version >= 8 else twice.topics
    assert [p.committed_offset for p in topics[0].partitions] == [42, 42]
    response = fetch(cluster, version=version, topics={"t": [0] * 5_000}).response
    topics = response.groups[0].topics if version >= 8 else response.topics
    found = topics[0].partitions
    refused = [p for p in found if p.error_code == ErrorCode.INVALID_REQUEST]
    assert (len(found), len(refused)) == (5_000, 3_999)
    assert {(p.committed_offset, p.metadata) for p in refused} == {(-1, "")}


def test_all_positions_of_a_group_are_answered_as_often_as_it_is_named_up_to_a_bound(
    cluster: Cluster,
) -> None:
    """As in Kafka, but a request of a million names gets no response of gigabytes."""
    assert commit_error(commit(cluster, 42)) is ErrorCode.NONE
    asked = [fetch_wire.OffsetFetchRequestGroup(GROUP, topics=None) for _ in range(100)]
    request = fetch_wire.OffsetFetchRequest(groups=asked)
    groups = cluster.call(FETCH, 9, request).response.groups
    assert [g.error_code for g in groups] == [0] * 11 + [ErrorCode.INVALID_REQUEST] * 89
    assert [len(g.topics) for g in groups] == [1] * 11 + [0] * 89


def test_partition_without_a_position_is_unknown_in_version_0(cluster: Cluster) -> None:
    """The response is as if ZooKeeper had no node. From v1 on it is no error."""
    for version, code in ((0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (1, ErrorCode.NONE)):
        call = fetch(cluster, version=version, topics={"t": [0]})
        (partition,) = call.response.topics[0].partitions
        assert (partition.committed_offset, partition.error_code) == (-1, code)


@pytest.mark.parametrize("version", [2, 7, 8, 9])
def test_all_offsets_of_a_group_are_fetched_without_naming_topics(
    cluster: Cluster, version: int
) -> None:
    """Topics None: all committed offsets of the group."""
    cluster.create_topic("u")
    commit(cluster, 1, topic="t", partition=2)
    commit(cluster, 2, topic="u", partition=0)
    commit(cluster, 3, group_id="other")
    assert positions(fetch(cluster, version=version)) == {("t", 2): 1, ("u", 0): 2}


@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_all_offsets_of_a_large_group_are_fetched_in_parts(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts together are the answer that one turn would make, in the order of the commits. Each
    has few offsets of any topic."""
    cluster = Cluster(1)
    for name, count in (("t", 3), ("u", 400), ("v", 2)):
        cluster.create_topic(name, partitions=count)
        request = commit_wire.OffsetCommitRequest(group_id=GROUP)
        request.topics = [
            commit_wire.OffsetCommitRequestTopic(
                name,
                partitions=[
                    commit_wire.OffsetCommitRequestPartition(number, 10 + number)
                    for number in range(count)
                ],
            )
        ]
        cluster.call(COMMIT, 8, request)
    call = fetch(cluster, version=version)
    answer = call.answer.response  # type: ignore[union-attr]
    assert isinstance(answer, InParts)
    told = call.response
    sizes = []
    for _, page in answer.responses(lambda: 7):
        topics = page.topics if version < 8 else [t for g in page.groups for t in g.topics]
        sizes.append(sum(1 + len(topic.partitions) for topic in topics))
    assert max(sizes) <= 7 + 2
    monkeypatch.setattr(offsets, "PART_ELEMENTS", 10_000)
    assert told == fetch(cluster, version=version).response


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("parts_before", [1, 4])
def test_offsets_of_a_large_group_are_refused_when_they_move_in_between(
    version: int, parts_before: int
) -> None:
    """A partition that is left out would be taken for one without an offset. So it is if they move
    within a topic that has more partitions than a part."""
    cluster = Cluster(1)
    cluster.create_topic("t", partitions=300)
    request = commit_wire.OffsetCommitRequest(group_id=GROUP)
    request.topics = [
        commit_wire.OffsetCommitRequestTopic(
            "t",
            partitions=[
                commit_wire.OffsetCommitRequestPartition(number, 10) for number in range(300)
            ],
        )
    ]
    cluster.call(COMMIT, 8, request)
    call = fetch(cluster, version=version)
    answer = call.answer.response  # type: ignore[union-attr]
    assert isinstance(answer, InParts)
    responses = answer.responses

    def moving(_size: Callable[[], int]) -> Iterator[tuple[Place, Any]]:
        for number, page in enumerate(responses(lambda: 50)):
            if number == parts_before:
                cluster.elect(cluster.servers[1].coordinator_group(GROUP), 1, serve=False)
            yield page

    answer.responses = moving
    told = call.response if version < 8 else call.response.groups[0]
    assert told.error_code == ErrorCode.NOT_COORDINATOR


def test_topics_are_named_by_id_from_version_10(cluster: Cluster) -> None:
    """An id unknown here is refused by itself (KIP-848), and clients retry it.

    A deleted topic has no committed offsets, even if its name exists again.
    """
    cluster.create_topic("u")
    commit(cluster, 5, topic="t", version=10)
    commit(cluster, 6, topic="u", version=10)
    assert commit_error(commit(cluster, 7, topic="no", version=10)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert commit_error(commit(cluster, 7, partition=99, version=10)) is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    asked = fetch(cluster, version=10, topics={"t": [0], "no": [0, 1]}).response.groups[0]
    assert [
        (topic.topic_id, [(p.committed_offset, p.error_code) for p in topic.partitions])
        for topic in asked.topics
    ] == [
        (id_of(cluster, "t"), [(5, 0)]),
        (id_of(cluster, "no"), [(-1, ErrorCode.UNKNOWN_TOPIC_ID)] * 2),
    ]
    everything = fetch(cluster, version=10).response.groups[0]
    assert {
        topic.topic_id: topic.partitions[0].committed_offset for topic in everything.topics
    } == {
        id_of(cluster, "t"): 5,
        id_of(cluster, "u"): 6,
    }


def test_several_groups_are_fetched_from_their_own_coordinators(cluster: Cluster) -> None:
    """v8 (KIP-709): a group of another coordinator gets error 16, the others are answered."""
    names = [GROUP, "group2", "group3"]
    for name in names:
        commit(cluster, len(name), group_id=name)
    elsewhere = cluster.servers[1].coordinator_group(GROUP)
    assert len({cluster.servers[1].coordinator_group(name) for name in names}) == 2
    cluster.elect(elsewhere, 2)
    asked = [fetch_wire.OffsetFetchRequestGroup(name) for name in names]
    for group in asked:
        group.topics = None
    call = cluster.call(FETCH, 9, fetch_wire.OffsetFetchRequest(groups=asked))
    for group in call.response.groups:
        here = cluster.servers[1].coordinator_group(group.group_id) != elsewhere
        assert group.error_code == (0 if here else ErrorCode.NOT_COORDINATOR)
        assert bool(group.topics) == here


def test_group_nobody_knows_has_no_offsets_and_no_error(cluster: Cluster) -> None:
    """A consumer that starts for the first time sends exactly this request."""
    call = fetch(cluster, group_id="new", topics={"t": [0]})
    assert positions(call) == {("t", 0): -1}
    assert call.response.groups[0].error_code == 0


def test_commit_without_a_group_is_for_groups_without_members(cluster: Cluster) -> None:
    """Generation -1: a consumer with assigned partitions, or a tool."""
    assert commit_error(commit(cluster, 1)) is ErrorCode.NONE
    (member, _), _ = stable_group(cluster)
    assert commit_error(commit(cluster, 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    leave(cluster, (member, None))
    assert positions(fetch(cluster)) == {("t", 0): 1}


def test_commit_is_for_members_in_their_generation(cluster: Cluster) -> None:
    """Errors 22, 25, 82: a zombie moves no committed offset."""
    for version, error_then in ((8, 22), (9, 69)):  # KIP-848: a group that does not exist
        wrong = commit(cluster, version=version, generation_id_or_member_epoch=0, member_id="m")
        assert commit_error(wrong) == error_then
    (member, _), generation = stable_group(cluster)

    def error(**fields: Any) -> ErrorCode:
        values = {"generation_id_or_member_epoch": generation, "member_id": member}
        return commit_error(commit(cluster, **(values | fields)))

    assert error() is ErrorCode.NONE
    assert error(generation_id_or_member_epoch=generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert error(generation_id_or_member_epoch=generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert error(member_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert error(group_instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID
    static = join(cluster, group_instance_id="i")
    assert error() is ErrorCode.NONE, "while others are awaited it may still commit"
    assert error(group_instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert not static.done


def test_commit_while_the_assignment_is_awaited_is_told_to_rebalance(cluster: Cluster) -> None:
    """Error 27: the member is in this generation but owns nothing in it yet."""
    member = join(cluster, version=3).response.member_id
    call = commit(cluster, generation_id_or_member_epoch=1, member_id=member)
    assert commit_error(call) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_is_a_sign_of_life(cluster: Cluster) -> None:
    """It counts as a heartbeat: a member that only commits stays in its group."""
    (member,), generation = stable_group(cluster, 1)
    for _ in range(4):
        cluster.advance(9_000)
        call = commit(cluster, generation_id_or_member_epoch=generation, member_id=member)
        assert commit_error(call) is ErrorCode.NONE


def test_partitions_are_refused_one_by_one(cluster: Cluster) -> None:
    """Error 3 for unknown partitions, 12 one past the limit; the rest is committed."""
    position = commit_wire.OffsetCommitRequestPartition
    good, long, gone = position(0, 1), position(1, 2), position(4, 3)
    good.committed_metadata, long.committed_metadata = "x" * 4096, "x" * 4097
    topic = commit_wire.OffsetCommitRequestTopic
    request = commit_wire.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            topic(name="t", partitions=[good, long, gone]),
            topic(name="no", partitions=[position(0, 4)]),
        ],
    )
    answered = cluster.call(COMMIT, 9, request).response
    assert [[p.error_code for p in t.partitions] for t in answered.topics] == [
        [0, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert positions(fetch(cluster)) == {("t", 0): 1}


def test_metadata_that_is_null_is_empty(cluster: Cluster) -> None:
    """Same as in Kafka."""
    commit(cluster, 1, metadata=None)
    group = fetch(cluster).response.groups[0]
    assert group.topics[0].partitions[0].metadata == ""


def test_topic_created_again_has_no_committed_offsets(cluster: Cluster) -> None:
    """An offset belongs to the topic that was read, not to its name."""
    commit(cluster, 500)
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    assert positions(fetch(cluster)) == {}
    cluster.create_topic("t", b"another topic id")
    assert positions(fetch(cluster, topics={"t": [0]})) == {("t", 0): -1}
    assert positions(fetch(cluster)) == {}
    commit(cluster, 3)
    assert positions(fetch(cluster)) == {("t", 0): 3}


def lead_behind(cluster: Cluster) -> FakeServer:
    """Return a coordinator whose catalog still has a topic that was deleted and created again.

    Offset 7 has been committed in the new topic since.
    """
    behind = cluster.servers.pop(2)
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    cluster.create_topic("t", b"another topic id")
    cluster.servers[2] = behind
    commit(cluster, 7)
    cluster.elect(behind.coordinator_group(GROUP), 2)
    return behind


def test_offset_in_a_topic_younger_than_the_catalog_is_fetched(cluster: Cluster) -> None:
    """The server knows only the former topic of that name.

    -1 would make the consumer start over.
    """
    lead_behind(cluster)
    assert positions(fetch(cluster, server=2)) == {("t", 0): 7}
    assert positions(fetch(cluster, server=2, topics={"t": [0]})) == {("t", 0): 7}
    cluster.advance(DAY_MS)
    assert positions(fetch(cluster, server=2)) == {("t", 0): 7}


def test_commit_by_a_coordinator_whose_catalog_is_behind_is_tried_again(cluster: Cluster) -> None:
    """The offset would be stored for the former topic of that name, and be deleted with it."""
    behind = lead_behind(cluster)
    refused = commit(cluster, 8, server=2)
    assert commit_error(refused) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    behind.catalog.load(cluster.servers[1].catalog.items())
    assert positions(fetch(cluster, server=2)) == {("t", 0): 7}
    assert commit_error(commit(cluster, 8, server=2)) is ErrorCode.NONE
    cluster.advance(DAY_MS)
    assert positions(fetch(cluster, server=2)) == {("t", 0): 8}
    cluster.assert_replicas_equal()


def test_commit_of_more_than_one_command_holds_is_refused_for_good() -> None:
    """Error 28, which clients expect for this request."""
    cluster = Cluster(1, partitions_per_request_max=50_000)
    name = "t" * 249
    cluster.create_topic(name, partitions=40_000)
    request = commit_wire.OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            commit_wire.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    commit_wire.OffsetCommitRequestPartition(number, 1) for number in range(40_000)
                ],
            )
        ],
    )
    (answered,) = cluster.call(COMMIT, 9, request).response.topics
    codes = {partition.error_code for partition in answered.partitions}
    assert codes == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}


@pytest.mark.parametrize("named", [b"t".ljust(16), b"another topic id"])
def test_offset_of_a_version_that_knew_no_partition_groups_stands_for_its_topic(
    cluster: Cluster, named: bytes
) -> None:
    """A stored offset is returned as long as the name means the same topic, and never dropped."""
    old = commands.OffsetCommit("t", named, 0, 5, -1, "")
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.servers[1].state_groups[number].propose(
        commands.CommitOffsets(GROUP, -1, "", None, [old]), deadline_ns=1 << 62, done=lambda _: None
    )
    cluster.pump()
    cluster.advance(DAY_MS)
    found = positions(fetch(cluster, topics={"t": [0]}))
    assert found == {("t", 0): 5 if named == b"t".ljust(16) else -1}
    assert len(cluster.machine(GROUP).offsets.of(GROUP)) == 1


def test_offset_acknowledged_is_fetched_after_a_failover(cluster: Cluster) -> None:
    """RELIABILITY lost-commit: every acknowledged offset is readable from any leader."""
    commit(cluster, 7)
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.elect(number, 3, keep=False)
    assert positions(fetch(cluster, server=3)) == {("t", 0): 7}
    response = fetch(cluster, server=1).response
    assert response.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    cluster.assert_replicas_equal()


@pytest.mark.parametrize("version", range(11))
def test_fetch_waits_for_a_quorum(cluster: Cluster, version: int) -> None:
    """A deposed coordinator must not return an old offset: error 16 instead."""
    commit(cluster, 7)
    cluster.commits = False
    call = fetch(cluster, version=version, topics={"t": [0]})
    assert not call.done
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    check_refused(call.response, version, ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize("version", range(11))
def test_refused_fetch_says_so_wherever_a_client_may_look(cluster: Cluster, version: int) -> None:
    """-1 without an error means that nothing was ever committed: clients would start at the end."""
    commit(cluster, 7)
    number = cluster.servers[1].coordinator_group(GROUP)
    call = fetch(cluster, version=version, topics={"t": [0, 1]}, server=2)
    check_refused(call.response, version, ErrorCode.NOT_COORDINATOR)
    cluster.elect(number, 2, serve=False)
    call = fetch(cluster, version=version, topics={"t": [0, 1]}, server=2)
    check_refused(call.response, version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def check_refused(response: Any, version: int, error: ErrorCode) -> None:
    """The error is at each group from v8; before, at each partition, and from v2 also on top."""
    if version >= 8:
        assert [group.error_code for group in response.groups] == [error]
        return
    if version >= 2:
        assert response.error_code == error
    told = [(p.committed_offset, p.error_code) for t in response.topics for p in t.partitions]
    assert told
    assert set(told) == {(-1, error)}


def test_commit_whose_fate_is_open_is_retriable(cluster: Cluster) -> None:
    """Error 15: neither success nor a final failure."""
    cluster.commits = False
    call = commit(cluster, 7)
    assert not call.done
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    assert commit_error(call) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_commit_elsewhere_or_while_loading_is_told_so(cluster: Cluster) -> None:
    """Errors 16 and 14."""
    number = cluster.servers[1].coordinator_group(GROUP)
    assert commit_error(commit(cluster, server=2)) is ErrorCode.NOT_COORDINATOR
    cluster.elect(number, 2, serve=False)
    assert commit_error(commit(cluster, server=2)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --- retention -----------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["", "apart"])
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameter: True if offsets have a bound of their own and groups are checked in turns."""
    if request.param:
        monkeypatch.setattr(led_coordinator, "RAISED_FROM", -1)
        monkeypatch.setattr(offset_expiry, "LOOKED_AT_PER_TURN", 2)


@pytest.mark.usefixtures("apart")
def test_offsets_of_a_dead_group_expire_and_so_does_the_group(cluster: Cluster) -> None:
    """KIP-211: seven days after the last member left, not before."""
    (member,), generation = stable_group(cluster, 1)
    commit(cluster, 5, generation_id_or_member_epoch=generation, member_id=member)
    leave(cluster, (member, None))
    cluster.advance(7 * DAY_MS - 60_000)
    assert positions(fetch(cluster)) == {("t", 0): 5}
    cluster.advance(20 * 60_000)
    assert positions(fetch(cluster)) == {}
    assert cluster.machine(GROUP).group(GROUP) is None
    cluster.assert_replicas_equal()


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("deletes", [False, True])
def test_coordinator_whose_clock_is_ahead_forgets_nothing(cluster: Cluster, deletes: bool) -> None:
    """Offsets of a group idle for a day do not age by one server's clock.

    Nor when other offsets are dropped at the same time, with their partition.
    """
    (member,), generation = stable_group(cluster, 1)
    cluster.create_topic("u")
    for name in ("t", "u"):
        commit(cluster, 5, topic=name, generation_id_or_member_epoch=generation, member_id=member)
    leave(cluster, (member, None))
    cluster.advance(DAY_MS)
    server = cluster.servers[1]
    server.clock.jump_wall(8 * DAY_MS)
    server.ahead_ms = 8 * DAY_MS
    if deletes:
        cluster.apply_catalog(commands.DeleteTopics(["u"]))
    cluster.advance(20 * 60_000)
    left = {("t", 0)} if deletes else {("t", 0), ("u", 0)}
    assert set(cluster.machine(GROUP).offsets.of(GROUP)) == left


def test_offsets_of_a_living_group_do_not_expire(cluster: Cluster) -> None:
    """Holds for any age: a consumer of a quiet topic commits rarely."""
    cluster = Cluster(1, offsets_retention_minutes=30)
    cluster.create_topic("t")
    (member,), generation = stable_group(cluster, 1)
    commit(cluster, 5, generation_id_or_member_epoch=generation, member_id=member)
    machine = cluster.machine(GROUP)
    assert machine.expirable(cluster.servers[1].clock.wall_ms() + 100 * DAY_MS, 1) == []


@pytest.mark.usefixtures("apart")
def test_offsets_in_deleted_partitions_go_though_the_group_lives(cluster: Cluster) -> None:
    """A group that reads short-lived topics does not grow with deleted ones."""
    (member,), generation = stable_group(cluster, 1)
    cluster.create_topic("u")
    for name in ("t", "u"):
        commit(cluster, 5, topic=name, generation_id_or_member_epoch=generation, member_id=member)
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    cluster.create_topic("t", b"another topic id")
    for _ in range(12):
        cluster.advance(1 * 60_000)
        heartbeat(cluster, member, generation)
    assert list(cluster.machine(GROUP).offsets.of(GROUP)) == [("u", 0)]
    cluster.assert_replicas_equal()


@pytest.mark.usefixtures("apart")
def test_deleted_partitions_are_worked_off_a_part_at_a_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command stays small for any number of them."""
    monkeypatch.setattr(led_coordinator, "DELETED_MAX", 3)
    for partition in range(4):
        commit(cluster, 5, partition=partition)
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    offsets = cluster.machine(GROUP).offsets
    left = []
    for _ in range(3):
        cluster.advance(10 * 60_000)
        left.append(len(offsets.of(GROUP)))
    assert left == [1, 0, 0]
    assert not offsets.by_partition
    assert cluster.machine(GROUP).group(GROUP) is None, "nothing is left of it"
    cluster.assert_replicas_equal()


def test_partitions_with_offsets_are_known_after_a_restart(cluster: Cluster) -> None:
    """Includes offsets that were committed again or removed."""
    for partition in (0, 1, 1, 2):
        commit(cluster, 5, partition=partition)
    machine = cluster.machine(GROUP)
    offsets = machine.offsets
    offsets.remove(GROUP, [("t", 2)])
    loaded = Coordinator()
    loaded.load(machine.items())
    groups = cluster.servers[1].catalog.topics["t"].partitions
    assert offsets.by_partition == loaded.offsets.by_partition == dict.fromkeys(groups[:2], 1)
    loaded.load(machine.items())
    assert offsets.by_partition == loaded.offsets.by_partition


@pytest.mark.usefixtures("apart")
def test_offsets_of_no_group_expire_by_their_own_age() -> None:
    """Each offset ages from its own commit."""
    cluster = Cluster(1, offsets_retention_minutes=60)
    cluster.create_topic("t")
    commit(cluster, 1, partition=0)
    cluster.advance(45 * 60_000)
    commit(cluster, 2, partition=1)
    cluster.advance(30 * 60_000)
    assert positions(fetch(cluster)) == {("t", 1): 2}


@pytest.mark.usefixtures("apart")
def test_offsets_with_a_retention_of_their_own_keep_to_it() -> None:
    """OffsetCommit v2 to v4."""
    cluster = Cluster(1)
    cluster.create_topic("t")
    commit(cluster, 1, version=4, retention_time_ms=60_000)
    commit(cluster, 2, version=4, partition=1)
    cluster.advance(11 * 60_000)
    assert positions(fetch(cluster)) == {("t", 1): 2}


@pytest.mark.usefixtures("apart")
def test_nothing_is_proposed_when_nothing_expires() -> None:
    """An idle coordinator's log does not grow."""
    cluster = Cluster(1)
    cluster.create_topic("t")
    commit(cluster, 1)
    before = {number: len(log.committed) for number, log in cluster.logs.items()}
    cluster.advance(DAY_MS)
    assert {number: len(log.committed) for number, log in cluster.logs.items()} == before


def expiring_groups(monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, int]:
    """Return a cluster with ten groups of one coordinator, and the coordinator's number.

    The groups' offsets expire at the next check.
    """
    monkeypatch.setattr(led_coordinator, "RAISED_FROM", -1)
    monkeypatch.setattr(offset_expiry, "LOOKED_AT_PER_TURN", 4)
    cluster = Cluster(2)
    cluster.create_topic("t", partitions=1)
    server = cluster.servers[1]
    number = server.coordinator_group(GROUP)
    names = [name for name in map(str, range(40)) if server.coordinator_group(name) == number]
    for name in names[:10]:
        commit(cluster, 1, group_id=name, version=4, retention_time_ms=60_000)
    commit(cluster, 2, group_id=names[11])
    return cluster, number


def test_groups_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command names the expired offsets of one turn. Offsets that are not due stay."""
    cluster, number = expiring_groups(monkeypatch)
    machine = cluster.servers[1].state_groups[number].machine
    assert len(machine.offsets) == 11
    cluster.advance(590_000)
    seen: set[int] = set()
    for _ in range(5_000):
        cluster.advance(5)
        seen.add(len(machine.offsets))
        if len(machine.offsets) == 1:
            break
    assert seen == {11, 9, 7, 5, 3, 1}
    cluster.advance(1_000)
    assert machine.item_count == 2
    cluster.assert_replicas_equal()


def test_what_is_over_is_removed_one_command_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While none commits, because a majority is slow or away, no more are proposed."""
    cluster, number = expiring_groups(monkeypatch)
    cluster.advance(590_000)
    cluster.commits = False
    cluster.advance(12_000)
    assert len(cluster.logs[number].uncommitted) == 1
    cluster.commits = True
    cluster.pump()
    cluster.advance(10_000)
    assert len(cluster.servers[1].state_groups[number].machine.offsets) == 1


def test_partitions_that_were_deleted_are_worked_off_by_one_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For any number of offsets; where there may be many, the check removes them in turns."""
    monkeypatch.setattr(led_coordinator, "DELETED_MAX", 3)
    cluster, number = expiring_groups(monkeypatch)
    cluster.create_topic("u", partitions=1)
    commit(cluster, 3, topic="u")
    cluster.apply_catalog(commands.DeleteTopics(["t", "u"]))
    cluster.advance(590_000)
    assert len(cluster.servers[1].state_groups[number].machine.offsets) == 12
    cluster.advance(12_000)
    assert len(cluster.servers[1].state_groups[number].machine.offsets) == 0


def test_who_leads_no_more_looks_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor starts over, at a time of its own."""
    cluster, number = expiring_groups(monkeypatch)
    machine = cluster.servers[1].state_groups[number].machine
    while len(machine.offsets) == 11:
        cluster.advance(5)
    cluster.elect(number, 2)
    cluster.advance(60_000)
    assert len(machine.offsets) == 9
    cluster.advance(10 * 60_000)
    assert len(machine.offsets) == 1


def test_commit_larger_than_a_batch_is_refused_whole(cluster: Cluster) -> None:
    """Error 28, as when Kafka's own record of it would be too large."""
    cluster.create_topic("wide", partitions=300)
    parts = [commit_wire.OffsetCommitRequestPartition(p, 1) for p in range(300)]
    for part in parts:
        part.committed_metadata = "x" * 4000
    topic = commit_wire.OffsetCommitRequestTopic(name="wide", partitions=parts)
    request = commit_wire.OffsetCommitRequest(group_id=GROUP, topics=[topic])
    (answered,) = cluster.call(COMMIT, 9, request).response.topics
    codes = {part.error_code for part in answered.partitions}
    assert codes == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert positions(fetch(cluster)) == {}


# --- OffsetDelete --------------------------------------------------------------------------------


def delete(cluster: Cluster, topics: dict[str, list[int]], *, server: int = 1) -> Call:
    request = delete_wire.OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            delete_wire.OffsetDeleteRequestTopic(
                name, [delete_wire.OffsetDeleteRequestPartition(index) for index in indexes]
            )
            for name, indexes in topics.items()
        ],
    )
    return cluster.call(DELETE, 0, request, server=server)


def deleted(call: Call) -> dict[tuple[str, int], ErrorCode]:
    """Return the error of each partition; none may be an error of the group."""
    assert call.response.error_code == ErrorCode.NONE
    return {
        (topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in call.response.topics
        for partition in topic.partitions
    }


def test_deleted_offsets_are_gone_on_every_server(cluster: Cluster) -> None:
    """Holds also after a change of coordinator, and when the client retries."""
    commit(cluster, 1, partition=0)
    commit(cluster, 2, partition=1)
    number = cluster.servers[1].coordinator_group(GROUP)
    for server in (1, 2):
        cluster.elect(number, server)
        answer = deleted(delete(cluster, {"t": [0]}, server=server))
        assert answer == {("t", 0): ErrorCode.NONE}
        assert positions(fetch(cluster, server=server)) == {("t", 1): 2}


def test_offset_delete_of_unknown_partitions_is_refused_one_by_one(cluster: Cluster) -> None:
    """Error 3, as in Kafka, without reading the group."""
    commit(cluster, 1)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = deleted(delete(cluster, {"t": [99, 0], "no": [0]}))
    assert answer == {("t", 99): unknown, ("t", 0): ErrorCode.NONE, ("no", 0): unknown}
    assert deleted(delete(cluster, {"no": [0]})) == {("no", 0): unknown}
    assert deleted(delete(cluster, {})) == {}


def test_offset_delete_without_a_group_is_refused(cluster: Cluster) -> None:
    """Error 24, for any partitions."""
    for topics in ([], [delete_wire.OffsetDeleteRequestTopic("no")]):
        request = delete_wire.OffsetDeleteRequest("", topics)
        response = cluster.call(DELETE, 0, request).response
        assert (response.error_code, response.topics) == (ErrorCode.INVALID_GROUP_ID, [])


def test_offset_delete_tells_what_is_wrong_with_the_group(cluster: Cluster) -> None:
    """Error 69 for an unknown group, 16 on another server, 86 for subscribed topics."""
    call = delete(cluster, {"t": [0]})
    assert (call.response.error_code, call.response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete(cluster, {"t": [0]}, server=2).response.error_code == ErrorCode.NOT_COORDINATOR
    stable_group(cluster, 1)
    answer = deleted(delete(cluster, {"t": [0]}))
    assert answer == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
