"""Settings of servers, consumer groups and metrics subscriptions: set, shown, in force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.kafka.fake_host import World, batch
from tests.unit.kafka.handlers.test_produce import PRODUCE, only, produce
from vdl.errors import ErrorCode
from vdl.kafka.configs import group_configs
from vdl.kafka.configs.broker_configs import DYNAMIC, effective
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import KNOWN, NO_EFFECT_PREFIX, check_configs
from vdl.kafka.telemetry import client_metrics_configs
from vdl.kafka.wire import alter_configs as whole
from vdl.kafka.wire import incremental_alter_configs as incremental
from vdl.kafka.wire.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from vdl.kafka.wire.list_config_resources import ListConfigResourcesRequest
from vdl.logstream.group.state_group import OutcomeKind
from vdl.records.batch import read_header
from vdl.records.compression import Compression
from vdl.server.front import ClientFront
from vdl.state.commands import ConfigChange
from vdl.state.resource_configs import CONFIGS_BYTES_MAX, ResourceConfigs, ResourceType

DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
TOPIC, BROKER, METRICS, GROUP = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)
SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(
    world: World,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> int:
    configs = [incremental.AlterableConfig(*change) for change in changes]
    resource = incremental.AlterConfigsResource(kind, name, configs)
    request = incremental.IncrementalAlterConfigsRequest([resource], validate_only)
    return int(world.client().ask(INCREMENTAL, 1, request).responses[0].error_code)


def described(world: World, kind: int, name: str) -> dict[str, DescribeConfigsResourceResult]:
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)], True, True)
    (result,) = world.client().ask(DESCRIBE, 4, request).results
    assert result.error_code == ErrorCode.NONE, result.error_message
    return {entry.name: entry for entry in result.configs}


def sources(entry: DescribeConfigsResourceResult) -> list[tuple[str, int]]:
    return [(synonym.value or "", synonym.source) for synonym in entry.synonyms]


def test_setting_of_a_server_comes_before_that_of_all() -> None:
    """The latter precedes the server's file and the default (KIP-226).

    A topic inherits the first one.
    """
    world = World(KafkaOptions(message_max_bytes=2_000))
    world.topic()
    name = "message.max.bytes"
    assert alter(world, BROKER, "", (name, SET, "3000")) == ErrorCode.NONE
    assert alter(world, BROKER, "1", (name, SET, "4000")) == ErrorCode.NONE
    levels = [("4000", 2), ("3000", 3), ("2000", 4), ("1048588", 5)]
    for own in levels:
        entry = described(world, BROKER, "1")[name]
        assert (entry.value, entry.config_source, entry.read_only) == (*own, False)
        assert sources(entry) == levels[levels.index(own) :]
        entry = described(world, TOPIC, "t")["max.message.bytes"]
        assert (entry.value, entry.config_source) == own
        assert sources(entry) == levels[levels.index(own) :]
        if own[1] == 2:
            assert alter(world, BROKER, "1", (name, DELETE, None)) == ErrorCode.NONE
        elif own[1] == 3:
            assert described(world, BROKER, "")[name].value == "3000"
            assert alter(world, BROKER, "", (name, DELETE, None)) == ErrorCode.NONE
            assert described(world, BROKER, "") == {}
        elif own[1] == 4:
            break


def test_settings_of_servers_are_in_force_at_once() -> None:
    """Covers settings of this server and of all; not another server's, nor a topic with its own."""
    world = World()
    (stream,) = world.topic()
    (strict,) = world.topic("strict", configs={"max.message.bytes": "1000000"})

    def answer(topic: str, size: int) -> int:
        request = produce(batch(1, size), topic=topic)
        return only(world.client().ask(PRODUCE, 9, request)).error_code

    assert answer("t", 5_000) == ErrorCode.NONE
    assert alter(world, BROKER, "", ("message.max.bytes", SET, "1000")) == ErrorCode.NONE
    assert answer("t", 5_000) == ErrorCode.MESSAGE_TOO_LARGE
    assert answer("strict", 5_000) == ErrorCode.NONE
    assert alter(world, BROKER, "1", ("compression.type", SET, "lz4")) == ErrorCode.NONE
    assert answer("t", 100) == ErrorCode.NONE
    assert read_header(stream.batches[-1].data).codec == Compression.LZ4
    assert alter(world, BROKER, "1", ("message.max.bytes", SET, "9000")) == ErrorCode.NONE
    assert answer("t", 5_000) == ErrorCode.NONE
    assert alter(world, BROKER, "1", ("max.connections", SET, "0")) == ErrorCode.NONE
    assert world.context.config.connections_max == 0
    assert len(strict.batches) == 1


