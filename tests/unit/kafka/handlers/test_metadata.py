"""Metadata, DescribeTopicPartitions, DescribeCluster: the cluster as clients see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ids import ServerId
from tests.unit.kafka.fake_host import FakeHost, World
from vdl.errors import ErrorCode
from vdl.kafka.answer import Place
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.wide_request import JoinedAnswer
from vdl.kafka.handlers import metadata
from vdl.kafka.parts import PART_ELEMENTS
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.logstream.group.state_group import OutcomeKind
from vdl.logstream.state import CATALOG_GROUP

METADATA = 3
DESCRIBE_CLUSTER = 60
DESCRIBE_TOPIC_PARTITIONS = 75
WAIT_MS = KafkaOptions().topic_create_wait_ms


def named(*names: str, create: bool = True) -> MetadataRequest:
    return MetadataRequest(
        [MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create
    )


def world_of_voters() -> World:
    """Return a world whose three servers vote on the catalog."""
    world = World()
    world.host.catalog.system.voters = tuple(map(ServerId, (1, 2, 3)))
    return world


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_each_version_describes_servers_and_topics(version: int) -> None:
    """Servers with their addresses on this listener; leaders with their epochs."""
    world = World()
    world.topic("t", 2)
    answer = world.client().ask(METADATA, version, named("t"))
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
        (1, "host1", 9091),
        (2, "host2", 9092),
        (3, "host3", 9093),
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "t")
    for index, partition in enumerate(topic.partitions):
        assert (partition.partition_index, partition.leader_id) == (index, 1)
        assert partition.replica_nodes == partition.isr_nodes == [1, 2, 3]
        assert partition.leader_epoch == (5 if version >= 7 else -1)
    if version >= 1:
        assert answer.controller_id == 2
    if version >= 2:
        assert answer.cluster_id == "fake"
    if version >= 8:
        assert topic.topic_authorized_operations == -(1 << 31)


TOPIC_OPERATIONS = 3_576
"""Read, write, create, delete, alter, describe, describe and alter configs: same value as Kafka."""
CLUSTER_OPERATIONS = 8_096
"""Create, alter, describe, act as the cluster, describe and alter configs, idempotent write."""


@pytest.mark.parametrize("version", [8, 10])
def test_metadata_says_what_one_may_do_when_asked(version: int) -> None:
    """KIP-430: without an authorizer all operations are allowed."""
    world = World()
    world.topic("t")
    request = named("t")
    request.include_topic_authorized_operations = True
    request.include_cluster_authorized_operations = True
    answer = world.client().ask(METADATA, version, request)
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
    request.topics = None
    answer = world.client().ask(METADATA, version, request)
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS


def test_metadata_of_all_topics_is_asked_for_differently_by_version() -> None:
    """v0: an empty list means all; later: null means all and an empty list means none."""
    world = World()
    world.topic("a")
    world.topic("b")
    client = world.client()
    names = ["__consumer_offsets", "__transaction_state", "a", "b"]
    assert [t.name for t in client.ask(METADATA, 0, MetadataRequest([])).topics] == names
    assert [t.name for t in client.ask(METADATA, 1, MetadataRequest(None)).topics] == names
    assert client.ask(METADATA, 1, MetadataRequest([])).topics == []


def test_metadata_by_topic_id_is_answered_from_v12_on() -> None:
    """KIP-516: a known id gives the topic, an unknown one UNKNOWN_TOPIC_ID; v10 has names only."""
    world = World()
    world.topic()
    topic_id = world.host.catalog.topics["t"].topic_id
    request = MetadataRequest(
        [MetadataRequestTopic(topic_id, None), MetadataRequestTopic(b"?" * 16, None)]
    )
    known, unknown = world.client().ask(METADATA, 12, request).topics
    assert (known.name, known.topic_id) == ("t", topic_id)
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    both = MetadataRequest([MetadataRequestTopic(topic_id, "t")])
    assert world.client().ask(METADATA, 10, both).topics[0].error_code == ErrorCode.INVALID_REQUEST


def test_metadata_of_an_unknown_topic_creates_it() -> None:
    """`auto.create.topics.enable`: the response shows the new topic with its leaders."""
    world = World(KafkaOptions(num_partitions=4))
    (topic,) = world.client().ask(METADATA, 9, named("new")).topics
    assert topic.error_code == ErrorCode.NONE
    assert len(topic.partitions) == 4
    assert all(p.leader_id > 0 and len(p.replica_nodes) == 3 for p in topic.partitions)


def test_metadata_answers_a_new_topic_without_leaders_in_time() -> None:
    """If leaders take too long the client gets a retriable error."""
    world = World()
    world.host.leaders_at_once = False
    client = world.client()
    client.request(METADATA, 9, named("new"))
    world.run(900)
    assert client.answers() == []
    world.run(200)
    (topic,) = client.answers()[0].topics
    assert topic.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert topic.partitions[0].leader_id == -1


@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [
        (METADATA, 9, named("new")),
        (METADATA, 9, MetadataRequest(None)),
        (DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest([TopicRequest("new")])),
        (DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest([])),
    ],
)
def test_partition_is_not_shown_before_its_first_leader(
    key: int, version: int, request_: object
) -> None:
    """Another server may have answered the creation: kafka-go writes nothing without a leader."""
    world = World()
    world.topic("old")
    world.run(WAIT_MS)
    world.host.leaders_at_once = False
    world.topic("new", 2)
    first, second = world.host.catalog.topics["new"].partitions
    world.host.leaders |= {0: (1, 1), first: (2, 1)}
    client, other = world.client(), world.client()
    client.request(key, version, request_)
    assert other.ask(METADATA, 9, named("old")).topics[0].partitions[0].leader_id == 1
    assert client.answers() == []
    world.host.leaders[second] = (3, 1)
    world.run(10)
    (answer,) = client.answers()
    (topic,) = (one for one in answer.topics if one.name == "new")
    assert [partition.leader_id for partition in topic.partitions] == [2, 3]


def test_partition_without_first_leader_is_awaited_once() -> None:
    """It may have no majority, and all who list topics would wait at each request."""
    world = World()
    world.host.leaders_at_once = False
    world.topic("new")
    client = world.client()
    for wait_ms in (WAIT_MS + 1, 1):
        answer = client.ask(METADATA, 9, named("new"), wait_ms).topics[0].partitions[0]
        assert (answer.leader_id, answer.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)


def test_new_partition_on_lost_servers_is_not_awaited() -> None:
    """A client that creates one after the other would delay all who list topics."""
    world = World()
    world.host.leaders_at_once = False
    world.topic("new")
    world.host.alive = [1]
    world.host.leaders.clear()
    client = world.client()
    for request in (named("new"), MetadataRequest(None)):
        assert client.ask(METADATA, 9, request).topics[0].partitions[0].leader_id == -1


def test_metadata_tells_each_topic_once() -> None:
    """A short request must not get a long response by naming a topic a million times."""
    world = World()
    world.topic("t", 2)
    topic_id = world.host.catalog.topics["t"].topic_id
    client = world.client()
    assert [t.name for t in client.ask(METADATA, 9, named("t", "t", "t")).topics] == ["t"]
    by_id = [MetadataRequestTopic(topic_id, name) for name in (None, "a", "b")]
    assert [t.name for t in client.ask(METADATA, 12, MetadataRequest(by_id)).topics] == ["t"]


def test_metadata_creates_no_more_than_one_command_may() -> None:
    """`partitions_per_request_max` applies here too; a retry gets the rest."""
    world = World(KafkaOptions(num_partitions=4, partitions_per_request_max=10))
    names = [f"t{number}" for number in range(5)]
    client = world.client()
    for known in (2, 4, 5, 5):
        answers = client.ask(METADATA, 9, named(*names)).topics
        assert set(world.host.catalog.topics) == set(names[:known])
        unknown = [t.name for t in answers if t.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert unknown == names[known:]


def test_metadata_creates_no_more_than_a_server_may_have() -> None:
    """POLICY_VIOLATION is not retriable; existing topics stay and are counted."""
    world = World(KafkaOptions(num_partitions=4, replicas_per_server_max=9))
    client = world.client()
    codes = [client.ask(METADATA, 9, named(f"t{n}")).topics[0].error_code for n in range(4)]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    assert set(world.host.catalog.topics) == {"t0", "t1"}
    assert client.ask(METADATA, 9, named("t0")).topics[0].error_code == 0


@pytest.mark.parametrize("kind", [OutcomeKind.NOT_APPENDED, OutcomeKind.UNKNOWN])
def test_metadata_whose_creation_is_not_decided_says_ask_again(kind: OutcomeKind) -> None:
    """Clients retry LEADER_NOT_AVAILABLE; the topic may still be created."""
    world = World()
    world.host.catalog_outcome = kind
    (topic,) = world.client().ask(METADATA, 9, named("new")).topics
    assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_metadata_creates_nothing_when_client_or_server_forbid_it() -> None:
    """From v4 on the client decides; the server always may forbid.

    Kafka's internal topics are never created.
    """
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world = World()
    client = world.client()
    assert client.ask(METADATA, 9, named("x", create=False)).topics[0].error_code == unknown
    for name in ("__consumer_offsets", "__transaction_state"):
        (internal,) = client.ask(METADATA, 9, named(name)).topics
        assert (internal.error_code, internal.is_internal) == (ErrorCode.NONE, True)
    closed = World(KafkaOptions(auto_create_topics=False))
    assert closed.client().ask(METADATA, 9, named("x")).topics[0].error_code == unknown
    assert world.host.catalog.topics == closed.host.catalog.topics == {}


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "\N{SNOWMAN}"])
def test_metadata_of_an_impossible_name_is_invalid(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION, and nothing is created."""
    world = World()
    answer = world.client().ask(METADATA, 9, named(name))
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_shows_servers_without_a_link_as_offline() -> None:
    """An unreachable server is not listed; its replicas are offline (v5)."""
    world = world_of_voters()
    world.topic()
    world.host.alive = [1, 3]
    world.host.in_sync = [3, 1]
    answer = world.client().ask(METADATA, 9, named("t"))
    (partition,) = answer.topics[0].partitions
    assert (partition.isr_nodes, partition.offline_replicas) == ([1, 3], [2])
    assert [broker.node_id for broker in answer.brokers] == [1, 3]


