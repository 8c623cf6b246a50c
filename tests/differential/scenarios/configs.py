"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from typing import Any

from tests.differential.scenarios.topics import CONFIGS
from tests.differential.side import Side
from vdl.kafka.wire import alter_configs, incremental_alter_configs
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
KINDS_SINCE = 1
"""Before this version ListConfigResources lists client metrics alone (KIP-1142)."""


def describe_configs(side: Side) -> None:
    topic = side.topic("described", retention_ms="1000", cleanup_policy="delete")

    def ask(label: str, *rows: DescribeConfigsResource, first: int = 1, **fields: Any) -> None:
        side.each(label, DescribeConfigsRequest(list(rows), **fields), first=first)

    row = DescribeConfigsResource
    ask("one setting", row(TOPIC, topic, ["retention.ms"]))
    ask("one default", row(TOPIC, topic, ["max.message.bytes"]))
    ask("with synonyms", row(TOPIC, topic, ["cleanup.policy"]), include_synonyms=True)
    ask("unknown setting", row(TOPIC, topic, ["no.such.thing"]))
    ask("the same twice", row(TOPIC, topic, ["retention.ms", "retention.ms"]))
    ask("no setting", row(TOPIC, topic, []))
    ask("unknown topic", row(TOPIC, f"{side.prefix}.none", None))
    ask("no topic", row(TOPIC, "", None))
    ask("bad name", row(TOPIC, "a b", None))
    ask("name too long", row(TOPIC, "n" * 250, None))
    ask("twice", row(TOPIC, topic, ["retention.ms"]), row(TOPIC, topic, ["retention.ms"]))
    ask("known and unknown", row(TOPIC, topic, ["preallocate"]), row(TOPIC, "none", None))
    ask("nothing")
    ask("no such kind", row(99, "x", None))
    ask("kind nought", row(0, "x", None))
    ask("negative kind", row(-1, "x", None))
    ask("no number", row(BROKER, "x", []))
    ask("no such server", row(BROKER, "77", []))
    ask("another server", row(BROKER, "3", []))
    ask("a server", row(BROKER, "1", ["log.retention.ms", "num.partitions"]))
    ask("all servers", row(BROKER, "", []))
    ask("no such group", row(GROUP, f"{side.prefix}.g", ["consumer.session.timeout.ms"]))
    ask("no such metrics", row(CLIENT_METRICS, f"{side.prefix}.m", None))


def describe_all_configs(side: Side) -> None:
    """Compare every setting of a topic as an answer of its own."""
    topic = side.topic("described")
    request = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, topic, None)])
    answer = side.quiet(request, version=4)
    for row in answer.results[0].configs:
        side.keep_answer(row.name, row)


def alter_configs_whole(side: Side) -> None:
    topic = side.topic("replaced")

    def ask(label: str, kind: int, name: str, values: dict[str, str | None]) -> None:
        rows = [alter_configs.AlterableConfig(_key(key), value) for key, value in values.items()]
        resource = alter_configs.AlterConfigsResource(kind, name, rows)
        side.each(f"{label}, validated", alter_configs.AlterConfigsRequest([resource], True))
        if label in {"good", "none"}:
            side.each(label, alter_configs.AlterConfigsRequest([resource]))

    for label, values in CONFIGS.items():
        ask(label, TOPIC, topic, values)
    ask("none", TOPIC, topic, {})
    ask("unknown topic", TOPIC, f"{side.prefix}.none", {"retention_ms": "1"})
    ask("no topic", TOPIC, "", {"retention_ms": "1"})
    ask("bad name", TOPIC, "a b", {"retention_ms": "1"})
    ask("no such kind", 99, "x", {"retention_ms": "1"})
    ask("kind nought", 0, "x", {"retention_ms": "1"})
    ask("no server", BROKER, "x", {"log_retention_ms": "1"})
    row = alter_configs.AlterConfigsResource
    value = [alter_configs.AlterableConfig("retention.ms", "1")]
    twice = [row(TOPIC, topic, value), row(TOPIC, topic, value)]
    # Kafka does not answer this one, so it is sent once.
    side.ask("twice, validated", alter_configs.AlterConfigsRequest(twice, True))
    same = [row(TOPIC, topic, value * 2)]
    side.each("one setting twice, validated", alter_configs.AlterConfigsRequest(same, True))
    mixed = [row(TOPIC, topic, value), row(TOPIC, f"{side.prefix}.none", value)]
    side.each("good and bad, validated", alter_configs.AlterConfigsRequest(mixed, True))
    side.each("nothing", alter_configs.AlterConfigsRequest([]))


