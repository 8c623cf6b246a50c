"""Topic settings: name, type, default, and the values that are accepted here.

Kafka clients and tools send and read settings by Kafka's names, so the whole usual list is known.
Rules:

* A name Kafka does not have is refused, as is a value that does not parse or is out of range.
* A value for behaviour that this server does not have is refused rather than stored and ignored
  (`Standing.REFUSED`).
* A setting is accepted without effect only if its meaning is always met, or if it tunes something
  that does not exist here. Its documentation says so (`Standing.NO_EFFECT`).
* Retention is as in Kafka, except if neither the topic nor the server's file sets a time: then
  records are kept for ever.
* Values are kept as the text that was sent, without surrounding blanks.

Does not depend on requests, on the catalog, or on how a setting takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from segments.api import SegmentLimits
from vdl.kafka.configs.options import KafkaOptions
from vdl.logstream.group.compaction import CompactionPolicy
from vdl.logstream.group.retention import FOREVER, RetentionPolicy
from vdl.logstream.options import LARGE_BATCH_BYTES
from vdl.records.compression import Compression
from vdl.state.resource_configs import list_parts

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


DEFAULTS = KafkaOptions()
"""Options of a server whose file sets nothing."""


class ConfigType(IntEnum):
    """Type of a setting as DescribeConfigs reports it (KIP-569)."""

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


class Standing(Enum):
    """Support of one of Kafka's settings here."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """Any value is accepted: its meaning is always met, or it tunes something that does not exist
    here."""
    REFUSED = "refused"
    """Only the default is accepted: any other value requires behaviour that is not offered
    here."""


NO_EFFECT_PREFIX = "No effect here: "
"""Beginning of the documentation of a setting without effect, for its users."""


class InvalidConfig(Exception):
    """A setting that cannot be accepted; the text is for the client."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One setting. `allowed`: the texts accepted here (None: anything its type allows)."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    broker_name: str = ""
    """Server-wide setting that gives the default; empty if Kafka has none."""
    low: int | None = None
    high: int | None = None
    allowed: tuple[str, ...] | None = None
    pattern: re.Pattern[str] | None = None
    """Pattern of a text, or of each part of a list; None: anything its type allows."""
    option: str = ""
    """Field of `KafkaOptions` with the server's own default; empty if it has none."""
    may_be_empty: bool = False
    """True if a list of `allowed` texts may be empty."""
    standing: Standing = Standing.HONOURED
    """Invariant: the documentation of one without effect begins with `NO_EFFECT_PREFIX`, that of a
    refused one is the reason."""

    @property
    def is_open_list(self) -> bool:
        """True for a list, possibly empty, of any texts that match the pattern."""
        return self.type is ConfigType.LIST and self.allowed is None

    def default_for(self, options: KafkaOptions) -> str:
        """Return the value of a topic that does not set it, on a server with these options."""
        if not self.option:
            return self.default
        value = getattr(options, self.option)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def check(self, value: str) -> None:
        """Check a value. Raises InvalidConfig."""
        if self.type in _INTEGER_TYPES:
            self._check_integer(value)
        elif self.type is ConfigType.BOOLEAN and value.lower() not in {"true", "false"}:
            raise InvalidConfig(f"{self.name} must be true or false, not {value!r}")
        elif self.type is ConfigType.DOUBLE:
            self._check_number(value)
        if self.pattern is not None:
            self._check_pattern(value)
        if self.standing is Standing.REFUSED and value.lower() != self.default:
            raise InvalidConfig(f"{self.name}={value} is refused: {self.documentation}")
        texts = [value.lower()]
        if self.type is ConfigType.LIST:
            texts = [] if self.may_be_empty and not value else texts[0].split(",")
        if self.allowed is not None and not set(texts) <= set(self.allowed):
            choices = ", ".join(self.allowed)
            raise InvalidConfig(f"{self.name}={value} is not supported here (supported: {choices})")

    def _check_pattern(self, value: str) -> None:
        assert self.pattern is not None, self.name
        parts = [value] if self.type is not ConfigType.LIST else list_parts(value)
        for part in parts:
            if not self.pattern.fullmatch(part):
                raise InvalidConfig(f"{self.name} does not accept {value!r}")

    def _check_integer(self, value: str) -> None:
        if not _WHOLE_NUMBER.fullmatch(value):
            raise InvalidConfig(f"{self.name} must be an integer, not {value!r}")
        number = int(value)
        limit = INT32_MAX if self.type is ConfigType.INT else INT64_MAX
        low = -limit - 1 if self.low is None else self.low
        high = limit if self.high is None else self.high
        if not low <= number <= high:
            raise InvalidConfig(f"{self.name} must be between {low} and {high}, not {number}")

    def _check_number(self, value: str) -> None:
        """Check a number. One without bounds is a ratio."""
        try:
            number = float(value)
        except ValueError:
            raise InvalidConfig(f"{self.name} must be a number, not {value!r}") from None
        low = 0 if self.low is None else self.low
        high = 1 if self.high is None else self.high
        if not low <= number <= high:
            raise InvalidConfig(f"{self.name} must be between {low} and {high}, not {value}")