def test_replica_in_sync_is_what_the_leader_says_not_who_has_a_link() -> None:
    """A lagging follower is connected but not in sync. One without a connection may be in sync."""
    world = world_of_voters()
    world.topic()
    world.host.in_sync = [1, 2]
    (partition,) = world.client().ask(METADATA, 9, named("t")).topics[0].partitions
    assert (partition.isr_nodes, partition.offline_replicas) == ([1, 2], [])
    world.host.alive = [1, 3]
    (partition,) = world.client().ask(METADATA, 9, named("t")).topics[0].partitions
    assert (partition.isr_nodes, partition.offline_replicas) == ([1, 2], [2])
    request = DescribeTopicPartitionsRequest([TopicRequest("t")])
    (partition,) = world.client().ask(DESCRIBE_TOPIC_PARTITIONS, 0, request).topics[0].partitions
    assert (partition.isr_nodes, partition.offline_replicas) == ([1, 2], [2])


def test_server_that_is_cut_off_lists_every_server() -> None:
    """A client that receives this server alone forgets the healthy majority.

    An isolated server cannot know which servers are running.
    """
    world = World()
    world.topic()
    world.run(WAIT_MS)
    world.host.alive = [1]
    world.host.leaders.clear()
    client = world.client()
    answer = client.ask(METADATA, 9, named("t"))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 3]
    described = client.ask(DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
    assert [broker.broker_id for broker in described.brokers] == [1, 2, 3]


def test_metadata_does_not_name_leaders_that_the_listener_cannot_reach() -> None:
    """LISTENER_NOT_FOUND from v6 on, LEADER_NOT_AVAILABLE before."""
    world = World()
    (stream,) = world.topic()
    world.host.leaders[stream.group_id] = (9, 5)
    client = world.client()
    for version, error in ((5, 5), (6, 72)):
        (partition,) = client.ask(METADATA, version, named("t")).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (error, -1)


def test_describe_topic_partitions_answers_page_by_page() -> None:
    """KIP-966: topics in order, a limit on partitions, a cursor to go on from."""
    world = World()
    world.topic("a", 3)
    world.topic("b", 3)
    client = world.client()
    first = DescribeTopicPartitionsRequest([], 2)
    (internal,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, first).topics
    assert (internal.name, internal.is_internal) == ("__consumer_offsets", True)
    seen: list[tuple[str, int]] = []
    cursor: Cursor | None = Cursor("a", 0)
    for _ in range(4):
        request = DescribeTopicPartitionsRequest([], 2, cursor)
        answer = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, request)
        assert all(
            p.eligible_leader_replicas == p.last_known_elr == []
            for topic in answer.topics
            for p in topic.partitions
        ), "Kafka's admin client cannot read null here"
        seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert seen == [(name, index) for name in "ab" for index in range(3)]
    request = DescribeTopicPartitionsRequest([TopicRequest("zzz")], 2, None)
    (unknown,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, request).topics
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS


