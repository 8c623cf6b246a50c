"""CreateTopics, DeleteTopics, DeleteRecords, CreatePartitions."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import batch
from tests.differential.side import Side
from vdl.kafka.wire.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from vdl.kafka.wire.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState

TIMEOUT_MS = 20_000
STATES_SINCE = 6
"""DeleteTopics accepts ids from this version on (KIP-516)."""

BAD_NAMES = ("", ".", "..", "a b", "a/b", "ä", "a,b", "a:b", "n" * 250, "\0", "a\n")
GOOD_NAMES = ("...", "-", "_", "a.-_9")


def _create(side: Side, label: str, *topics: CreatableTopic) -> None:
    """Validate only: the same request can be sent in every version."""
    side.each(label, CreateTopicsRequest(list(topics), TIMEOUT_MS, validate_only=True))


def _configs(**values: str | None) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name.replace("_", "."), value) for name, value in values.items()]


def create_topics(side: Side) -> None:
    name = f"{side.prefix}.new"
    exists = side.topic("exists")
    dotted = side.topic("col.lide")
    topic = CreatableTopic
    for shown in BAD_NAMES:
        _create(side, f"name {shown[:10]!r}", topic(shown, 1, 1))
    for shown in GOOD_NAMES:
        _create(side, f"name {shown!r}", topic(shown, 1, 1))
    _create(side, "longest name", topic(f"{side.prefix}{'n' * 300}"[:249], 1, 1))
    _create(side, "exists", topic(exists, 1, 1))
    _create(side, "collides", topic(dotted.replace(".", "_"), 1, 1))
    _create(side, "defaults", topic(name, -1, -1))
    _create(side, "nothing")
    _create(side, "twice", topic(name, 1, 1), topic(name, 1, 1))
    _create(side, "thrice and another", *[topic(name, 1, 1)] * 3, topic(f"{name}2", 1, 1))
    _create(side, "one good, one bad", topic(name, 1, 1), topic("a b", 1, 1))
    for count in (0, -2, -100):
        _create(side, f"{count} partitions", topic(name, count, 1))
    for factor in (0, -2, 4, 32_767):
        _create(side, f"factor {factor}", topic(name, 1, factor))
    _create(side, "bad count and bad factor", topic(name, 0, 9))
    _create(side, "bad name and bad count", topic("a b", 0, 1))


def create_topics_placed(side: Side) -> None:
    name = f"{side.prefix}.placed"

    def ask(label: str, *rows: tuple[int, list[int]], count: int = -1, factor: int = -1) -> None:
        placed = [CreatableReplicaAssignment(index, nodes) for index, nodes in rows]
        _create(side, label, CreatableTopic(name, count, factor, placed))

    ask("good", (0, [1, 2, 3]), (1, [2, 3, 1]))
    ask("out of order", (1, [1, 2]), (0, [2, 3]))
    ask("begins with 1", (1, [1]))
    ask("a gap", (0, [1]), (2, [1]))
    ask("negative partition", (-1, [1]))
    ask("a partition twice", (0, [1]), (0, [2]))
    ask("no server", (0, []))
    ask("an unknown server", (0, [1, 9]))
    ask("a negative server", (0, [-1]))
    ask("a server twice", (0, [1, 1]))
    ask("unequal", (0, [1]), (1, [1, 2]))
    ask("with a count", (0, [1]), count=1)
    ask("with a factor", (0, [1]), factor=1)
    ask("with both", (0, [1]), count=1, factor=1)


CONFIGS: dict[str, dict[str, str | None]] = {
    "good": {"retention_ms": "1000", "max_message_bytes": "2000"},
    "unknown": {"no_such_thing": "1"},
    "empty name": {"": "1"},
    "null": {"retention_ms": None},
    "empty value": {"retention_ms": ""},
    "no number": {"retention_ms": "x"},
    "a fraction": {"retention_ms": "1.5"},
    "spaces": {"retention_ms": " 1000 "},
    "a plus": {"retention_ms": "+1000"},
    "below the least": {"retention_ms": "-2"},
    "unlimited": {"retention_ms": "-1", "retention_bytes": "-1"},
    "beyond 64 bits": {"retention_ms": str(1 << 63)},
    "beyond 32 bits": {"max_message_bytes": str(1 << 31)},
    "negative size": {"max_message_bytes": "-1"},
    "no replicas in sync": {"min_insync_replicas": "0"},
    "more in sync than replicas": {"min_insync_replicas": "2"},
    "no cleaning": {"cleanup_policy": ""},
    "delete": {"cleanup_policy": "delete"},
    "compacted": {"cleanup_policy": "compact"},
    "compacted and deleted": {"cleanup_policy": "compact,delete"},
    "compacted, twice": {"cleanup_policy": "compact,compact"},
    "dirty ratio": {"min_cleanable_dirty_ratio": "0.3"},
    "dirty ratio above one": {"min_cleanable_dirty_ratio": "1.5"},
    "compacted: lags the wrong way round": {
        "min_compaction_lag_ms": "10",
        "max_compaction_lag_ms": "5",
    },
    "no such policy": {"cleanup_policy": "x"},
    "unclean": {"unclean_leader_election_enable": "false"},
    "no boolean": {"unclean_leader_election_enable": "yes"},
    "producer's codec": {"compression_type": "producer"},
    "no such codec": {"compression_type": "x"},
    "append time": {"message_timestamp_type": "LogAppendTime"},
    "no such time": {"message_timestamp_type": "x"},
    "small segments": {"segment_bytes": "1048576"},
    "tiny segments": {"segment_bytes": "14"},
    "no segments": {"segment_bytes": "0"},
    "no segment time": {"segment_ms": "0"},
    "index": {"index_interval_bytes": "4096", "segment_index_bytes": "1000000"},
    "flush": {"flush_messages": "1", "flush_ms": "1000"},
    "no flush": {"flush_messages": "0"},
    "times": {"message_timestamp_before_max_ms": "1", "message_timestamp_after_max_ms": "1"},
    "preallocate": {"preallocate": "true"},
    "delay": {"file_delete_delay_ms": "1"},
    "upper case": {"RETENTION_MS": "1"},
    "throttled": {"leader_replication_throttled_replicas": "*"},
    "local": {"local_retention_ms": "-2"},
}


def create_topics_with_settings(side: Side) -> None:
    for label, values in CONFIGS.items():
        topic = CreatableTopic(f"{side.prefix}.set", 1, 1, configs=_configs(**values))
        _create(side, label, topic)
    twice = [*_configs(retention_ms="1"), *_configs(retention_ms="2")]
    _create(side, "twice", CreatableTopic(f"{side.prefix}.set", 1, 1, configs=twice))


def create_and_delete(side: Side) -> None:
    """Create and delete topics in every version."""
    for version in side.versions(19):
        name = f"{side.prefix}.made{version}"
        request = CreateTopicsRequest([CreatableTopic(name, 2, 3)], timeout_ms=TIMEOUT_MS)
        answer = side.ask(f"create v{version}", request, version=version)
        assert answer.topics[0].error_code == 0, answer
        side.await_topic(name, 2)
        side.ask(f"create again v{version}", request, version=version)
    for version in side.versions(20):
        name = side.topic(f"gone{version}")
        topic_id = side.topic_id(name)

        def by_name(name: str = name, version: int = version) -> DeleteTopicsRequest:
            if version < STATES_SINCE:
                return DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS)
            return DeleteTopicsRequest([DeleteTopicState(name)], timeout_ms=TIMEOUT_MS)

        side.ask(f"delete v{version}", by_name(), version=version)
        side.await_gone(name)
        side.ask(f"delete again v{version}", by_name(), version=version)
        if version >= STATES_SINCE:
            by_id = DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=TIMEOUT_MS)
            side.ask(f"delete again by id v{version}", by_id, version=version)


def delete_topics(side: Side) -> None:
    exists = side.topic("stays")
    topic_id = side.topic_id(exists)

    def ask(label: str, *names: str) -> None:
        side.each(
            label,
            lambda v: (
                DeleteTopicsRequest(topic_names=list(names), timeout_ms=TIMEOUT_MS)
                if v < STATES_SINCE
                else DeleteTopicsRequest(list(map(DeleteTopicState, names)), timeout_ms=TIMEOUT_MS)
            ),
        )

    def ask_states(label: str, *states: tuple[str | None, bytes]) -> None:
        rows = [DeleteTopicState(name, found) for name, found in states]
        side.each(label, DeleteTopicsRequest(rows, timeout_ms=TIMEOUT_MS), first=STATES_SINCE)

    ask("nothing")
    ask("unknown", f"{side.prefix}.none")
    ask("no name", "")
    ask("bad name", "a b")
    ask("name too long", "n" * 250)
    ask("unknown, twice", f"{side.prefix}.none", f"{side.prefix}.none")
    unknown = bytes(15) + b"\7"
    ask_states("unknown id", (None, unknown))
    ask_states("unknown id, twice", (None, unknown), (None, unknown))
    ask_states("neither name nor id", (None, bytes(16)))
    ask_states("name and id", (exists, topic_id))
    ask_states("name and unknown id", (exists, unknown))
    ask_states("the same by name and by id", (exists, bytes(16)), (None, topic_id))
    ask_states("unknown by name and by id", (f"{side.prefix}.none", bytes(16)), (None, unknown))


def delete_records(side: Side) -> None:
    topic = side.topic("shortened", 2)
    leader = side.leader(topic)
    for _ in range(4):
        side.produce(topic, batch([b"a", b"b", b"c"]))

    def ask(label: str, *rows: tuple[int, int], to: int = leader, **fields: Any) -> None:
        parts = [DeleteRecordsPartition(index, offset) for index, offset in rows]
        fields = {"timeout_ms": TIMEOUT_MS} | fields
        topics = [DeleteRecordsTopic(fields.pop("name", topic), parts)]
        side.each(label, DeleteRecordsRequest(topics, **fields), to=to)

    ask("nought", (0, 0))
    ask("in the middle of a batch", (0, 4))
    ask("before the start", (0, 2))
    ask("beyond the end", (0, 13))
    ask("far beyond the end", (0, 1 << 60))
    ask("below nought", (0, -2))
    ask("partition that is not there", (9, 0))
    ask("negative partition", (-1, 0))
    ask("not the leader", (0, 5), to=side.other(topic))
    ask("unknown topic", (0, 0), name=f"{side.prefix}.none")
    ask("no name", (0, 0), name="")
    ask("no partition")
    ask("twice", (0, 5), (0, 6))
    ask("empty partition", (1, 0), to=side.leader(topic, 1))
    ask("of an empty partition all", (1, -1), to=side.leader(topic, 1))
    ask("all", (0, -1))
    side.each("nothing", DeleteRecordsRequest([], TIMEOUT_MS), to=leader)


def create_partitions(side: Side) -> None:
    topic = side.topic("grown", 2)

    def ask(label: str, *rows: tuple[str, int, list[list[int]] | None], **fields: Any) -> None:
        topics = [
            CreatePartitionsTopic(
                name,
                count,
                None if placed is None else [CreatePartitionsAssignment(at) for at in placed],
            )
            for name, count, placed in rows
        ]
        side.each(label, CreatePartitionsRequest(topics, TIMEOUT_MS, True, **fields))

    ask("more", (topic, 4, None))
    ask("as many", (topic, 2, None))
    ask("fewer", (topic, 1, None))
    ask("none", (topic, 0, None))
    ask("negative", (topic, -1, None))
    ask("unknown", (f"{side.prefix}.none", 4, None))
    ask("no name", ("", 4, None))
    ask("twice", (topic, 3, None), (topic, 4, None))
    ask("one good, one bad", (topic, 3, None), (f"{side.prefix}.none", 4, None))
    ask("nothing")
    ask("placed", (topic, 3, [[1, 2, 3]]))
    ask("placed, too few", (topic, 4, [[1, 2, 3]]))
    ask("placed, too many", (topic, 3, [[1, 2, 3], [1, 2, 3]]))
    ask("placed nowhere", (topic, 3, []))
    ask("placed on none", (topic, 3, [[]]))
    ask("placed on fewer", (topic, 3, [[1]]))
    ask("placed on an unknown server", (topic, 3, [[1, 2, 9]]))
    ask("placed twice on one", (topic, 3, [[1, 1, 2]]))


SCENARIOS = (
    create_topics,
    create_topics_placed,
    create_topics_with_settings,
    create_and_delete,
    delete_topics,
    delete_records,
    create_partitions,
)
