"""DescribeConfigs (key 32): settings of topics and of this server, under Kafka's names.

v1 sources and synonyms (KIP-226), v3 types and documentation (KIP-569).

A server describes itself only, and all its settings are read-only: they come from its file. The
cluster-wide default (a broker resource without a name) has no dynamic settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.context import KafkaOptions, RequestContext
from vdl.kafka.handlers.partitions import find_topic
from vdl.kafka.topic_configs import DEFAULTS, KNOWN, ConfigType, TopicConfig
from vdl.kafka.wire.create_topics import CreatableTopicConfigs
from vdl.kafka.wire.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from vdl.state.catalog import topic_name_complaint


class Resource(IntEnum):
    """What can be described here."""

    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    """Where a value comes from (KIP-226)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


_BROKER_SETTINGS: tuple[tuple[str, ConfigType, str], ...] = (
    ("auto.create.topics.enable", ConfigType.BOOLEAN, "auto_create_topics"),
    ("connections.max.idle.ms", ConfigType.LONG, "connection_idle_ms"),
    ("default.replication.factor", ConfigType.INT, "default_replication_factor"),
    ("fetch.max.bytes", ConfigType.INT, "fetch_max_bytes"),
    ("group.initial.rebalance.delay.ms", ConfigType.INT, "group_initial_rebalance_delay_ms"),
    ("group.max.session.timeout.ms", ConfigType.INT, "group_max_session_timeout_ms"),
    ("group.max.size", ConfigType.INT, "group_max_size"),
    ("group.min.session.timeout.ms", ConfigType.INT, "group_min_session_timeout_ms"),
    ("max.connections", ConfigType.INT, "connections_max"),
    ("max.connections.per.ip", ConfigType.INT, "connections_per_ip_max"),
    ("num.partitions", ConfigType.INT, "num_partitions"),
    ("offset.metadata.max.bytes", ConfigType.INT, "offset_metadata_max_bytes"),
    ("offsets.retention.minutes", ConfigType.INT, "offsets_retention_minutes"),
    ("socket.request.max.bytes", ConfigType.INT, "request_bytes_max"),
)
"""Settings that are the server's alone: Kafka's name, type, our option."""


def _text(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _broker_source(config: TopicConfig, options: KafkaOptions) -> Source:
    """Whether the server's file changed the default of a topic setting."""
    changed = config.default_for(options) != config.default_for(DEFAULTS)
    return Source.STATIC_BROKER if changed else Source.DEFAULT


def created_configs(options: KafkaOptions, configs: dict[str, str]) -> list[CreatableTopicConfigs]:
    """All settings of a topic, for the answer of its creation (KIP-525)."""
    return [
        CreatableTopicConfigs(
            config.name,
            configs.get(config.name, config.default_for(options)),
            False,
            Source.TOPIC if config.name in configs else _broker_source(config, options),
            False,
        )
        for config in KNOWN
    ]


def handle_describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Each resource has its own answer; one that is named again, the first one's."""
    response = DescribeConfigsResponse()
    asked: dict[tuple[int, str], DescribeConfigsResource] = {}
    for resource in request.resources:
        asked.setdefault((resource.resource_type, resource.resource_name), resource)
    for resource in asked.values():
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.results.append(result)
        try:
            entries = _entries(ctx, resource)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        wanted = frozenset(resource.configuration_keys or ())
        for entry, documentation in entries:
            if wanted and entry.name not in wanted:
                continue
            if not request.include_synonyms:
                entry.synonyms = []
            if request.include_documentation:
                entry.documentation = documentation
            result.configs.append(entry)
    return response


def fail_describe_configs(
    request: DescribeConfigsRequest, _version: int, code: ErrorCode
) -> DescribeConfigsResponse:
    """`code` for each resource."""
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=code,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _entries(
    ctx: RequestContext, resource: DescribeConfigsResource
) -> list[tuple[DescribeConfigsResourceResult, str]]:
    """(setting, documentation) of one resource. Raises KafkaError."""
    name = resource.resource_name
    if resource.resource_type == Resource.TOPIC:
        topic = find_topic(ctx, name)
        if topic is None:
            complaint = topic_name_complaint(name)
            if complaint:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic '{name}'")
        return list(_topic_entries(ctx.server.config, topic.configs))
    if resource.resource_type == Resource.BROKER:
        if not name:
            return []
        if name != str(ctx.server.host.server_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is server {ctx.server.host.server_id}; ask server {name} for its settings",
            )
        return list(_broker_entries(ctx))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here"
    )


def _topic_entries(
    options: KafkaOptions, configs: dict[str, str]
) -> Iterator[tuple[DescribeConfigsResourceResult, str]]:
    for config in KNOWN:
        inherited = config.default_for(options)
        source = _broker_source(config, options)
        synonyms = []
        if config.broker_name:
            synonyms.append(DescribeConfigsSynonym(config.broker_name, inherited, source))
        if source is Source.STATIC_BROKER:
            original = config.default_for(DEFAULTS)
            synonyms.append(DescribeConfigsSynonym(config.broker_name, original, Source.DEFAULT))
        value = configs.get(config.name)
        if value is not None:
            source = Source.TOPIC
            synonyms.insert(0, DescribeConfigsSynonym(config.name, value, source))
        yield (
            DescribeConfigsResourceResult(
                name=config.name,
                value=inherited if value is None else value,
                config_source=source,
                synonyms=synonyms,
                config_type=config.type,
            ),
            config.documentation,
        )


def _broker_entries(ctx: RequestContext) -> Iterator[tuple[DescribeConfigsResourceResult, str]]:
    options = ctx.server.config
    server_id = str(ctx.server.host.server_id)
    for name in ("broker.id", "node.id"):
        yield _broker_entry(name, ConfigType.INT, server_id, Source.STATIC_BROKER), ""
    listeners = _advertised_listeners(ctx)
    yield (
        _broker_entry("advertised.listeners", ConfigType.STRING, listeners, Source.STATIC_BROKER),
        "Where each listener of this server can be reached, the admin service's (ADMIN) among them",
    )
    for name, kind, attribute in _BROKER_SETTINGS:
        value = getattr(options, attribute)
        changed = value != getattr(DEFAULTS, attribute)
        source = Source.STATIC_BROKER if changed else Source.DEFAULT
        yield _broker_entry(name, kind, _text(value), source), ""
    for config in KNOWN:
        if not config.broker_name:
            continue
        value = config.default_for(options)
        source = _broker_source(config, options)
        entry = _broker_entry(config.broker_name, config.type, value, source)
        yield entry, config.documentation


def _advertised_listeners(ctx: RequestContext) -> str:
    """In Kafka's form, "NAME://host:port,...", as this server registered them."""
    host = ctx.server.host
    registered = host.catalog.servers.get(host.server_id)
    listeners = registered.listeners if registered is not None else {}
    return ",".join(
        f"{name}://[{address}]:{port}" if ":" in address else f"{name}://{address}:{port}"
        for name, (address, port) in sorted(listeners.items())
    )


def _broker_entry(
    name: str, kind: ConfigType, value: str, source: Source
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=True,
        config_source=source,
        synonyms=[DescribeConfigsSynonym(name, value, source)],
        config_type=kind,
    )