_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
"""Whole numbers as Java reads them: no underscores, no digits of other scripts."""
_INTEGER_TYPES = frozenset({ConfigType.INT, ConfigType.LONG})

BATCH_BYTES_MAX = 100 << 20
"""Upper bound of `max.message.bytes`: a batch is sent to the peers in one frame."""


SEGMENT_BYTES_MIN = 64 << 10
"""Smaller segments would consist mostly of file names."""

PRODUCERS_CODEC = "producer"
"""The `compression.type` that keeps batches as they were sent."""
_THROTTLED = re.compile(r"\*|[0-9]+:[0-9]+")
"""One replica as tools name it (partition:server), or all."""
_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}

CLEANUP_POLICY = "cleanup.policy"
COMPRESSION_TYPE = "compression.type"
GZIP_LEVEL = "compression.gzip.level"
LZ4_LEVEL = "compression.lz4.level"
ZSTD_LEVEL = "compression.zstd.level"
ZSTD_LEVEL_USED_MAX = 12
"""Higher levels are reduced to this one. A MiB takes 7 ms at level 3, 50 at 12 and 830 at 22, in
threads shared by all batches: a client that may create a topic could keep them busy."""
DELETE_RETENTION_MS = "delete.retention.ms"
MAX_COMPACTION_LAG_MS = "max.compaction.lag.ms"
MAX_MESSAGE_BYTES = "max.message.bytes"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
MIN_DIRTY_RATIO = "min.cleanable.dirty.ratio"
MIN_IN_SYNC_REPLICAS = "min.insync.replicas"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_JITTER_MS = "segment.jitter.ms"
SEGMENT_MS = "segment.ms"
TIMESTAMP_TYPE = "message.timestamp.type"
TIMESTAMP_AFTER_MAX_MS = "message.timestamp.after.max.ms"
TIMESTAMP_BEFORE_MAX_MS = "message.timestamp.before.max.ms"