def test_describe_topic_partitions_ends_a_page_with_its_last_topic() -> None:
    """A page that becomes full at the end of a topic does not start the next one."""
    world = World()
    world.topic("a", 3)
    world.topic("b", 3)
    answer = world.client().ask(
        DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest([], 3, Cursor("a", 0))
    )
    assert [topic.name for topic in answer.topics] == ["a"]
    assert answer.next_cursor == Cursor("b", 0)


@pytest.mark.parametrize("cursor", [Cursor("ab", 0), Cursor("a", -1)])
def test_describe_topic_partitions_refuses_a_cursor_that_it_cannot_have_given(
    cursor: Cursor,
) -> None:
    """A topic outside the request or a missing partition: INVALID_REQUEST for each topic."""
    world = World()
    world.topic("a", 3)
    world.topic("b", 3)
    request = DescribeTopicPartitionsRequest([TopicRequest("a"), TopicRequest("b")], 2, cursor)
    answer = world.client().ask(DESCRIBE_TOPIC_PARTITIONS, 0, request)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_REQUEST),
    ]


def test_controller_is_the_asked_server_while_the_catalog_has_no_leader() -> None:
    """Clients that receive no controller wait without retrying."""
    world = World()
    world.host.leaders.pop(CATALOG_GROUP)
    client = world.client()
    assert client.ask(METADATA, 12, named()).controller_id == 1
    assert client.ask(DESCRIBE_CLUSTER, 1, DescribeClusterRequest()).controller_id == 1


