"""A topic's rules for batches, derived once from its settings."""

from dataclasses import replace

import msgspec
import pytest

from vdl.kafka.configs import batch_rules
from vdl.kafka.configs.batch_rules import BatchRules, RulesByTopic
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.partitions.record_checks import Codec
from vdl.records.compression import Compression
from vdl.records.walk import ANY_TIME
from vdl.state.catalog import TopicInfo

OPTIONS = KafkaOptions()
TOPIC = TopicInfo("events", b"1" * 16, [], {})


def test_rules_without_settings_are_the_servers() -> None:
    rules = BatchRules(TOPIC, OPTIONS)
    assert rules.bytes_max == OPTIONS.message_max_bytes
    assert rules.copies_min == OPTIONS.min_insync_replicas
    assert not rules.log_append_time
    assert rules.codec is None
    oldest, newest, keys_required = rules.bounds(10_000)
    assert (oldest, keys_required) == (ANY_TIME[0], False)
    assert newest == 10_000 + OPTIONS.timestamp_after_max_ms


def test_rules_of_a_topic_are_its_settings() -> None:
    settings = {
        "max.message.bytes": "2000",
        "min.insync.replicas": "2",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "300",
        "message.timestamp.after.max.ms": "50",
        "cleanup.policy": "compact",
        "compression.type": "zstd",
        "compression.zstd.level": "5",
    }
    rules = BatchRules(msgspec.structs.replace(TOPIC, configs=settings), OPTIONS)
    assert (rules.bytes_max, rules.copies_min, rules.log_append_time) == (2_000, 2, True)
    assert rules.codec == Codec(Compression.ZSTD, 5, 2_000)
    assert rules.bounds(1_000) == (700, 1_050, True)
    assert rules.any_time == (*ANY_TIME, True)


@pytest.mark.parametrize(("asked", "used"), [("12", 12), ("13", 12), ("22", 12), ("-7", -7)])
def test_level_that_takes_a_thread_for_long_is_used_as_a_lower_one(asked: str, used: int) -> None:
    settings = {"compression.type": "zstd", "compression.zstd.level": asked}
    rules = BatchRules(msgspec.structs.replace(TOPIC, configs=settings), OPTIONS)
    assert rules.codec is not None
    assert rules.codec.level == used


def test_no_time_is_beyond_what_a_record_can_have() -> None:
    settings = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    rules = BatchRules(msgspec.structs.replace(TOPIC, configs=settings), OPTIONS)
    assert rules.bounds(1_000)[:2] == ANY_TIME


def test_settings_that_change_hold_for_the_next_batch() -> None:
    """Applies to settings of the topic and of the server.

    A topic recreated under an id is a new topic.
    """
    known = RulesByTopic()
    first = known.of(TOPIC, OPTIONS)
    assert known.of(TOPIC, OPTIONS) is first
    assert known.of(msgspec.structs.replace(TOPIC, partitions=[1, 2, 3]), OPTIONS) is first
    smaller = msgspec.structs.replace(TOPIC, configs={"max.message.bytes": "7"})
    assert known.of(smaller, OPTIONS).bytes_max == 7
    assert known.of(smaller, replace(OPTIONS, min_insync_replicas=2)).copies_min == 2
    assert known.of(TOPIC, OPTIONS).bytes_max == OPTIONS.message_max_bytes


def test_rules_are_kept_of_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rules, "TOPICS_MAX", 3)
    known = RulesByTopic()
    for number in range(10):
        topic = msgspec.structs.replace(TOPIC, topic_id=bytes([number]) * 16)
        assert known.of(topic, OPTIONS) is known.of(topic, OPTIONS)
        assert len(known._rules) <= 3