def incremental(side: Side) -> None:
    topic = side.topic("altered")
    config = incremental_alter_configs.AlterableConfig
    resource = incremental_alter_configs.AlterConfigsResource
    request = incremental_alter_configs.IncrementalAlterConfigsRequest

    def ask(label: str, *rows: Any, kind: int = TOPIC, name: str = topic) -> None:
        side.each(f"{label}, validated", request([resource(kind, name, list(rows))], True))

    for label, values in CONFIGS.items():
        ask(label, *[config(_key(key), SET, value) for key, value in values.items()])
        ask(f"{label}, deleted", *[config(_key(key), DELETE, None) for key in values])
    ask("appended to no list", config("retention.ms", APPEND, "1"))
    ask("subtracted from no list", config("retention.ms", SUBTRACT, "1"))
    ask("appended", config("cleanup.policy", APPEND, "delete"))
    ask("subtracted", config("cleanup.policy", SUBTRACT, "delete"))
    ask("subtracted what is not there", config("cleanup.policy", SUBTRACT, "x"))
    ask("appended null", config("cleanup.policy", APPEND, None))
    ask("appended nonsense", config("cleanup.policy", APPEND, "x"))
    ask("no such operation", config("retention.ms", 9, "1"))
    ask("negative operation", config("retention.ms", -1, "1"))
    ask("twice", config("retention.ms", SET, "1"), config("retention.ms", SET, "2"))
    ask("set and deleted", config("retention.ms", SET, "1"), config("retention.ms", DELETE, None))
    ask("none")
    ask("unknown topic", config("retention.ms", SET, "1"), name=f"{side.prefix}.none")
    ask("no topic", config("retention.ms", SET, "1"), name="")
    ask("bad name", config("retention.ms", SET, "1"), name="a b")
    ask("no such kind", config("retention.ms", SET, "1"), kind=99, name="x")
    ask("kind nought", config("retention.ms", SET, "1"), kind=0, name="x")
    ask("no server", config("log.retention.ms", SET, "1"), kind=BROKER, name="x")
    row = resource(TOPIC, topic, [config("retention.ms", SET, "1")])
    side.each("the topic twice, validated", request([row, row], True))
    unknown = resource(TOPIC, f"{side.prefix}.none", row.configs)
    side.each("good and bad, validated", request([row, unknown], True))
    side.each("nothing", request([]))
    for version in side.versions(44):
        for operation, value in ((SET, "5000"), (DELETE, None)):
            change = [resource(TOPIC, topic, [config("retention.ms", operation, value)])]
            side.ask(f"good {operation} v{version}", request(change), version=version)


def list_config_resources(side: Side) -> None:
    def ask(label: str, *kinds: int) -> None:
        for version in side.versions(74):
            if kinds and version < KINDS_SINCE:
                continue
            answer = side.quiet(ListConfigResourcesRequest(list(kinds)), version=version)
            # Topics and groups of other scenarios come and go.
            answer.config_resources = [
                row for row in answer.config_resources if row.resource_type in {BROKER, LOGGER}
            ]
            side.keep_answer(f"{label} v{version}", answer)

    ask("all")
    ask("servers", BROKER)
    ask("loggers", LOGGER)
    ask("no such kind", 99)
    ask("nought", 0)


def loggers(side: Side) -> None:
    """Change levels of a server's loggers (KIP-412); the root's is the only name that both know."""
    config = incremental_alter_configs.AlterableConfig
    resource = incremental_alter_configs.AlterConfigsResource
    request = incremental_alter_configs.IncrementalAlterConfigsRequest

    def ask(label: str, *rows: Any, name: str = "1") -> None:
        side.each(f"alter: {label}", request([resource(LOGGER, name, list(rows))], False), to=1)

    def describe(label: str, name: str, *keys: str) -> None:
        asked = [DescribeConfigsResource(LOGGER, name, list(keys))]
        side.each(f"describe: {label}", DescribeConfigsRequest(asked), to=1, first=1)

    ask("a level", config("root", SET, "ERROR"))
    describe("the level", "1", "root")
    ask("no such level", config("root", SET, "LOUD"))
    ask("a level in small letters", config("root", SET, "error"))
    ask("null", config("root", SET, None))
    ask("removed from the root", config("root", DELETE, None))
    ask("appended", config("root", APPEND, "ERROR"))
    ask("subtracted", config("root", SUBTRACT, "ERROR"))
    ask("no such operation", config("root", 9, "ERROR"))
    ask("unknown", config("no.such.logger", SET, "ERROR"))
    ask("unknown, removed", config("no.such.logger", DELETE, None))
    ask("twice", config("root", SET, "ERROR"), config("root", SET, "WARN"))
    ask("nothing")
    ask("another server", config("root", SET, "ERROR"), name="2")
    ask("no number", config("root", SET, "ERROR"), name="x")
    ask("no server", config("root", SET, "ERROR"), name="")
    describe("unknown", "1", "no.such.logger")
    describe("another server", "2")
    describe("no number", "x")
    describe("no server", "")
    row = alter_configs.AlterConfigsResource(
        LOGGER, "1", [alter_configs.AlterableConfig("root", "ERROR")]
    )
    side.each("alter: whole", alter_configs.AlterConfigsRequest([row]), to=1)


def _key(name: str) -> str:
    return name if name.isupper() else name.replace("_", ".")


SCENARIOS = (
    describe_configs,
    describe_all_configs,
    alter_configs_whole,
    incremental,
    list_config_resources,
    loggers,
)