def test_describe_cluster_lists_reachable_servers_and_the_rest_on_request() -> None:
    """KIP-700; v2 shows unreachable servers as fenced (KIP-1073); controllers are not described."""
    world = world_of_voters()
    world.host.alive = [1, 2]
    client = world.client()
    for version in range(3):
        answer = client.ask(DESCRIBE_CLUSTER, version, DescribeClusterRequest())
        assert [broker.broker_id for broker in answer.brokers] == [1, 2]
        assert (answer.cluster_id, answer.controller_id) == ("fake", 2)
    answer = client.ask(DESCRIBE_CLUSTER, 2, DescribeClusterRequest(True))
    assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
    all_servers = DescribeClusterRequest(include_fenced_brokers=True)
    answer = client.ask(DESCRIBE_CLUSTER, 2, all_servers)
    assert [broker.is_fenced for broker in answer.brokers] == [False, False, True]
    controllers = DescribeClusterRequest(endpoint_type=2)
    answer = client.ask(DESCRIBE_CLUSTER, 1, controllers)
    assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_metadata_lists_a_failed_server_once_with_its_successor() -> None:
    """Each client gets the failed server once more, and never again.

    librdkafka loses a partition for a second if it moves in the response in which its old leader's
    server disappears. So each client gets the old server once more, in the first response with the
    new leader.
    """
    world = world_of_voters()
    world.topic("t", 1)
    (group_id,) = world.host.catalog.topics["t"].partitions
    world.host.alive = [1, 2]
    world.host.lost[group_id] = (world.clock.now_ns() + 1, 3)
    for client in (world.client(), world.client()):
        first = client.ask(METADATA, 9, named("t"))
        assert first.topics[0].partitions[0].leader_id == 1
        assert [broker.node_id for broker in first.brokers] == [1, 2, 3]
        second = client.ask(METADATA, 9, named("t"))
        assert second.topics[0].partitions[0].leader_id == 1
        assert [broker.node_id for broker in second.brokers] == [1, 2]


