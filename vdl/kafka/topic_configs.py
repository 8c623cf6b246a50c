"""The topic settings this server knows: name, type, default, and which values mean something here.

Kafka clients and tools send and read settings by Kafka's names, so the whole usual list is known.
Rules:

* A name Kafka does not have is refused, a value that does not parse or is out of range too.
* A value that would promise a behaviour this server does not have is refused rather than stored and
  ignored (`compression.type=gzip`).
* Retention is as in Kafka, but for its default: data is kept until somebody says for how long.
* Values are kept as the text that was sent, without blanks around it.

Must not know: requests, the catalog, how a setting takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from segments.api import SegmentLimits
from vdl.kafka.context import KafkaOptions
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.retention import FOREVER, RetentionPolicy

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


class ConfigType(IntEnum):
    """The type of a setting as DescribeConfigs tells it (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class InvalidConfig(Exception):
    """A setting that cannot be accepted; the text is for the client."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One setting. `allowed` (None: anything its type allows) are the texts accepted here."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    broker_name: str = ""
    """The server-wide setting that gives the default, if Kafka has one."""
    low: int | None = None
    high: int | None = None
    allowed: tuple[str, ...] | None = None
    from_options: Callable[[KafkaOptions], int] | None = None
    """Where the server's own value of the default comes from."""

    def default_for(self, options: KafkaOptions) -> str:
        """The value of a topic that does not set it, on a server with these options."""
        return self.default if self.from_options is None else str(self.from_options(options))

    def check(self, value: str) -> None:
        """Raises InvalidConfig."""
        if self.type in _INTEGER_TYPES:
            self._check_integer(value)
        elif self.type is ConfigType.BOOLEAN and value.lower() not in {"true", "false"}:
            raise InvalidConfig(f"{self.name} must be true or false, not {value!r}")
        elif self.type is ConfigType.DOUBLE:
            self._check_ratio(value)
        texts = [value.lower()]
        if self.type is ConfigType.LIST:
            texts = texts[0].split(",")
            if len(set(texts)) < len(texts):
                raise InvalidConfig(f"{self.name}={value} names a value twice")
        if self.allowed is not None and not set(texts) <= set(self.allowed):
            choices = ", ".join(self.allowed)
            raise InvalidConfig(f"{self.name}={value} is not supported here (supported: {choices})")

    def _check_integer(self, value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value):
            raise InvalidConfig(f"{self.name} must be a whole number, not {value!r}")
        number = int(value)
        limit = INT32_MAX if self.type is ConfigType.INT else INT64_MAX
        low = -limit - 1 if self.low is None else self.low
        high = limit if self.high is None else self.high
        if not low <= number <= high:
            raise InvalidConfig(f"{self.name} must be between {low} and {high}, not {number}")

    def _check_ratio(self, value: str) -> None:
        try:
            ratio = float(value)
        except ValueError:
            raise InvalidConfig(f"{self.name} must be a number, not {value!r}") from None
        if not 0.0 <= ratio <= 1.0:
            raise InvalidConfig(f"{self.name} must be between 0 and 1, not {value}")


_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
"""What Java reads as one, too: no underscores, no digits of other scripts."""
_INTEGER_TYPES = frozenset({ConfigType.INT, ConfigType.LONG})

BATCH_BYTES_MAX = 16 << 20
"""No topic may ask for larger batches: one travels to the peers in one frame."""

SEGMENT_BYTES_MIN = 64 << 10
"""Smaller segments are mostly file names."""

CLEANUP_POLICY = "cleanup.policy"
DELETE_RETENTION_MS = "delete.retention.ms"
MAX_COMPACTION_LAG_MS = "max.compaction.lag.ms"
MAX_MESSAGE_BYTES = "max.message.bytes"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
MIN_DIRTY_RATIO = "min.cleanable.dirty.ratio"
MIN_IN_SYNC_REPLICAS = "min.insync.replicas"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
TIMESTAMP_TYPE = "message.timestamp.type"
TIMESTAMP_AFTER_MAX_MS = "message.timestamp.after.max.ms"
TIMESTAMP_BEFORE_MAX_MS = "message.timestamp.before.max.ms"

KNOWN = (
    TopicConfig(
        CLEANUP_POLICY,
        ConfigType.LIST,
        "delete",
        "What is done with old segments: delete, compact, or both.",
        "log.cleanup.policy",
        allowed=("delete", "compact"),
    ),
    TopicConfig(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Batches are kept as the producer compressed them.",
        "compression.type",
        allowed=("producer",),
    ),
    TopicConfig(
        DELETE_RETENTION_MS,
        ConfigType.LONG,
        "86400000",
        "How long a compacted topic keeps deletion markers.",
        "log.cleaner.delete.retention.ms",
        low=0,
    ),
    TopicConfig(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        "How long a deleted file stays on disk.",
        "log.segment.delete.delay.ms",
        low=0,
    ),
    TopicConfig(
        "flush.messages",
        ConfigType.LONG,
        str(INT64_MAX),
        "Every acknowledged batch is on a majority's disks; nothing is left to flush.",
        "log.flush.interval.messages",
        low=1,
    ),
    TopicConfig(
        "flush.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        "Every acknowledged batch is on a majority's disks; nothing is left to flush.",
        "log.flush.interval.ms",
        low=0,
    ),
    TopicConfig(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        "Every batch is indexed.",
        "log.index.interval.bytes",
        low=0,
    ),
    TopicConfig(
        MAX_COMPACTION_LAG_MS,
        ConfigType.LONG,
        str(INT64_MAX),
        "The longest a batch of a compacted topic stays uncompacted.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    ),
    TopicConfig(
        MAX_MESSAGE_BYTES,
        ConfigType.INT,
        "1048588",
        "The largest batch a producer may send, in bytes, as it is after compression.",
        "message.max.bytes",
        low=0,
        from_options=lambda options: options.message_max_bytes,
        high=BATCH_BYTES_MAX,
    ),
    TopicConfig(
        TIMESTAMP_AFTER_MAX_MS,
        ConfigType.LONG,
        "3600000",
        "How far ahead of the server's clock a batch's timestamp may be.",
        "log.message.timestamp.after.max.ms",
        low=0,
    ),
    TopicConfig(
        TIMESTAMP_BEFORE_MAX_MS,
        ConfigType.LONG,
        str(INT64_MAX),
        "How far behind the server's clock a batch's timestamp may be.",
        "log.message.timestamp.before.max.ms",
        low=0,
    ),
    TopicConfig(
        TIMESTAMP_TYPE,
        ConfigType.STRING,
        "CreateTime",
        "Whether records keep the producer's timestamp or get the time of their append.",
        "log.message.timestamp.type",
        allowed=("createtime", "logappendtime"),
    ),
    TopicConfig(
        MIN_DIRTY_RATIO,
        ConfigType.DOUBLE,
        "0.5",
        "How much of a compacted topic may be uncompacted.",
        "log.cleaner.min.cleanable.ratio",
    ),
    TopicConfig(
        MIN_COMPACTION_LAG_MS,
        ConfigType.LONG,
        "0",
        "The shortest a batch of a compacted topic stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    ),
    TopicConfig(
        MIN_IN_SYNC_REPLICAS,
        ConfigType.INT,
        "1",
        "How many replicas, all if they are fewer, must have a batch on disk before acks=all is "
        "answered. A majority always must.",
        MIN_IN_SYNC_REPLICAS,
        low=1,
        from_options=lambda options: options.min_insync_replicas,
    ),
    TopicConfig(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Segment files grow in steps; they are never allocated whole.",
        "log.preallocate",
    ),
    TopicConfig(
        RETENTION_BYTES,
        ConfigType.LONG,
        "-1",
        "The size up to which a partition is kept; -1: whatever its size. Segments go whole.",
        "log.retention.bytes",
        low=-1,
    ),
    TopicConfig(
        RETENTION_MS,
        ConfigType.LONG,
        "-1",
        "How long a batch is kept at least; -1: for ever. Segments go whole.",
        "log.retention.ms",
        low=-1,
        from_options=lambda options: options.retention_ms,
    ),
    TopicConfig(
        SEGMENT_BYTES,
        ConfigType.INT,
        str(1 << 30),
        "The size of a log segment file, 64 KiB at least. Retention deletes whole segments.",
        "log.segment.bytes",
        low=14,
        from_options=lambda options: options.segment_bytes,
    ),
    TopicConfig(
        "segment.index.bytes",
        ConfigType.INT,
        "10485760",
        "The size of an index file; the same for all topics of a server.",
        "log.index.size.max.bytes",
        low=4,
    ),
    TopicConfig(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        "Segments are rolled without jitter.",
        "log.roll.jitter.ms",
        low=0,
    ),
    TopicConfig(
        SEGMENT_MS,
        ConfigType.LONG,
        "604800000",
        "How far apart the timestamps of one segment may be, if the topic says so.",
        "log.roll.ms",
        low=1,
    ),
    TopicConfig(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "A replica without every acknowledged batch is never elected: only false.",
        "unclean.leader.election.enable",
        allowed=("false",),
    ),
)

BY_NAME: Mapping[str, TopicConfig] = {config.name: config for config in KNOWN}


def check_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """The settings as they are kept. Raises InvalidConfig for the first one that cannot be
    accepted, in the order given."""
    kept: dict[str, str] = {}
    for name, value in configs.items():
        config = BY_NAME.get(name)
        if config is None:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        kept[name] = value.strip()
        if config.type is ConfigType.LIST:
            kept[name] = ",".join(part.strip() for part in value.split(","))
        config.check(kept[name])
    return kept


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether a topic with these settings keeps the newest record of each key."""
    return "compact" in configs.get(CLEANUP_POLICY, "").lower()


def is_deleted(configs: Mapping[str, str]) -> bool:
    """Whether old records of a topic with these settings may be deleted."""
    return "delete" in configs.get(CLEANUP_POLICY, "delete").lower()


def compaction_policy(configs: Mapping[str, str]) -> CompactionPolicy | None:
    """How a topic with these settings is compacted; None: it is not."""
    if not is_compacted(configs):
        return None

    def value(name: str) -> str:
        return configs.get(name, BY_NAME[name].default)

    return CompactionPolicy(
        int(value(MIN_COMPACTION_LAG_MS)),
        int(value(MAX_COMPACTION_LAG_MS)),
        int(value(DELETE_RETENTION_MS)),
        float(value(MIN_DIRTY_RATIO)),
    )


def retention_policy(configs: Mapping[str, str], options: KafkaOptions) -> RetentionPolicy:
    """What a topic with these settings keeps. `segment.ms` counts also by its default where records
    are deleted by age, or compacted: else a topic that gets few would keep them until a segment is
    full. A topic that is only compacted keeps what compaction keeps, for ever."""

    def value(name: str) -> int:
        text = configs.get(name)
        return int(BY_NAME[name].default_for(options) if text is None else text)

    segments = None
    retention_ms, retention_bytes = value(RETENTION_MS), value(RETENTION_BYTES)
    segment_ms = value(SEGMENT_MS)
    if not is_deleted(configs):
        retention_ms = retention_bytes = FOREVER
    if is_compacted(configs):
        # The newest segment is not compacted: it must end for the rest to be in time.
        segment_ms = min(segment_ms, value(MAX_COMPACTION_LAG_MS))
    is_rolled = is_compacted(configs) or retention_ms >= 0
    if is_rolled or SEGMENT_BYTES in configs or SEGMENT_MS in configs:
        segments = SegmentLimits(max(SEGMENT_BYTES_MIN, value(SEGMENT_BYTES)), segment_ms)
    return RetentionPolicy(retention_ms, retention_bytes, segments)
