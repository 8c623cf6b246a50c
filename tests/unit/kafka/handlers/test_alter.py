"""DeleteRecords, AlterConfigs and IncrementalAlterConfigs: changes of a topic."""

from __future__ import annotations

import logging

import pytest

from segments.api import SegmentLimits
from tests.unit.kafka.fake_host import World, batch
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import compaction_policy, retention_policy
from vdl.kafka.wire import alter_configs as whole
from vdl.kafka.wire import incremental_alter_configs as incremental
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.log import Loggers
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.retention import RetentionPolicy
from vdl.logstream.group.state_group import OutcomeKind
from vdl.records.batch import read_header

DELETE_RECORDS, ALTER, INCREMENTAL = 21, 33, 44
DESCRIBE = 32
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def delete(
    world: World, offsets: dict[int, int], name: str = "t", version: int = 2
) -> dict[int, tuple[int, int]]:
    partitions = [DeleteRecordsPartition(index, offset) for index, offset in offsets.items()]
    request = DeleteRecordsRequest([DeleteRecordsTopic(name, partitions)], 1_000)
    answer = world.client().ask(DELETE_RECORDS, version, request)
    return {
        result.partition_index: (result.error_code, result.low_watermark)
        for result in answer.topics[0].partitions
    }


def alter(world: World, *changes: tuple[str, int, str | None], name: str = "t") -> int:
    configs = [incremental.AlterableConfig(*change) for change in changes]
    resource = incremental.AlterConfigsResource(TOPIC, name, configs)
    request = incremental.IncrementalAlterConfigsRequest([resource], False)
    return int(world.client().ask(INCREMENTAL, 1, request).responses[0].error_code)


def configs(world: World) -> dict[str, str]:
    return dict(world.host.catalog.topics["t"].configs)


def test_large_batches_are_not_asked_for_while_a_server_takes_none() -> None:
    """A topic's existing value may be set again or removed."""
    world = World()
    world.topic()
    asked = ("max.message.bytes", SET, str(50 << 20))
    world.host.takes_large = False
    assert alter(world, asked) == ErrorCode.INVALID_CONFIG
    world.host.takes_large = True
    assert alter(world, asked) == ErrorCode.NONE
    world.host.takes_large = False
    assert alter(world, asked) == ErrorCode.NONE
    assert alter(world, ("max.message.bytes", SET, str(60 << 20))) == ErrorCode.INVALID_CONFIG
    assert configs(world) == {"max.message.bytes": str(50 << 20)}
    assert alter(world, ("max.message.bytes", DELETE, None)) == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3))
def test_deletion_answers_with_the_new_low_watermark(version: int) -> None:
    """Each partition has its own response; -1 deletes up to the high watermark."""
    world = World()
    streams = world.topic(partitions=3)
    for stream in streams[:2]:
        data = batch(5)
        stream.append(
            memoryview(data), read_header(data), deadline_ns=0, done=lambda appended: None
        )
    world.run()
    assert delete(world, {0: 3, 1: -1, 2: 7, 9: 0}, version=version) == {
        0: (ErrorCode.NONE, 3),
        1: (ErrorCode.NONE, 5),
        2: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        9: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }


def test_deletion_is_the_leaders() -> None:
    """Refused on followers and for unknown topics."""
    world = World()
    (stream,) = world.topic()
    stream.lose_leadership()
    assert delete(world, {0: 0}) == {0: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    assert delete(world, {0: 0}, name="no") == {0: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}


def test_incremental_changes_touch_only_what_they_name() -> None:
    """Covers set, unset, and the operations on lists (KIP-339)."""
    world = World()
    world.topic(configs={"retention.ms": "5", "segment.ms": "7"})
    assert alter(world, ("retention.bytes", SET, "9"), ("segment.ms", DELETE, None)) == 0
    assert configs(world) == {"retention.ms": "5", "retention.bytes": "9"}
    assert alter(world, ("cleanup.policy", APPEND, "delete")) == 0
    assert configs(world)["cleanup.policy"] == "delete"
    assert alter(world, ("cleanup.policy", APPEND, "compact")) == 0
    assert configs(world)["cleanup.policy"] == "delete,compact"
    assert alter(world, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert configs(world)["cleanup.policy"] == "compact"
    assert alter(world, ("cleanup.policy", SET, " compact, delete")) == 0
    assert configs(world)["cleanup.policy"] == "compact,delete"
    assert alter(world, ("cleanup.policy", DELETE, None)) == 0
    assert "cleanup.policy" not in configs(world)


def test_policies_may_be_named_twice_or_not_at_all() -> None:
    """KIP-1161: a policy named twice counts once; a topic without a policy keeps everything."""
    world = World()
    world.topic()
    assert alter(world, ("cleanup.policy", SET, "compact,delete, compact")) == 0
    assert configs(world) == {"cleanup.policy": "compact,delete"}
    assert alter(world, ("cleanup.policy", SUBTRACT, "compact,delete")) == 0
    assert configs(world) == {"cleanup.policy": ""}
    assert compaction_policy(configs(world), KafkaOptions()) is None
    kept = retention_policy({"cleanup.policy": "", "retention.ms": "5"}, KafkaOptions())
    assert (kept.retention_ms, kept.retention_bytes) == (-1, -1)
    assert alter(world, ("cleanup.policy", APPEND, "compact")) == 0
    assert alter(world, ("cleanup.policy", SET, "")) == 0


def test_lags_of_compaction_are_compared() -> None:
    """A lag that is not set compares by its default; earlier settings count too."""
    world = World()
    world.topic()
    assert alter(world, ("max.compaction.lag.ms", SET, "10")) == 0
    assert alter(world, ("min.compaction.lag.ms", SET, "11")) == ErrorCode.INVALID_CONFIG
    assert alter(world, ("min.compaction.lag.ms", SET, "10")) == 0
    assert alter(world, ("max.compaction.lag.ms", SET, "9")) == ErrorCode.INVALID_CONFIG
    assert alter(world, ("max.compaction.lag.ms", DELETE, None)) == 0
    assert alter(world, ("min.compaction.lag.ms", SET, "11")) == 0
    assert configs(world) == {"min.compaction.lag.ms": "11"}


def test_setting_that_does_not_exist_is_deleted_from_topics_only() -> None:
    """As in Kafka: a tool may know more settings than the server."""
    world = World()
    world.topic()
    assert alter(world, ("no.such", DELETE, None)) == 0
    assert configs(world) == {}
    row = incremental.AlterConfigsResource(
        BROKER, "1", [incremental.AlterableConfig("log.dirs", DELETE, None)]
    )
    request = incremental.IncrementalAlterConfigsRequest([row], False)
    (result,) = world.client().ask(INCREMENTAL, 1, request).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST


def levels(world: World, *changes: tuple[str, int, str | None], validate: bool = False) -> int:
    """Change levels of the server's loggers and return the error."""
    rows = [incremental.AlterableConfig(*change) for change in changes]
    resource = incremental.AlterConfigsResource(LOGGER, "1", rows)
    request = incremental.IncrementalAlterConfigsRequest([resource], validate)
    return int(world.client().ask(INCREMENTAL, 1, request).responses[0].error_code)


def test_levels_of_loggers_take_effect_at_once() -> None:
    """KIP-412: one part of the server can log more, or less, than the rest."""
    world = World()
    root = logging.Logger("root", logging.INFO)
    root.manager = logging.Manager(root)  # type: ignore[arg-type]
    part = root.manager.getLogger("vdl.kafka")
    world.context.loggers = Loggers(root)

    def described() -> dict[str, str | None]:
        request = DescribeConfigsRequest([DescribeConfigsResource(LOGGER, "1", None)])
        (result,) = world.client().ask(DESCRIBE, 4, request).results
        assert {entry.config_source for entry in result.configs} == {6}
        return {entry.name: entry.value for entry in result.configs}

    assert described() == {"root": "INFO", "vdl.kafka": "INFO"}
    assert levels(world, ("vdl.kafka", SET, "DEBUG"), ("root", SET, "WARN")) == 0
    assert described() == {"root": "WARN", "vdl.kafka": "DEBUG"}
    assert part.isEnabledFor(logging.DEBUG)
    assert not root.isEnabledFor(logging.INFO)
    assert levels(world, ("vdl.kafka", DELETE, None), validate=True) == 0
    assert described()["vdl.kafka"] == "DEBUG"
    assert levels(world, ("vdl.kafka", DELETE, None)) == 0
    assert described() == {"root": "WARN", "vdl.kafka": "WARN"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("kafka.server", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("kafka.server", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", SET, "warn"), ErrorCode.INVALID_CONFIG),
        (("root", SET, None), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (("root", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (("root", 9, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_levels_that_cannot_be_are_refused(
    change: tuple[str, int, str | None], error: ErrorCode
) -> None:
    """The request then changes nothing. AlterConfigs does not know loggers."""
    world = World()
    root = logging.Logger("root", logging.INFO)
    root.manager = logging.Manager(root)  # type: ignore[arg-type]
    world.context.loggers = Loggers(root)
    first = ("root", SET, "ERROR")
    other = [first] if change[0] != "root" else []
    assert levels(world, *other, change) == error
    assert levels(world, first, first) == ErrorCode.INVALID_REQUEST
    assert world.context.loggers.levels() == {"root": "INFO"}
    resource = whole.AlterConfigsResource(LOGGER, "1", [whole.AlterableConfig("root", "INFO")])
    answer = world.client().ask(ALTER, 2, whole.AlterConfigsRequest([resource], False))
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("no.such", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("max.compaction.lag.ms", SET, "0"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", APPEND, "compress"), ErrorCode.INVALID_CONFIG),
        (("cleanup.policy", SET, "compact,"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 7, "1"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_change_that_means_nothing_is_refused(
    change: tuple[str, int, str | None], error: ErrorCode
) -> None:
    """The request changes nothing."""
    world = World()
    world.topic()
    assert alter(world, change) == error
    assert configs(world) == {}


def test_whole_alteration_replaces_everything() -> None:
    """AlterConfigs resets every setting that it does not name to its default (KIP-133)."""
    world = World()
    world.topic(configs={"retention.ms": "5", "segment.ms": "7"})
    resource = whole.AlterConfigsResource(TOPIC, "t", [whole.AlterableConfig("segment.ms", "8")])
    for validate_only, after in (
        (True, {"retention.ms": "5", "segment.ms": "7"}),
        (False, {"segment.ms": "8"}),
    ):
        request = whole.AlterConfigsRequest([resource], validate_only)
        assert world.client().ask(ALTER, 2, request).responses[0].error_code == 0
        assert configs(world) == after


@pytest.mark.parametrize("api_key", [ALTER, INCREMENTAL])
def test_validation_tells_what_a_change_would_be_answered(api_key: int) -> None:
    """Covers an existing topic, an unknown one, and invalid values."""
    world = World()
    world.topic(configs={"retention.ms": "5"})
    asked = [("t", "7"), ("nope", "7"), ("nope-too", "soon")]
    request: whole.AlterConfigsRequest | incremental.IncrementalAlterConfigsRequest
    for validate_only in (True, False):
        if api_key == ALTER:
            request = whole.AlterConfigsRequest(
                [
                    whole.AlterConfigsResource(
                        TOPIC, name, [whole.AlterableConfig("retention.ms", value)]
                    )
                    for name, value in asked
                ],
                validate_only,
            )
        else:
            request = incremental.IncrementalAlterConfigsRequest(
                [
                    incremental.AlterConfigsResource(
                        TOPIC, name, [incremental.AlterableConfig("retention.ms", SET, value)]
                    )
                    for name, value in asked
                ],
                validate_only,
            )
        answer = world.client().ask(api_key, 1, request)
        assert [(result.error_code, result.error_message) for result in answer.responses][:2] == [
            (ErrorCode.NONE, None),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 'nope' does not exist"),
        ]
        assert answer.responses[2].error_code == ErrorCode.INVALID_CONFIG
        assert configs(world) == {"retention.ms": "5" if validate_only else "7"}


def test_resources_that_cannot_be_altered_are_refused() -> None:
    """Covers another server's settings, a type without settings, and an ambiguous duplicate."""
    world = World()
    world.topic()
    asked = [
        incremental.AlterConfigsResource(kind, name, [])
        for kind, name in (
            (BROKER, "2"), (BROKER, "one"), (8, "2"), (64, "x"), (16, ""), (32, ""),
            (TOPIC, "t"), (TOPIC, "t"), (TOPIC, "nobody"),
        )
    ]  # fmt: skip
    request = incremental.IncrementalAlterConfigsRequest(asked, False)
    answer = world.client().ask(INCREMENTAL, 1, request)
    assert [result.error_code for result in answer.responses] == [
        *[ErrorCode.INVALID_REQUEST] * 8,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_replicas_that_tools_throttle_are_added_and_taken_away() -> None:
    """Covers adding and removing one by one (KIP-339) until none is left.

    Invalid replica names are refused.
    """
    world = World()
    world.topic()
    name = "leader.replication.throttled.replicas"
    for operation, value, after in (
        (APPEND, "0:1,0:2", "0:1,0:2"),
        (APPEND, "0:2, 1:3", "0:1,0:2,1:3"),
        (SUBTRACT, "0:1,7:7", "0:2,1:3"),
        (SUBTRACT, "0:2,1:3", ""),
        (SET, "*", "*"),
    ):
        assert alter(world, (name, operation, value)) == ErrorCode.NONE
        assert configs(world) == {name: after}
    for operation in (SET, APPEND):
        assert alter(world, (name, operation, "0:1,everywhere")) == ErrorCode.INVALID_CONFIG
    assert configs(world) == {name: "*"}


def test_alteration_nobody_decides_has_an_open_fate() -> None:
    """A timeout is not a refusal."""
    world = World()
    world.topic()
    world.host.catalog_outcome = OutcomeKind.UNKNOWN
    assert alter(world, ("retention.ms", SET, "5")) == ErrorCode.REQUEST_TIMED_OUT


def test_retention_policy_is_the_topics_or_the_servers() -> None:
    """A topic without a policy uses the server's. The default keeps everything."""
    assert retention_policy({}, KafkaOptions()) == RetentionPolicy(-1, -1)
    week = SegmentLimits(64 << 20, 604_800_000)
    assert retention_policy({}, KafkaOptions(retention_ms=7)) == RetentionPolicy(7, -1, week)
    by_age = retention_policy({"retention.ms": "9"}, KafkaOptions())
    assert by_age == RetentionPolicy(9, -1, week), "few records are not kept until 64 MiB are full"
    rolled = retention_policy({"segment.ms": "5"}, KafkaOptions(segment_bytes=1 << 20)).segments
    assert rolled == SegmentLimits(1 << 20, 5)
    small = retention_policy({"segment.bytes": "14"}, KafkaOptions()).segments
    assert small == SegmentLimits(64 << 10, 604_800_000), "from when so little was accepted"
    anew = retention_policy({}, KafkaOptions(segment_bytes=1 << 20), is_sized_anew=True).segments
    assert anew == SegmentLimits(1 << 20, 604_800_000), "changed at run time"
    mine = {"retention.ms": "-1", "retention.bytes": "9"}
    assert retention_policy(mine, KafkaOptions(retention_ms=7)) == RetentionPolicy(-1, 9)


def test_partitions_end_their_segments_apart_within_the_jitter() -> None:
    """Each rolls earlier by its own part of `segment.jitter.ms` of the topic or the server.

    At the limit no segment is rolled at once.
    """

    def span_ms(configs: dict[str, str], spread: int, **server: int) -> int:
        segments = retention_policy(configs, KafkaOptions(**server), spread=spread).segments
        assert segments is not None
        return segments.span_ms

    jittered = {"segment.ms": "100", "segment.jitter.ms": "10"}
    assert [span_ms(jittered, spread) for spread in (0, 1, 10, 11)] == [100, 99, 90, 100]
    assert span_ms({"segment.ms": "100"}, 7, roll_jitter_ms=10) == 93
    assert span_ms({"segment.ms": "100"}, 7) == 100
    assert {span_ms({**jittered, "segment.jitter.ms": str(1 << 62)}, n) for n in range(500)} == set(
        range(1, 101)
    )


def test_policy_of_the_server_is_that_of_topics_without_one() -> None:
    """`log.cleanup.policy` and the cleaner's settings; a topic's own settings take precedence."""
    compacting = KafkaOptions(
        cleanup_policy="compact", min_compaction_lag_ms=5, delete_retention_ms=6, min_dirty_ratio=1
    )
    assert compaction_policy({}, compacting) == CompactionPolicy(5, (1 << 63) - 1, 6, 1)
    assert compaction_policy({"cleanup.policy": "delete"}, compacting) is None
    own = {"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    assert compaction_policy(own, compacting) == CompactionPolicy(5, (1 << 63) - 1, 0, 0)
    aged = retention_policy({"retention.ms": "5"}, compacting)
    assert aged.retention_ms == -1, "nothing is deleted by age"


def test_compaction_policy_is_the_topics() -> None:
    """Applies only to compacted topics; unset values have Kafka's defaults."""
    assert compaction_policy({}, KafkaOptions()) is None
    assert (
        compaction_policy(
            {"cleanup.policy": "delete", "min.compaction.lag.ms": "5"}, KafkaOptions()
        )
        is None
    )
    assert compaction_policy({"cleanup.policy": "compact"}, KafkaOptions()) == CompactionPolicy()
    asked = {
        "cleanup.policy": "compact,delete", "min.compaction.lag.ms": "5",
        "max.compaction.lag.ms": "9", "delete.retention.ms": "0",
        "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    assert compaction_policy(asked, KafkaOptions()) == CompactionPolicy(5, 9, 0, 0.01)


def test_topic_that_is_only_compacted_deletes_nothing_by_age() -> None:
    """Its segments are rolled in time for records to be compacted within the configured lag."""
    aged = {"retention.ms": "5", "retention.bytes": "6", "max.compaction.lag.ms": "70"}
    only = retention_policy({**aged, "cleanup.policy": "compact"}, KafkaOptions())
    assert only == RetentionPolicy(-1, -1, SegmentLimits(64 << 20, 70))
    both = retention_policy({**aged, "cleanup.policy": "compact,delete"}, KafkaOptions())
    assert both == RetentionPolicy(5, 6, SegmentLimits(64 << 20, 70))