def test_metadata_waits_a_moment_for_the_successor_of_a_failed_leader() -> None:
    """A client that receives no leader retries after 100 ms, or after a second."""
    world = World()
    world.topic("t", 1)
    (group_id,) = world.host.catalog.topics["t"].partitions
    led = world.host.leaders.pop(group_id)
    world.host.alive = [1, 2]
    world.host.lost[group_id] = (world.clock.now_ns() + 1, 3)
    client = world.client()
    client.request(METADATA, 9, named("t"))
    world.run(60)
    assert client.answers() == []
    world.host.leaders[group_id] = led
    world.run(10)
    (answer,) = client.answers()
    assert answer.topics[0].partitions[0].leader_id == 1
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 3]


def test_metadata_does_not_wait_long_for_a_successor() -> None:
    """There may be no successor, and a client that has received the loss does not wait again."""
    world = World()
    world.topic("t", 1)
    world.run(WAIT_MS)
    (group_id,) = world.host.catalog.topics["t"].partitions
    del world.host.leaders[group_id]
    world.host.lost[group_id] = (world.clock.now_ns() + 1, 3)
    client = world.client()
    for wait_ms in (160, 1):
        answer = client.ask(METADATA, 9, named("t"), wait_ms).topics[0].partitions[0]
        assert (answer.leader_id, answer.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)


@pytest.mark.parametrize("is_elected", [True, False])
def test_metadata_waits_a_moment_while_a_leadership_moves(*, is_elected: bool) -> None:
    """No server failed, but the group elects. Another group without a leader is not awaited."""
    world = World()
    world.topic("moves", 1)
    world.topic("unled", 1)
    world.run(WAIT_MS)
    (group_id,) = world.host.catalog.topics["moves"].partitions
    (unled_id,) = world.host.catalog.topics["unled"].partitions
    del world.host.leaders[group_id], world.host.leaders[unled_id]
    client = world.client()
    assert client.ask(METADATA, 9, named("unled"), 1).topics[0].partitions[0].leader_id == -1
    world.host.unled_ns = world.clock.now_ns()
    client.request(METADATA, 9, named("moves"))
    world.run(100)
    assert client.answers() == []
    if is_elected:
        world.host.leaders[group_id] = (2, 6)
    world.run(60)
    (answer,) = client.answers()
    assert answer.topics[0].partitions[0].leader_id == (2 if is_elected else -1)
    assert client.ask(METADATA, 9, named("unled"), 1).topics[0].partitions[0].leader_id == -1


def test_metadata_answers_before_any_server_is_known() -> None:
    """A new replica set has an empty catalog."""
    world = World()
    world.host.catalog.servers.clear()
    answer = world.client().ask(METADATA, 9, MetadataRequest([]))
    assert answer.brokers == []