KNOWN = (
    TopicConfig(
        CLEANUP_POLICY,
        ConfigType.LIST,
        "delete",
        "Cleanup policy of old segments: delete, compact, or both. Empty: segments are kept.",
        "log.cleanup.policy",
        allowed=("delete", "compact"),
        may_be_empty=True,
        option="cleanup_policy",
    ),
    TopicConfig(
        GZIP_LEVEL,
        ConfigType.INT,
        "-1",
        "Compression level of compression.type=gzip, 1 to 9. -1: the default level of gzip.",
        GZIP_LEVEL,
        pattern=re.compile("-1|[1-9]"),
        option="gzip_level",
    ),
    TopicConfig(
        LZ4_LEVEL,
        ConfigType.INT,
        "9",
        "Compression level of compression.type=lz4. Levels from 12 on are equal.",
        LZ4_LEVEL,
        low=1,
        high=17,
        option="lz4_level",
    ),
    TopicConfig(
        COMPRESSION_TYPE,
        ConfigType.STRING,
        PRODUCERS_CODEC,
        "Codec in which batches are stored. producer: the codec chosen by each producer.",
        COMPRESSION_TYPE,
        allowed=(*_CODECS, PRODUCERS_CODEC),
        option="compression_type",
    ),
    TopicConfig(
        ZSTD_LEVEL,
        ConfigType.INT,
        "3",
        f"Compression level of compression.type=zstd. Levels above {ZSTD_LEVEL_USED_MAX} are "
        f"treated as {ZSTD_LEVEL_USED_MAX}.",
        ZSTD_LEVEL,
        low=-131_072,
        high=22,
        option="zstd_level",
    ),
    TopicConfig(
        DELETE_RETENTION_MS,
        ConfigType.LONG,
        "86400000",
        "Time for which a compacted topic keeps tombstones.",
        "log.cleaner.delete.retention.ms",
        low=0,
        option="delete_retention_ms",
    ),
    TopicConfig(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        f"{NO_EFFECT_PREFIX}deleted files are removed as soon as no reader uses them.",
        "log.segment.delete.delay.ms",
        low=0,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        "flush.messages",
        ConfigType.LONG,
        str(INT64_MAX),
        f"{NO_EFFECT_PREFIX}a batch is synced to the disks of a majority before it is "
        "acknowledged.",
        "log.flush.interval.messages",
        low=1,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        "flush.ms",
        ConfigType.LONG,
        str(INT64_MAX),
        f"{NO_EFFECT_PREFIX}a batch is synced to the disks of a majority before it is "
        "acknowledged.",
        "log.flush.interval.ms",
        low=0,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas (partition:server, or *) to which the follower throttle applies.",
        pattern=_THROTTLED,
    ),
    TopicConfig(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        f"{NO_EFFECT_PREFIX}the index has every batch.",
        "log.index.interval.bytes",
        low=0,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas (partition:server, or *) to which the leader throttle applies.",
        pattern=_THROTTLED,
    ),
    TopicConfig(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        f"{NO_EFFECT_PREFIX}all data is local, as in Kafka without remote.storage.enable.",
        "log.local.retention.bytes",
        low=-2,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        f"{NO_EFFECT_PREFIX}all data is local, as in Kafka without remote.storage.enable.",
        "log.local.retention.ms",
        low=-2,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        MAX_COMPACTION_LAG_MS,
        ConfigType.LONG,
        str(INT64_MAX),
        "Maximum time for which a batch of a compacted topic stays uncompacted.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
        option="max_compaction_lag_ms",
    ),
    TopicConfig(
        MAX_MESSAGE_BYTES,
        ConfigType.INT,
        "1048588",
        "Maximum size of a batch from a producer in bytes, after compression.",
        "message.max.bytes",
        low=0,
        option="message_max_bytes",
        high=BATCH_BYTES_MAX,
    ),
    TopicConfig(
        TIMESTAMP_AFTER_MAX_MS,
        ConfigType.LONG,
        "3600000",
        "Maximum time by which the timestamp of a batch may be ahead of the server's clock.",
        "log.message.timestamp.after.max.ms",
        low=0,
        option="timestamp_after_max_ms",
    ),
    TopicConfig(
        TIMESTAMP_BEFORE_MAX_MS,
        ConfigType.LONG,
        str(INT64_MAX),
        "Maximum time by which the timestamp of a batch may be behind the server's clock.",
        "log.message.timestamp.before.max.ms",
        low=0,
        option="timestamp_before_max_ms",
    ),
    TopicConfig(
        TIMESTAMP_TYPE,
        ConfigType.STRING,
        "CreateTime",
        "Timestamp of a record: CreateTime is that of the producer, LogAppendTime that of the "
        "append.",
        "log.message.timestamp.type",
        allowed=("createtime", "logappendtime"),
        option="timestamp_type",
    ),
    TopicConfig(
        MIN_DIRTY_RATIO,
        ConfigType.DOUBLE,
        "0.5",
        "Minimum ratio of uncompacted to all data for which a compacted topic is compacted.",
        "log.cleaner.min.cleanable.ratio",
        option="min_dirty_ratio",
    ),
    TopicConfig(
        MIN_COMPACTION_LAG_MS,
        ConfigType.LONG,
        "0",
        "Minimum time for which a batch of a compacted topic stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
        option="min_compaction_lag_ms",
    ),
    TopicConfig(
        MIN_IN_SYNC_REPLICAS,
        ConfigType.INT,
        "1",
        "Number of replicas (or all, if there are fewer) that must have a batch on disk "
        "before acks=all is answered. It is always at least a majority.",
        MIN_IN_SYNC_REPLICAS,
        low=1,
        option="min_insync_replicas",
    ),
    TopicConfig(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Preallocation is not supported: segment files grow in steps.",
        "log.preallocate",
        standing=Standing.REFUSED,
    ),
    TopicConfig(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        "Tiered storage is not supported.",
        standing=Standing.REFUSED,
    ),
    TopicConfig(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        "Tiered storage is not supported.",
        standing=Standing.REFUSED,
    ),
    TopicConfig(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Tiered storage is not supported.",
        standing=Standing.REFUSED,
    ),
    TopicConfig(
        RETENTION_BYTES,
        ConfigType.LONG,
        "-1",
        "Maximum size of a partition, -1: no limit. Retention deletes whole segments.",
        "log.retention.bytes",
        low=-1,
        option="retention_bytes",
    ),
    TopicConfig(
        RETENTION_MS,
        ConfigType.LONG,
        "-1",
        "Minimum time for which a batch is kept, -1: no limit. Retention deletes whole segments.",
        "log.retention.ms",
        low=-1,
        option="retention_ms",
    ),
    TopicConfig(
        SEGMENT_BYTES,
        ConfigType.INT,
        str(1 << 30),
        "Size of a log segment file, at least 64 KiB. Retention deletes whole segments.",
        "log.segment.bytes",
        low=SEGMENT_BYTES_MIN,
        option="segment_bytes",
    ),
    TopicConfig(
        "segment.index.bytes",
        ConfigType.INT,
        "10485760",
        f"{NO_EFFECT_PREFIX}storage.index_segment_entries in the file of the server sets it "
        "for all topics.",
        "log.index.size.max.bytes",
        low=4,
        standing=Standing.NO_EFFECT,
    ),
    TopicConfig(
        SEGMENT_JITTER_MS,
        ConfigType.LONG,
        "0",
        "Maximum time by which segments end earlier than segment.ms. Each partition gets a "
        "part of it, so that their segments do not all end at once.",
        "log.roll.jitter.ms",
        low=0,
        option="roll_jitter_ms",
    ),
    TopicConfig(
        SEGMENT_MS,
        ConfigType.LONG,
        "604800000",
        "Maximum distance of the timestamps in one segment, if the topic sets it.",
        "log.roll.ms",
        low=1,
        option="roll_ms",
    ),
    TopicConfig(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Unclean elections are not supported: only a replica with all acknowledged batches is "
        "elected.",
        "unclean.leader.election.enable",
        standing=Standing.REFUSED,
    ),
)

