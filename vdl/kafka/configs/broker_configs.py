"""Settings of a server under Kafka's names: which can be changed at run time, and how.

A server's settings come from its file. Some can also be set in the catalog, for one server or for
all (KIP-226); they take effect where `KafkaOptions` is read, at once and on every server concerned.
The order of precedence is Kafka's: the server's own, those for all servers, its file, the default.

Rules:

* A setting that can be changed here can also be changed in Kafka. The others are refused by name,
  as Kafka refuses read-only settings.
* A setting is accepted without effect only if its documentation says so (`Standing.NO_EFFECT`),
  such as the numbers of threads for work that a single loop does here. Tools set these.

Does not depend on requests or on permissions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from ids import ServerId
from vdl.kafka.configs.ip_limits import ip_limits
from vdl.kafka.configs.kafka_settings import is_kafkas
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import (
    DEFAULTS,
    KNOWN,
    MAX_MESSAGE_BYTES,
    NO_EFFECT_PREFIX,
    ConfigType,
    InvalidConfig,
    Standing,
    TopicConfig,
)
from vdl.logstream.membership.move_limits import FOLLOWER_RATE, LEADER_RATE, UNTHROTTLED
from vdl.logstream.options import LARGE_BATCH_BYTES
from vdl.state.resource_configs import ResourceConfigs, ResourceType

UNKNOWN = f"{NO_EFFECT_PREFIX}reserved for Kafka's plug-ins, which do not exist here."
ALL_SERVERS = ""
"""Name of the resource that all servers inherit from."""


class Source(IntEnum):
    """Source of a value (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


READ_ONLY = tuple(
    TopicConfig(name, kind, "", "Read from the file of the server when it starts.", option=option)
    for name, kind, option in (
        ("auto.create.topics.enable", ConfigType.BOOLEAN, "auto_create_topics"),
        ("connections.max.idle.ms", ConfigType.LONG, "connection_idle_ms"),
        ("default.replication.factor", ConfigType.INT, "default_replication_factor"),
        ("fetch.max.bytes", ConfigType.INT, "fetch_max_bytes"),
        (
            "group.initial.rebalance.delay.ms",
            ConfigType.INT,
            "group_initial_rebalance_delay_ms",
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            ConfigType.INT,
            "group_consumer_heartbeat_interval_ms",
        ),
        ("group.consumer.max.size", ConfigType.INT, "group_consumer_max_size"),
        (
            "group.consumer.migration.policy",
            ConfigType.STRING,
            "group_consumer_migration_policy",
        ),
        (
            "group.consumer.session.timeout.ms",
            ConfigType.INT,
            "group_consumer_session_timeout_ms",
        ),
        ("group.max.session.timeout.ms", ConfigType.INT, "group_max_session_timeout_ms"),
        ("group.max.size", ConfigType.INT, "group_max_size"),
        ("group.min.session.timeout.ms", ConfigType.INT, "group_min_session_timeout_ms"),
        ("num.partitions", ConfigType.INT, "num_partitions"),
        ("offset.metadata.max.bytes", ConfigType.INT, "offset_metadata_max_bytes"),
        ("offsets.retention.minutes", ConfigType.INT, "offsets_retention_minutes"),
        ("socket.request.max.bytes", ConfigType.INT, "request_bytes_max"),
        ("transaction.max.timeout.ms", ConfigType.INT, "transaction_max_timeout_ms"),
        ("transactional.id.expiration.ms", ConfigType.INT, "transactional_id_expiration_ms"),
    )
)
"""Settings that only a server's file has."""

PER_IP_OVERRIDES = "max.connections.per.ip.overrides"

_OWN = (
    TopicConfig(
        "group.consumer.assignment.interval.ms",
        ConfigType.INT,
        "",
        "Minimum time between two assignments of a consumer group, unless the group overrides it.",
        low=0,
        high=15_000,
        option="group_consumer_assignment_interval_ms",
    ),
    TopicConfig(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "",
        "Maximum rate of reads and writes of compaction.",
        low=1,
        high=int(sys.float_info.max),
        option="cleaner_bytes_per_second",
    ),
    TopicConfig(
        "max.connections",
        ConfigType.INT,
        "",
        "Maximum number of client connections of a server. A lower value closes no connection.",
        low=0,
        option="connections_max",
    ),
    TopicConfig(
        "max.connections.per.ip",
        ConfigType.INT,
        "",
        "Maximum number of client connections from one address.",
        low=0,
        option="connections_per_ip_max",
    ),
    TopicConfig(
        PER_IP_OVERRIDES,
        ConfigType.STRING,
        "",
        "Maximum number of client connections from given addresses: address:number,...",
        option="connections_of_ips_max",
    ),
)

WITHOUT_EFFECT = tuple(
    TopicConfig(
        name,
        ConfigType.INT,
        default,
        f"{NO_EFFECT_PREFIX}a server has one event loop, and starts threads as needed.",
        low=low,
        standing=Standing.NO_EFFECT,
    )
    for name, default, low in (
        ("background.threads", "10", 1),
        ("log.cleaner.threads", "1", 0),
        ("num.io.threads", "8", 1),
        ("num.network.threads", "3", 1),
        ("num.recovery.threads.per.data.dir", "2", 1),
        ("num.replica.fetchers", "1", 1),
    )
)


KERBEROS = (
    TopicConfig(
        "sasl.kerberos.min.time.before.relogin",
        ConfigType.LONG,
        "60000",
        f"{NO_EFFECT_PREFIX}Kerberos is not supported.",
        low=0,
        standing=Standing.NO_EFFECT,
    ),
)
"""Setting that tools change to test whether settings can be changed."""

REPLICATION_THROTTLES = (
    TopicConfig(
        LEADER_RATE,
        ConfigType.LONG,
        str(UNTHROTTLED),
        "Maximum bytes a second that a server, as leader of partitions in "
        "leader.replication.throttled.replicas, sends to replicas that a reassignment adds.",
        low=0,
    ),
    TopicConfig(
        FOLLOWER_RATE,
        ConfigType.LONG,
        str(UNTHROTTLED),
        "Maximum bytes a second that a server receives for replicas that a reassignment adds "
        "to it, of partitions in follower.replication.throttled.replicas.",
        low=0,
    ),
    TopicConfig(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ConfigType.LONG,
        str(UNTHROTTLED),
        f"{NO_EFFECT_PREFIX}a server has one data directory.",
        low=0,
        standing=Standing.NO_EFFECT,
    ),
)
"""Settings that `kafka-reassign-partitions --throttle` sets on each server, and removes again."""


def _of_servers(config: TopicConfig) -> TopicConfig:
    """Return the server-wide default of a topic's setting. It cannot allow large batches: only a
    topic's own setting can."""
    high = LARGE_BATCH_BYTES if config.name == MAX_MESSAGE_BYTES else config.high
    return replace(config, name=config.broker_name, high=high)


TOPIC_DEFAULTS = tuple(_of_servers(config) for config in KNOWN if config.broker_name)

DYNAMIC: Mapping[str, TopicConfig] = {
    config.name: config
    for config in (
        *TOPIC_DEFAULTS,
        *_OWN,
        *REPLICATION_THROTTLES,
        *WITHOUT_EFFECT,
        *KERBEROS,
    )
}
"""Settings that can be changed at run time, by name."""

KNOWN_OF_SERVERS: Mapping[str, TopicConfig] = {
    config.name: config
    for config in (
        *READ_ONLY,
        *TOPIC_DEFAULTS,
        *_OWN,
        *REPLICATION_THROTTLES,
        *WITHOUT_EFFECT,
        *KERBEROS,
    )
}
"""Settings that describe a server, besides its name and addresses."""


def check_parts(name: str, value: str, _refusal: object) -> None:
    """Check the parts of a text that has parts. Raises InvalidConfig for an invalid one."""
    if name == PER_IP_OVERRIDES:
        try:
            ip_limits(value)
        except ValueError as error:
            raise InvalidConfig(f"{name} must be {error}") from None


def setting(name: str) -> TopicConfig | None:
    """Return the setting of that name that can be changed at run time; None: there is none. Names
    that Kafka does not define are kept, as Kafka keeps them for its plug-ins."""
    if name in DYNAMIC or not name or is_kafkas(name) or name in KNOWN_OF_SERVERS:
        return DYNAMIC.get(name)
    return TopicConfig(name, ConfigType.UNKNOWN, "", UNKNOWN, standing=Standing.NO_EFFECT)


def effective(
    options: KafkaOptions, resources: ResourceConfigs, server_id: ServerId
) -> KafkaOptions:
    """Return a file's options with the catalog's settings of this server and of all. Settings that
    an older version stored and this one does not accept are left out."""
    fields: dict[str, Any] = {}
    for name in (ALL_SERVERS, str(server_id)):
        for setting, text in resources.of(ResourceType.BROKER, name).items():
            config = DYNAMIC.get(setting)
            if config is not None and config.option:
                kind = type(getattr(DEFAULTS, config.option))
                assert kind in (int, float, str), config.name
                fields[config.option] = kind(text)
    return replace(options, **fields) if fields else options


@dataclass(frozen=True, slots=True)
class Layer:
    """One value of a setting, and its source (KIP-226)."""

    source: Source
    value: str


def layers(
    config: TopicConfig, options: KafkaOptions, resources: ResourceConfigs, server_id: ServerId
) -> list[Layer]:
    """Return all values of a server's setting, the one in force first. `options`: those of its
    file."""
    found = []
    for source, name in (
        (Source.DYNAMIC_BROKER, str(server_id)),
        (Source.DYNAMIC_DEFAULT, ALL_SERVERS),
    ):
        text = resources.of(ResourceType.BROKER, name).get(config.name)
        if text is not None and config.name in DYNAMIC:
            found.append(Layer(source, text))
    default = config.default_for(DEFAULTS)
    in_file = config.default_for(options)
    if in_file != default:
        found.append(Layer(Source.STATIC_BROKER, in_file))
    found.append(Layer(Source.DEFAULT, default))
    return found
