"""CreateTopics, DeleteTopics, DescribeConfigs, and the settings of topics."""

from __future__ import annotations

import re

import pytest

from tests.unit.kafka.fake_host import World
from vdl.errors import ErrorCode
from vdl.kafka.configs import group_configs
from vdl.kafka.configs.broker_configs import DYNAMIC, KNOWN_OF_SERVERS, REPLICATION_THROTTLES
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import (
    BY_NAME,
    KNOWN,
    NO_EFFECT_PREFIX,
    ConfigType,
    InvalidConfig,
    Standing,
    check_configs,
)
from vdl.kafka.wire.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from vdl.logstream.group.state_group import OutcomeKind

CREATE_TOPICS = 19
DELETE_TOPICS = 20
DESCRIBE_CONFIGS = 32


def topic(
    name: str = "t",
    partitions: int = 1,
    factor: int = 3,
    assignments: list[CreatableReplicaAssignment] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    settings = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
    return CreatableTopic(name, partitions, factor, assignments or [], settings)


def create(
    world: World,
    *topics: CreatableTopic,
    version: int = 7,
    validate_only: bool = False,
    timeout_ms: int = 1000,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(list(topics), timeout_ms, validate_only)
    answer = world.client().ask(CREATE_TOPICS, version, request, wait_ms=timeout_ms + 50)
    found = answer.topics
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("version", range(8))
def test_create_topics_of_each_version_creates(version: int) -> None:
    """The topic exists, with leaders, when the response arrives."""
    world = World()
    (result,) = create(world, topic(partitions=4), version=version)
    assert result.error_code == ErrorCode.NONE
    made = world.host.catalog.topics["t"]
    assert len(made.partitions) == 4
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (4, 3)
        assert len(result.configs) == len(KNOWN)
    if version >= 7:
        assert result.topic_id == made.topic_id


@pytest.mark.parametrize("takes_large", [False, True])
@pytest.mark.parametrize("size", [16 << 20, (16 << 20) + 1, 100 << 20, (100 << 20) + 1])
def test_large_batches_can_be_asked_for_once_all_servers_take_them(
    size: int, takes_large: bool
) -> None:
    """A server of an earlier version would accept them, but could not replicate them."""
    world = World()
    world.host.takes_large = takes_large
    (result,) = create(world, topic(configs={"max.message.bytes": str(size)}))
    is_taken = size <= 16 << 20 or (takes_large and size <= 100 << 20)
    assert result.error_code == (ErrorCode.NONE if is_taken else ErrorCode.INVALID_CONFIG)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=-5), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=10_001), ErrorCode.POLICY_VIOLATION),
        (topic(factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(configs={"no.such.setting": "1"}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"max.message.bytes": "many"}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"max.message.bytes": None}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"cleanup.policy": "compress"}), ErrorCode.INVALID_CONFIG),
        (
            topic(configs={"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}),
            ErrorCode.INVALID_CONFIG,
        ),
        (topic(configs={"min.cleanable.dirty.ratio": "1.5"}), ErrorCode.INVALID_CONFIG),
        (topic("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (
            topic(partitions=-1, factor=-1, assignments=[CreatableReplicaAssignment(1, [1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic(partitions=-1, factor=-1, assignments=[CreatableReplicaAssignment(0, [7])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic(partitions=1, factor=1, assignments=[CreatableReplicaAssignment(0, [1])]),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_create_topics_refuses_with_the_code_of_kafka(
    asked: CreatableTopic, error: ErrorCode
) -> None:
    """Each error has its code and a text; nothing is created."""
    world = World()
    world.topic("taken")
    (result,) = create(world, asked)
    assert result.error_code == error
    assert result.error_message
    assert set(world.host.catalog.topics) == {"taken"}


def test_create_topics_counts_the_default_number_of_partitions() -> None:
    """-1 counts as the number of partitions that will be created."""
    world = World(KafkaOptions(num_partitions=6, partitions_per_request_max=10))
    results = create(world, topic("a", -1), topic("b", -1))
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2
    (result,) = create(world, topic("a", -1))
    assert result.error_code == ErrorCode.NONE


def test_create_topics_answers_each_topic_on_its_own() -> None:
    """A refused topic does not affect the others. A duplicate topic gets one response."""
    world = World()
    results = create(world, topic("a"), topic("b", 0), topic("c"), topic("c"))
    assert {result.name: result.error_code for result in results} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.INVALID_PARTITIONS,
        "c": ErrorCode.INVALID_REQUEST,
    }


@pytest.mark.parametrize("version", [2, 3, 5])
def test_create_topics_leaves_counts_to_the_server(version: int) -> None:
    """KIP-464: -1 means the server's default, also in versions before the KIP."""
    world = World(KafkaOptions(num_partitions=6, default_replication_factor=2))
    (result,) = create(world, topic("t", -1, -1), version=version)
    assert result.error_code == ErrorCode.NONE
    catalog = world.host.catalog
    groups = catalog.topics["t"].partitions
    assert (len(groups), len(catalog.groups[groups[0]].replicas)) == (6, 2)


def test_create_topics_places_as_assigned() -> None:
    """The first server of each assigned partition is its preferred leader."""
    world = World()
    assignments = [CreatableReplicaAssignment(1, [3, 1]), CreatableReplicaAssignment(0, [2, 3])]
    (result,) = create(world, topic("t", -1, -1, assignments))
    assert result.error_code == ErrorCode.NONE
    catalog = world.host.catalog
    placed = [
        [replica.server_id for replica in catalog.groups[group].replicas]
        for group in catalog.topics["t"].partitions
    ]
    assert placed == [[2, 3], [3, 1]]


def test_create_topics_that_only_validates_creates_nothing() -> None:
    """validate_only responds as a creation would."""
    world = World()
    (result,) = create(world, topic(partitions=3), validate_only=True)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 3)
    assert world.host.catalog.topics == {}


def test_create_topics_waits_for_leaders_until_the_timeout() -> None:
    """If leaders do not appear in time the topic still exists, and the response says so."""
    world = World()
    world.host.leaders_at_once = False
    client = world.client()
    client.request(CREATE_TOPICS, 7, CreateTopicsRequest([topic()], 300))
    world.run(290)
    assert client.answers() == []
    world.run(20)
    assert client.answers()[0].topics[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (OutcomeKind.NOT_APPENDED, ErrorCode.NOT_CONTROLLER),
        (OutcomeKind.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT),
        (OutcomeKind.TOO_LARGE, ErrorCode.INVALID_REQUEST),
    ],
)
def test_topic_commands_that_are_not_decided_say_what_is_certain(
    kind: OutcomeKind, error: ErrorCode
) -> None:
    """The error depends on the outcome of the command.

    NOT_CONTROLLER if it was not appended, REQUEST_TIMED_OUT if unknown, and a non-retriable error
    if no leader will ever accept it.
    """
    world = World()
    world.topic("t")
    world.host.catalog_outcome = kind
    assert create(world, topic("new"))[0].error_code == error
    answer = world.client().ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]))
    assert answer.responses[0].error_code == error


@pytest.mark.parametrize("version", range(7))
def test_delete_topics_of_each_version_deletes(version: int) -> None:
    """Topics are named by name in every version. An unknown name is reported as unknown."""
    world = World()
    world.topic("t")
    names = ["t", "nope"]
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
    if version >= 6:
        request = DeleteTopicsRequest([DeleteTopicState(name) for name in names], [], 1000)
    answer = world.client().ask(DELETE_TOPICS, version, request)
    assert {result.name: result.error_code for result in answer.responses} == {
        "t": ErrorCode.NONE,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.host.catalog.topics == {}


def test_delete_topics_by_id_answers_in_the_order_asked() -> None:
    """KIP-516: exactly one of name and id, each once."""
    world = World()
    world.topic("a")
    world.topic("b")
    ids = {name: found.topic_id for name, found in world.host.catalog.topics.items()}
    states = [
        DeleteTopicState(None, ids["b"]),
        DeleteTopicState("a"),
        DeleteTopicState(None, b"?" * 16),
        DeleteTopicState("a", ids["a"]),
        DeleteTopicState(None),
    ]
    answer = world.client().ask(DELETE_TOPICS, 6, DeleteTopicsRequest(states, [], 1000))
    assert [(result.name, result.error_code) for result in answer.responses] == [
        ("b", ErrorCode.NONE),
        ("a", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("a", ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.INVALID_REQUEST),
    ]


def test_delete_topics_says_what_is_wrong_from_v5_on() -> None:
    """KIP-599 added an error text; Kafka sets it for an unknown topic."""
    client = World().client()
    (result,) = client.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["none"])).responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert result.error_message


def test_delete_topics_deletes_nothing_that_is_named_by_name_and_by_id() -> None:
    """One mistake gets one response, under the name. Other topics are deleted."""
    world = World()
    world.topic("t")
    world.topic("u")
    topic_id = world.host.catalog.topics["t"].topic_id
    states = [DeleteTopicState("t"), DeleteTopicState(None, topic_id), DeleteTopicState("u")]
    results = world.client().ask(DELETE_TOPICS, 6, DeleteTopicsRequest(states)).responses
    assert [(result.name, result.error_code) for result in results] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert results[0].topic_id == topic_id
    assert list(world.host.catalog.topics) == ["t"]


def describe(
    world: World, kind: int, name: str, version: int = 4, keys: list[str] | None = None
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        [DescribeConfigsResource(kind, name, keys)],
        include_synonyms=version >= 1,
        include_documentation=version >= 3,
    )
    (result,) = world.client().ask(DESCRIBE_CONFIGS, version, request).results
    assert isinstance(result, DescribeConfigsResult)
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_a_topic_shows_where_values_come_from(version: int) -> None:
    """KIP-226: set on the topic, changed by the server, or the default; with synonyms."""
    world = World(KafkaOptions(message_max_bytes=2_000_000))
    world.topic(configs={"retention.ms": "1000"})
    entries = {entry.name: entry for entry in describe(world, 2, "t", version).configs}
    assert set(entries) == set(BY_NAME)
    assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("1000", 1)
    limit = entries["max.message.bytes"]
    assert (limit.value, limit.config_source) == ("2000000", 4)
    assert entries["segment.ms"].config_source == 5
    assert [synonym.source for synonym in limit.synonyms] == [4, 5]
    assert [synonym.source for synonym in entries["retention.ms"].synonyms] == [1, 5]
    if version >= 3:
        assert limit.config_type == 3
        assert limit.documentation


def test_describe_configs_of_old_clients_tells_defaults() -> None:
    """v0: for a topic, settings that it does not set; for a server, those not in its file."""
    world = World(KafkaOptions(message_max_bytes=2_000_000))
    world.topic(configs={"retention.ms": "1000"})
    topic = {entry.name: entry for entry in describe(world, 2, "t", 0).configs}
    server = {entry.name: entry for entry in describe(world, 4, "1", 0).configs}
    assert {name for name, entry in topic.items() if not entry.is_default} == {"retention.ms"}
    assert topic["max.message.bytes"].value == "2000000"
    assert not server["message.max.bytes"].is_default
    assert server["num.partitions"].is_default


def test_describe_configs_answers_a_resource_once() -> None:
    """Applies however often it is named."""
    world = World()
    world.topic()
    resources = [DescribeConfigsResource(2, "t", keys) for keys in (["retention.ms"], None)]
    answer = world.client().ask(DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources))
    (result,) = answer.results
    assert [entry.name for entry in result.configs] == ["retention.ms"]


def test_describe_configs_returns_the_keys_asked_for() -> None:
    """Null and empty mean all keys."""
    world = World()
    world.topic()
    found = describe(world, 2, "t", keys=["retention.ms", "no.such"])
    assert [entry.name for entry in found.configs] == ["retention.ms"]
    assert len(describe(world, 2, "t", keys=[]).configs) == len(KNOWN)


def test_describe_configs_of_a_server_is_answered_by_that_server() -> None:
    """Values from its file are read-only, except those that can be changed at run time.

    Another server's id is refused. An empty name means the settings of all servers.
    """
    world = World(KafkaOptions(num_partitions=8))
    entries = {entry.name: entry for entry in describe(world, 4, "1").configs}
    assert (entries["num.partitions"].value, entries["num.partitions"].config_source) == ("8", 4)
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["message.max.bytes"].value == "1048588"
    unset = {throttle.name for throttle in REPLICATION_THROTTLES}
    assert {entry.name for entry in entries.values() if not entry.read_only} == set(DYNAMIC) - unset
    partitions = entries["offsets.topic.num.partitions"]
    assert (partitions.value, partitions.read_only, partitions.config_type) == ("8", True, 3)
    assert entries["transaction.state.log.replication.factor"].value == "1"
    assert describe(world, 4, "2").error_code == ErrorCode.INVALID_REQUEST
    assert describe(world, 4, "").configs == []


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (2, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (8, "2", ErrorCode.INVALID_REQUEST),
        (16, "", ErrorCode.INVALID_REQUEST),
        (32, "", ErrorCode.INVALID_REQUEST),
        (64, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_describe_configs_of_what_is_not_there_is_refused(
    kind: int, name: str, error: ErrorCode
) -> None:
    """Each resource has its own error."""
    assert describe(World(), kind, name).error_code == error


def test_topic_defaults_are_accepted_by_their_own_check() -> None:
    """A topic may always be set to its default value."""
    options = KafkaOptions()
    check_configs({config.name: config.default_for(options) for config in KNOWN})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max.message.bytes", "-1"),
        ("max.message.bytes", str(1 << 31)),
        ("retention.ms", "-2"),
        ("min.insync.replicas", "0"),
        ("preallocate", "maybe"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\N{FULLWIDTH DIGIT ONE}"),
        ("retention.ms", "1" * 5_000),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "half"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("leader.replication.throttled.replicas", "0:1,1"),
        ("follower.replication.throttled.replicas", "all"),
        ("local.retention.ms", "-3"),
        ("segment.bytes", str((64 << 10) - 1)),
        ("remote.log.delete.on.disable", "true"),
        ("preallocate", "true"),
        ("remote.storage.enable", "true"),
        ("remote.log.copy.disable", "true"),
        ("unclean.leader.election.enable", "true"),
        ("message.timestamp.type", "Sometime"),
    ],
)
def test_topic_settings_out_of_range_are_refused(name: str, value: str) -> None:
    """Covers values one past a limit, of the wrong type, or that require unsupported behaviour."""
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")):
        check_configs({name: value})


def test_setting_without_effect_says_so_where_it_is_described() -> None:
    """The text says how its meaning is met, or why it has none. Refusals give the reason."""
    every = [*KNOWN, *group_configs.KNOWN, *KNOWN_OF_SERVERS.values()]
    for config in every:
        says_so = config.documentation.startswith(NO_EFFECT_PREFIX)
        assert says_so == (config.standing is Standing.NO_EFFECT), config.name
    without = {config.name for config in KNOWN if config.standing is Standing.NO_EFFECT}
    assert without == {
        "file.delete.delay.ms", "flush.messages", "flush.ms", "index.interval.bytes",
        "local.retention.bytes", "local.retention.ms", "segment.index.bytes",
    }  # fmt: skip
    for config in (one for one in every if one.standing is Standing.REFUSED):
        other = "true" if config.type == ConfigType.BOOLEAN else str(int(config.default) + 1)
        config.check(config.default)
        with pytest.raises(InvalidConfig, match=re.escape(config.documentation)):
            config.check(other)


def test_topic_settings_are_kept_without_blanks_around_them() -> None:
    """As Kafka reads them: a blank must not change the meaning of a setting."""
    kept = check_configs({"message.timestamp.type": " LogAppendTime ", "retention.ms": "\t5 "})
    assert kept == {"message.timestamp.type": "LogAppendTime", "retention.ms": "5"}
    world = World()
    create(world, topic(configs={"message.timestamp.type": " LogAppendTime "}))
    assert world.host.catalog.topics["t"].configs == {"message.timestamp.type": "LogAppendTime"}


def test_create_topics_beyond_what_a_server_may_have_by_default_is_refused_with_the_reason() -> (
    None
):
    """POLICY_VIOLATION at one past the limit; the text names the setting to change."""
    world = World()
    limit = KafkaOptions().replicas_per_server_max
    (fits, beyond) = create(world, topic("fits", limit), topic("beyond", 1))
    assert fits.error_code == ErrorCode.NONE
    assert beyond.error_code == ErrorCode.POLICY_VIOLATION
    assert beyond.error_message is not None
    assert "cluster.replicas_per_server" in beyond.error_message
    assert str(limit) in beyond.error_message
