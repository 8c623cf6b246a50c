"""A topic's requirements on produced batches, from its settings and the server's.

Each batch needs all of them, and settings change rarely: their texts are parsed once.

Does not depend on requests or on batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import (
    MAX_MESSAGE_BYTES,
    MIN_IN_SYNC_REPLICAS,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
    codec_of,
    is_compacted,
)
from vdl.kafka.partitions.record_checks import Bounds, Codec
from vdl.records.walk import ANY_TIME
from vdl.state.catalog import TopicInfo

TOPICS_MAX = 10_000
"""Topics whose rules are cached; beyond it the cache is cleared."""
_OLDEST, _NEWEST = ANY_TIME
_NO_LIMIT_MS = _NEWEST


class BatchRules:
    """Rules of one topic. They are valid while the topic's settings are `configs` and the server's
    are `options`: neither is ever changed in place."""

    __slots__ = (
        "_after_ms", "_before_ms", "any_time", "bytes_max", "codec", "configs", "copies_min",
        "log_append_time", "options",
    )  # fmt: skip

    def __init__(self, topic: TopicInfo, options: KafkaOptions) -> None:
        configs = topic.configs
        self.configs = configs
        self.options = options
        self.bytes_max = _whole(configs, MAX_MESSAGE_BYTES, options.message_max_bytes)
        self.copies_min = _whole(configs, MIN_IN_SYNC_REPLICAS, options.min_insync_replicas)
        """Voters that must have a batch of acks=all on disk before it is acknowledged."""
        timestamp_type = configs.get(TIMESTAMP_TYPE, options.timestamp_type)
        self.log_append_time = timestamp_type.lower() == "logappendtime"
        """True if a batch gets the time of its append (KIP-32)."""
        self.any_time: Bounds = (_OLDEST, _NEWEST, is_compacted(configs, options))
        """The bounds if the time of a record is not kept."""
        after_ms, before_ms = options.timestamp_after_max_ms, options.timestamp_before_max_ms
        self._after_ms = _whole(configs, TIMESTAMP_AFTER_MAX_MS, after_ms)
        self._before_ms = _whole(configs, TIMESTAMP_BEFORE_MAX_MS, before_ms)
        codec = codec_of(configs, options)
        self.codec = None if codec is None else Codec(*codec, self.bytes_max)
        """Codec in which the topic keeps its batches; None for each producer's own."""

    def bounds(self, now_ms: int) -> Bounds:
        """Return the present requirements on each record: its time (KIP-937), and a key if the
        topic is compacted."""
        before_ms = self._before_ms
        oldest = _OLDEST if before_ms == _NO_LIMIT_MS else now_ms - before_ms
        return oldest, min(now_ms + self._after_ms, _NEWEST), self.any_time[2]


class RulesByTopic:
    """Cache of the rules of topics that batches were produced to."""

    __slots__ = ("_rules",)

    def __init__(self) -> None:
        self._rules: dict[bytes, BatchRules] = {}
        """By topic id."""

    def of(self, topic: TopicInfo, options: KafkaOptions) -> BatchRules:
        """Return the rules for a batch that arrives now."""
        rules = self._rules.get(topic.topic_id)
        if rules is None or rules.configs is not topic.configs or rules.options is not options:
            if len(self._rules) >= TOPICS_MAX:
                self._rules.clear()
            rules = self._rules[topic.topic_id] = BatchRules(topic, options)
        return rules


def _whole(configs: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number; its text was checked when it was set."""
    return int(configs[name]) if name in configs else default