@pytest.mark.parametrize(
    ("setting", "value", "option", "in_force"),
    [
        ("compression.lz4.level", "3", "lz4_level", 3),
        ("log.cleaner.delete.retention.ms", "5", "delete_retention_ms", 5),
        ("log.cleaner.max.compaction.lag.ms", "5", "max_compaction_lag_ms", 5),
        ("log.cleaner.min.cleanable.ratio", "0.25", "min_dirty_ratio", 0.25),
        ("log.cleaner.min.compaction.lag.ms", "5", "min_compaction_lag_ms", 5),
        ("log.cleanup.policy", "compact,delete", "cleanup_policy", "compact,delete"),
        ("log.retention.ms", "604800000", "retention_ms", 604_800_000),
        ("log.roll.jitter.ms", "5", "roll_jitter_ms", 5),
        ("log.segment.bytes", "1048576", "segment_bytes", 1 << 20),
    ],
)
def test_setting_of_topics_is_changed_for_all_at_run_time(
    setting: str, value: str, option: str, in_force: object
) -> None:
    """As in Kafka, where these are dynamic. Removing the setting restores the former value."""
    world = World()
    assert alter(world, BROKER, "", (setting, SET, value)) == ErrorCode.NONE
    assert getattr(world.context.config, option) == in_force
    entry = described(world, BROKER, "1")[setting]
    assert (entry.value, entry.config_source, entry.read_only) == (value, 3, False)
    assert alter(world, BROKER, "", (setting, DELETE, None)) == ErrorCode.NONE
    assert world.context.config == KafkaOptions()


def test_name_that_kafka_does_not_know_is_kept_for_plug_ins_as_in_kafka() -> None:
    """It is shown without its value, which may be a secret. It has no effect here and says so."""
    world = World()
    for server, source in (("", 3), ("1", 2)):
        assert alter(world, BROKER, server, ("plug.in.key", SET, "x")) == ErrorCode.NONE
        entry = described(world, BROKER, server)["plug.in.key"]
        assert (entry.value, entry.is_sensitive, entry.config_source) == (None, True, source)
        assert [synonym.value for synonym in entry.synonyms] == [None]
        assert (entry.documentation or "").startswith(NO_EFFECT_PREFIX)
    assert world.context.config == KafkaOptions()
    assert alter(world, BROKER, "1", ("plug.in.key", DELETE, None)) == ErrorCode.NONE
    assert described(world, BROKER, "1")["plug.in.key"].config_source == 3


def test_another_servers_settings_change_nothing_here() -> None:
    """Every server has the settings of all servers in its catalog."""
    resources = ResourceConfigs()
    change = ConfigChange("2", {"message.max.bytes": "7"})
    assert resources.alter(BROKER, change)[0] is ErrorCode.NONE
    assert effective(KafkaOptions(), resources, 1) == KafkaOptions()
    assert effective(KafkaOptions(), resources, 2).message_max_bytes == 7


def test_pace_of_compaction_and_of_assignments_can_be_changed_at_run_time() -> None:
    """As in Kafka 4.3. A rate lower than the producers leave room for is respected."""
    world = World()
    frontend: Any = SimpleNamespace(
        context=world.context,
        turn=SimpleNamespace(flush=None, oldest_wait_ns=None),
    )
    front = ClientFront(frontend, lambda: None, lambda: None)
    unlimited = front.background_rate()
    assert unlimited > 2_000
    settings = {
        "log.cleaner.io.max.bytes.per.second": "1500.7",
        "group.consumer.assignment.interval.ms": "0",
    }
    world.host.catalog.resources.alter(BROKER, ConfigChange("", settings))
    world.context.follow_catalog()
    assert front.background_rate() == 1_500
    assert world.context.config.group_consumer_assignment_interval_ms == 0


def test_broker_level_minimum_of_an_older_version_can_be_deleted() -> None:
    world = World()
    world.host.catalog.resources.alter(BROKER, ConfigChange("1", {"min.insync.replicas": "2"}))
    assert alter(world, BROKER, "1", ("min.insync.replicas", DELETE, None)) == ErrorCode.NONE


def test_setting_that_this_version_does_not_know_changes_nothing() -> None:
    """A newer version stored it; it must not stop this one."""
    resources = ResourceConfigs()
    resources.alter(BROKER, ConfigChange("", {"num.partitions": "7", "from.the.future": "x"}))
    assert effective(KafkaOptions(), resources, 1) == KafkaOptions()