def test_metadata_of_a_server_that_hears_nobody_tells_of_the_others() -> None:
    """An isolated server omits itself unless it leads, or knows all leaders of, what is requested.

    librdkafka queries any server that it is connected to, although each answers that there is no
    leader.
    """
    world = World()
    world.topic("led", 1)
    world.topic("t", 1)
    world.run(WAIT_MS)
    (group_id,) = world.host.catalog.topics["t"].partitions
    del world.host.leaders[group_id]
    client = world.client()

    def told(request: MetadataRequest) -> list[int]:
        return [broker.node_id for broker in client.ask(METADATA, 9, request).brokers]

    assert told(named("t")) == [1, 2, 3]
    world.host.is_heard = False
    assert told(named("t")) == [2, 3]
    assert told(named("led")) == [1, 2, 3]
    assert told(named("t", "led")) == [1, 2, 3]
    world.host.alive = [1]
    assert told(named("t")) == [1, 2, 3], "the others are gone for certain"
    world.host.silent = {3}
    assert told(named("t")) == [2, 3], "one may be alive"
    world.host.leaders[group_id] = (2, 6)
    assert told(named("t")) == [1, 2, 3]


@pytest.mark.parametrize("version", [1, 8, 13])
@pytest.mark.parametrize("is_named", [False, True])
def test_topics_with_many_partitions_are_told_in_parts(
    version: int, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts together are the answer that one turn would make. One topic may have more
    partitions than one part; the brokers are those of all parts."""
    world = World()
    for name, count in (("a", 3), ("b", 700), ("c", 1), ("d", 260)):
        world.topic(name, count)
    request = named("a", "b", "?", "c", "d") if is_named else MetadataRequest(None)
    request.include_topic_authorized_operations = version >= 8
    sizes: list[int] = []
    add = JoinedAnswer.add

    def counted(joined: JoinedAnswer, place: Place, answer: Any) -> None:
        sizes.append(sum(1 + len(topic.partitions) for topic in answer.topics))
        add(joined, place, answer)

    with monkeypatch.context() as patch:
        patch.setattr(JoinedAnswer, "add", counted)
        told = world.client().ask(METADATA, version, request, 500)
    assert sum(sizes) > 960
    assert max(sizes) <= PART_ELEMENTS + 2
    monkeypatch.setattr(metadata, "PART_ELEMENTS", 10_000)
    assert told == world.client().ask(METADATA, version, request)


def test_confirmation_of_the_links_makes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may complete the answers of many clients. Each is made in the turn of its connection, and
    nothing is looked up for a client that is gone."""
    world = World()
    world.topic("a", 300)
    world.topic("b")
    confirmed: list[Callable[[bool], None]] = []
    looked: list[object] = []
    monkeypatch.setattr(FakeHost, "confirm_links", lambda _, done: confirmed.append(done))
    for name in ("_topic", "all_topics"):
        monkeypatch.setattr(metadata, name, noting(getattr(metadata, name), looked))
    asked = (named("a"), named("b"), MetadataRequest(None))
    clients = [world.client() for _ in asked]
    for client, request in zip(clients, asked, strict=True):
        client.request(METADATA, 9, request)
    for done in confirmed:
        done(True)
    assert (len(confirmed), looked) == (3, [])
    world.run(500)
    told = [[topic.name for topic in client.answers()[0].topics] for client in clients]
    assert told[:2] == [["a"], ["b"]]
    assert told[2][-2:] == ["a", "b"]
    world.host.lost[world.host.catalog.topics["a"].partitions[0]] = (world.clock.now_ns(), 2)
    clients[2].request(METADATA, 9, asked[2])
    clients[2].session.connection_lost()
    looked.clear()
    confirmed[-1](True)
    assert (len(confirmed), looked) == (4, [])


def noting(real: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        calls.append(real)
        return real(*arguments)

    return called