BY_NAME: Mapping[str, TopicConfig] = {config.name: config for config in KNOWN}


def check_configs(
    configs: Mapping[str, str], known: Mapping[str, TopicConfig] = BY_NAME
) -> dict[str, str]:
    """Return the settings as they are kept. Raises InvalidConfig for the first one that cannot be
    accepted, in the order given. `known`: the existing settings by name; by default a topic's."""
    kept: dict[str, str] = {}
    for name, value in configs.items():
        config = known.get(name)
        if config is None:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        kept[name] = value.strip()
        if config.type is ConfigType.LIST:
            # Duplicates count once (KIP-1161).
            kept[name] = ",".join(dict.fromkeys(part.strip() for part in value.split(",")))
        config.check(kept[name])
    return kept


def asks_for_large_batches(configs: Mapping[str, str]) -> bool:
    """Return True if these settings allow batches that not every version of the server accepts."""
    return int(configs.get(MAX_MESSAGE_BYTES, "0")) > LARGE_BATCH_BYTES


def check_together(configs: Mapping[str, str]) -> None:
    """Check settings of one topic against each other. Raises InvalidConfig."""

    def value(name: str) -> int:
        return int(configs.get(name, BY_NAME[name].default))

    if value(MIN_COMPACTION_LAG_MS) > value(MAX_COMPACTION_LAG_MS):
        raise InvalidConfig(
            f"{MIN_COMPACTION_LAG_MS} must not be greater than {MAX_COMPACTION_LAG_MS}"
        )