@pytest.mark.parametrize(
    "name", ["broker.id", "num.partitions", "listener.name.x.ssl.key.password", "log.dirs"]
)
@pytest.mark.parametrize("server", ["", "1"])
def test_setting_that_only_the_file_has_is_refused_by_name(name: str, server: str) -> None:
    """As in Kafka for read-only settings. The request's other settings are refused with it."""
    world = World()
    resource = incremental.AlterConfigsResource(
        BROKER,
        server,
        [
            incremental.AlterableConfig("log.retention.ms", SET, "5"),
            incremental.AlterableConfig(name, SET, "5"),
        ],
    )
    request = incremental.IncrementalAlterConfigsRequest([resource], False)
    (result,) = world.client().ask(INCREMENTAL, 1, request).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert name in result.error_message
    assert len(world.host.catalog.resources) == 0


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value", "error"),
    [
        (BROKER, "", "message.max.bytes", "-1", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "log.cleaner.threads", "many", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "min.insync.replicas", "0", ErrorCode.INVALID_REQUEST),
        (BROKER, "1", "min.insync.replicas", "1", ErrorCode.INVALID_CONFIG),
        (BROKER, "", "group.consumer.assignment.interval.ms", "15001", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "log.cleaner.io.max.bytes.per.second", "0.5", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "log.cleaner.io.max.bytes.per.second", "fast", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "compression.type", "best", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", "consumer.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "consumer.session.timeout.ms", "60001", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "consumer.heartbeat.interval.ms", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "middle", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "by_duration:P", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "share.isolation.level", "none", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "retention.ms", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "streams.num.standby.replicas", "1", ErrorCode.INVALID_CONFIG),
        (GROUP, "g", "streams.session.timeout.ms", "50000", ErrorCode.INVALID_CONFIG),
        (BROKER, "", "unclean.leader.election.enable", "true", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "log.segment.bytes", "14", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "max.connections.per.ip.overrides", "10.0.0.1", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "max.connections.per.ip.overrides", "host:5", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "log.cleaner.min.cleanable.ratio", "2", ErrorCode.INVALID_REQUEST),
        (METRICS, "m", "interval.ms", "99", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "interval.ms", "3600001", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", "client_id", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", "client_id=(", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", r"client_id=\pL{1000}", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "match", "colour=red", ErrorCode.INVALID_CONFIG),
        (METRICS, "m", "push", "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_value_that_means_nothing_is_refused(
    kind: int, name: str, setting: str, value: str, error: ErrorCode
) -> None:
    """Both requests refuse it, also with validate_only."""
    world = World()
    for validate_only in (True, False):
        change = (setting, SET, value)
        assert alter(world, kind, name, change, validate_only=validate_only) == error
    resource = whole.AlterConfigsResource(kind, name, [whole.AlterableConfig(setting, value)])
    request = whole.AlterConfigsRequest([resource], False)
    assert world.client().ask(ALTER, 2, request).responses[0].error_code == error
    assert len(world.host.catalog.resources) == 0


def test_settings_of_a_group_are_kept_and_shown() -> None:
    """The group need not exist yet. The defaults are the servers'."""
    world = World()
    assert alter(world, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")) == 0
    entries = described(world, GROUP, "g")
    assert set(entries) == set(group_configs.BY_NAME)
    own = entries["consumer.session.timeout.ms"]
    assert (own.value, own.config_source) == ("50000", 8)
    assert sources(own) == [("50000", 8), ("45000", 5)]
    assert own.synonyms[1].name == "group.consumer.session.timeout.ms"
    assert entries["consumer.heartbeat.interval.ms"].config_source == 5
    assert described(world, GROUP, "other")["consumer.session.timeout.ms"].value == "45000"


@pytest.mark.parametrize("value", ["latest", "EARLIEST", "by_duration:PT1H", "by_duration:P1DT2S"])
def test_share_group_may_begin_anywhere_kafka_knows(value: str) -> None:
    """The values are both ends of the log, and an age."""
    assert alter(World(), GROUP, "g", ("share.auto.offset.reset", SET, value)) == ErrorCode.NONE


def test_subscription_to_metrics_is_changed_and_goes() -> None:
    """List values change element by element (KIP-339).

    Without settings the subscription is gone.
    """
    world = World()
    for change, after in (
        (("metrics", SET, "a.,b."), "a.,b."),
        (("metrics", APPEND, "b.,c."), "a.,b.,c."),
        (("metrics", SUBTRACT, "a."), "b.,c."),
    ):
        assert alter(world, METRICS, "m", change) == ErrorCode.NONE
        entry = described(world, METRICS, "m")["metrics"]
        assert (entry.value, entry.config_source) == (after, 7)
    assert set(described(world, METRICS, "m")) == set(client_metrics_configs.BY_NAME)
    assert alter(world, METRICS, "m", ("match", APPEND, "client_id=[")) == ErrorCode.INVALID_CONFIG
    assert list(world.host.catalog.resources.names(METRICS)) == ["m"]
    assert alter(world, METRICS, "m", ("metrics", DELETE, None)) == ErrorCode.NONE
    assert list(world.host.catalog.resources.names(METRICS)) == []


def test_resources_of_all_kinds_are_changed_in_one_request() -> None:
    """Each has its own response, in request order. AlterConfigs replaces all earlier settings."""
    world = World()
    world.topic()
    alter(world, GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "6000"))
    asked = [
        whole.AlterConfigsResource(kind, name, [whole.AlterableConfig(setting, value)])
        for kind, name, setting, value in (
            (GROUP, "g", "consumer.session.timeout.ms", "50000"),
            (TOPIC, "t", "retention.ms", "5"),
            (TOPIC, "no", "retention.ms", "5"),
            (METRICS, "m", "interval.ms", "100"),
            (BROKER, "", "num.io.threads", "3"),
        )
    ]
    answer = world.client().ask(ALTER, 2, whole.AlterConfigsRequest(asked, False))
    assert [result.error_code for result in answer.responses] == [
        0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0,
    ]  # fmt: skip
    catalog = world.host.catalog
    assert catalog.resources.of(GROUP, "g") == {"consumer.session.timeout.ms": "50000"}
    assert catalog.topics["t"].configs == {"retention.ms": "5"}
    assert described(world, BROKER, "1")["num.io.threads"].value == "3"


def test_alteration_nobody_decides_has_an_open_fate() -> None:
    """REQUEST_TIMED_OUT is returned for every resource of the request."""
    world = World()
    world.topic()
    world.host.catalog_outcome = OutcomeKind.UNKNOWN
    asked = [
        incremental.AlterConfigsResource(TOPIC, "t", []),
        incremental.AlterConfigsResource(GROUP, "g", []),
    ]
    request = incremental.IncrementalAlterConfigsRequest(asked, False)
    answer = world.client().ask(INCREMENTAL, 1, request)
    codes = [result.error_code for result in answer.responses]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2


def test_session_must_outlast_the_heartbeat_it_is_kept_by() -> None:
    """The check includes values that were set before."""
    group_configs.check_together({"consumer.session.timeout.ms": "5001"})
    with pytest.raises(Exception, match="must be greater"):
        group_configs.check_together(
            {"share.session.timeout.ms": "9000", "share.heartbeat.interval.ms": "9000"}
        )


def test_resources_are_listed_by_type() -> None:
    """v0 knows metrics subscriptions only. Without types, v1 lists all there are."""
    world = World()
    world.topic("b")
    world.topic("a")
    alter(world, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    alter(world, METRICS, "m", ("interval.ms", SET, "100"))

    def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(list(kinds))
        answer = world.client().ask(LIST, version, request)
        assert answer.error_code == ErrorCode.NONE
        return [(row.resource_type, row.resource_name) for row in answer.config_resources]

    assert listed(0) == [(METRICS, "m")]
    topics, servers = [(TOPIC, "a"), (TOPIC, "b")], [(BROKER, str(one)) for one in (1, 2, 3)]
    assert listed(1, TOPIC) == topics
    assert listed(1, GROUP, METRICS, GROUP) == [(METRICS, "m"), (GROUP, "g")]
    loggers = [(8, str(one)) for one in (1, 2, 3)]
    assert listed(1) == [*topics, *servers, *loggers, (METRICS, "m"), (GROUP, "g")]
    request = ListConfigResourcesRequest([TOPIC, 3])
    answer = world.client().ask(LIST, 1, request)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.config_resources == []


def test_defaults_of_all_resources_are_accepted_by_their_own_check() -> None:
    """A resource may always be set to its default value."""
    options = KafkaOptions()
    for known in (KNOWN, group_configs.KNOWN, client_metrics_configs.KNOWN, DYNAMIC.values()):
        settings = {config.name: config for config in known}
        check_configs(
            {name: config.default_for(options) for name, config in settings.items()}, settings
        )


def test_settings_that_take_too_much_are_refused() -> None:
    """Values at the limit are accepted, one byte above refused."""
    world = World()
    room = CONFIGS_BYTES_MAX - len("metrics")
    assert alter(world, METRICS, "m", ("metrics", SET, "x" * room)) == ErrorCode.NONE
    before = world.host.catalog.resources.of(METRICS, "m")
    assert alter(world, METRICS, "m", ("metrics", SET, "x" * (room + 1))) == (
        ErrorCode.INVALID_CONFIG
    )
    assert world.host.catalog.resources.of(METRICS, "m") == before