def codec_of(
    configs: Mapping[str, str], options: KafkaOptions
) -> tuple[Compression, int | None] | None:
    """Return the codec and level in which a topic keeps batches; None: the producer's."""
    name = configs.get(COMPRESSION_TYPE, options.compression_type).lower()
    if name == PRODUCERS_CODEC:
        return None
    codec = _CODECS[name]
    if codec is Compression.GZIP:
        return codec, int(configs.get(GZIP_LEVEL, options.gzip_level))
    if codec is Compression.LZ4:
        return codec, int(configs.get(LZ4_LEVEL, options.lz4_level))
    if codec is Compression.ZSTD:
        return codec, min(int(configs.get(ZSTD_LEVEL, options.zstd_level)), ZSTD_LEVEL_USED_MAX)
    return codec, None


def is_compacted(configs: Mapping[str, str], options: KafkaOptions) -> bool:
    """Return True if a topic with these settings keeps the newest record of each key."""
    return "compact" in configs.get(CLEANUP_POLICY, options.cleanup_policy).lower()


def is_deleted(configs: Mapping[str, str], options: KafkaOptions) -> bool:
    """Return True if old records of a topic with these settings may be deleted."""
    return "delete" in configs.get(CLEANUP_POLICY, options.cleanup_policy).lower()


def _in_force(configs: Mapping[str, str], options: KafkaOptions, name: str) -> str:
    text = configs.get(name)
    return BY_NAME[name].default_for(options) if text is None else text


def compaction_policy(configs: Mapping[str, str], options: KafkaOptions) -> CompactionPolicy | None:
    """Return the compaction policy of a topic with these settings; None: it is not compacted."""
    if not is_compacted(configs, options):
        return None
    return CompactionPolicy(
        int(_in_force(configs, options, MIN_COMPACTION_LAG_MS)),
        int(_in_force(configs, options, MAX_COMPACTION_LAG_MS)),
        int(_in_force(configs, options, DELETE_RETENTION_MS)),
        float(_in_force(configs, options, MIN_DIRTY_RATIO)),
    )


def retention_policy(
    configs: Mapping[str, str],
    options: KafkaOptions,
    *,
    spread: int = 0,
    is_sized_anew: bool = False,
) -> RetentionPolicy:
    """Return the retention policy of a topic with these settings. If records are deleted by age, or
    compacted, the default of `segment.ms` applies, too: otherwise a topic with few records would
    keep them until a segment is full. A topic that is only compacted keeps the compacted records
    for ever. `spread`: any number that differs between partitions, for `segment.jitter.ms`.
    `is_sized_anew`: the size of segments is no longer the one that the storage engine began
    with."""

    def value(name: str) -> int:
        return int(_in_force(configs, options, name))

    segments = None
    retention_ms, retention_bytes = value(RETENTION_MS), value(RETENTION_BYTES)
    segment_ms = value(SEGMENT_MS)
    # As in Kafka, the jitter is less than the whole of it.
    segment_ms -= spread % max(1, min(value(SEGMENT_JITTER_MS) + 1, segment_ms))
    if not is_deleted(configs, options):
        retention_ms = retention_bytes = FOREVER
    if is_compacted(configs, options):
        # The newest segment is not compacted: it must end for the rest to be in time.
        segment_ms = min(segment_ms, value(MAX_COMPACTION_LAG_MS))
    rolls_by_age = SEGMENT_MS in configs or options.roll_ms != DEFAULTS.roll_ms
    is_rolled = is_compacted(configs, options) or retention_ms >= 0 or rolls_by_age
    if is_rolled or is_sized_anew or SEGMENT_BYTES in configs:
        segments = SegmentLimits(max(SEGMENT_BYTES_MIN, value(SEGMENT_BYTES)), segment_ms)
    return RetentionPolicy(retention_ms, retention_bytes, segments)
