"""Settings under Kafka's names: DescribeConfigs (key 32), ListConfigResources (74).

Resources are topics, servers, consumer groups and subscriptions to metrics.

DescribeConfigs: v0 marks default values, v1 sources and synonyms (KIP-226), v3 types and
documentation (KIP-569).
ListConfigResources: v0 subscriptions to metrics only (KIP-714), v1 any types (KIP-1142).

A server describes itself and its loggers only. Settings that can be changed at run time are marked
so; the rest comes from its file. The resource of all servers (a broker without a name) has the
settings that were set for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.configs import group_configs
from vdl.kafka.configs.broker_configs import (
    ALL_SERVERS,
    DYNAMIC,
    KNOWN_OF_SERVERS,
    REPLICATION_THROTTLES,
    UNKNOWN,
    Layer,
    Source,
    layers,
)
from vdl.kafka.configs.kafka_settings import TYPES, is_kafkas
from vdl.kafka.configs.options import REPLICAS_SETTING
from vdl.kafka.configs.topic_configs import (
    KNOWN,
    MAX_MESSAGE_BYTES,
    ConfigType,
    InvalidConfig,
    TopicConfig,
    asks_for_large_batches,
)
from vdl.kafka.context import RequestContext
from vdl.kafka.lookup import find_topic
from vdl.kafka.telemetry import client_metrics_configs
from vdl.kafka.wire.create_topics import CreatableTopicConfigs
from vdl.kafka.wire.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from vdl.kafka.wire.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from vdl.logstream.options import LARGE_BATCH_BYTES
from vdl.state.resource_configs import ResourceType
from vdl.state.topic_names import topic_name_complaint

Entry = DescribeConfigsResourceResult
_SOURCES_FROM = 1
"""First version of DescribeConfigs whose answer has the source of a value."""
_TYPES_FROM = 1
"""First version of ListConfigResources in which a client names the types to list."""


def inherited(ctx: RequestContext, config: TopicConfig) -> list[Layer]:
    """Return the values of a setting for a topic that does not set it, the one in force first."""
    server = ctx.server
    default = KNOWN_OF_SERVERS.get(config.broker_name)
    if default is None:
        return [Layer(Source.DEFAULT, config.default)]
    return layers(default, server.file_config, server.host.catalog.resources, server.host.server_id)


def check_large_batches(
    ctx: RequestContext, configs: Mapping[str, str], present: Mapping[str, str]
) -> None:
    """Raise InvalidConfig if the settings allow large batches and not all servers support them.

    A server of an older version would accept large batches by them, and could not replicate them.
    """
    if (
        asks_for_large_batches(configs)
        and configs[MAX_MESSAGE_BYTES] != present.get(MAX_MESSAGE_BYTES)
        and not ctx.server.host.takes_large_batches()
    ):
        raise InvalidConfig(
            f"{MAX_MESSAGE_BYTES} above {LARGE_BATCH_BYTES} requires that all servers are "
            "connected and have a version that supports such batches"
        )


def created_configs(ctx: RequestContext, configs: dict[str, str]) -> list[CreatableTopicConfigs]:
    """Return all settings of a topic, for the answer of its creation (KIP-525)."""
    found = []
    for config in KNOWN:
        own = configs.get(config.name)
        layer = inherited(ctx, config)[0] if own is None else Layer(Source.TOPIC, own)
        found.append(CreatableTopicConfigs(config.name, layer.value, False, layer.source, False))
    return found


def handle_describe_configs(
    ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource in an answer of its own; a repeated one has the answer of the
    first."""
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
            if not request.include_synonyms or ctx.api_version < _SOURCES_FROM:
                entry.synonyms = []
            if ctx.api_version < _SOURCES_FROM:
                # Such a client takes a value that is not a default as set for the topic.
                is_topics = resource.resource_type == ResourceType.TOPIC
                source = entry.config_source
                entry.is_default = source != Source.TOPIC if is_topics else source == Source.DEFAULT
            if request.include_documentation:
                entry.documentation = documentation
            result.configs.append(entry)
    return response


def fail_describe_configs(
    request: DescribeConfigsRequest, _version: int, code: ErrorCode
) -> DescribeConfigsResponse:
    """Return `code` for each resource."""
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


def _entries(ctx: RequestContext, resource: DescribeConfigsResource) -> list[tuple[Entry, str]]:
    """Return (setting, documentation) of one resource. Raises KafkaError."""
    describe = _BY_TYPE.get(resource.resource_type)
    if describe is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource.resource_type} has no settings",
        )
    return list(describe(ctx, resource.resource_name))


def _topic_entries(ctx: RequestContext, name: str) -> Iterator[tuple[Entry, str]]:
    topic = find_topic(ctx, name)
    if topic is None:
        complaint = topic_name_complaint(name)
        if complaint:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    for config in KNOWN:
        below = inherited(ctx, config)
        synonyms = []
        if config.broker_name:
            synonyms = [_synonym(config.broker_name, layer) for layer in below]
        in_force = below[0]
        own = topic.configs.get(config.name)
        if own is not None:
            in_force = Layer(Source.TOPIC, own)
            synonyms.insert(0, _synonym(config.name, in_force))
        yield _entry(config, in_force, synonyms), config.documentation


def check_server_name(ctx: RequestContext, name: str) -> None:
    """Raise KafkaError unless the name is this server's id."""
    own = ctx.server.host.server_id
    if name != str(own):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is server {own}; send the request for server {name} to that server",
        )


def _broker_entries(ctx: RequestContext, name: str) -> Iterator[tuple[Entry, str]]:
    host = ctx.server.host
    if name == ALL_SERVERS:
        for setting, value in sorted(host.catalog.resources.of(ResourceType.BROKER, name).items()):
            config = DYNAMIC.get(setting)
            if config is not None:
                layer = Layer(Source.DYNAMIC_DEFAULT, value)
                yield _entry(config, layer, [_synonym(setting, layer)]), config.documentation
        yield from _unknown_entries(ctx, {name: Source.DYNAMIC_DEFAULT})
        return
    check_server_name(ctx, name)
    own = {setting: Layer(Source.STATIC_BROKER, name) for setting in ("broker.id", "node.id")}
    for setting, layer in {**own, **ctx.server.file_settings, **_of_the_cluster(ctx)}.items():
        if setting not in KNOWN_OF_SERVERS:
            yield _own_entry(setting, layer), "Read from the file of the server, or fixed."
    for config in KNOWN_OF_SERVERS.values():
        found = layers(config, ctx.server.file_config, host.catalog.resources, host.server_id)
        if config in REPLICATION_THROTTLES:
            # As in Kafka, a throttle that is not set is not listed. Tools that remove one wait
            # until it has no value.
            found = [layer for layer in found if layer.source is not Source.DEFAULT]
            if not found:
                continue
        entry = _entry(config, found[0], [_synonym(config.name, layer) for layer in found])
        entry.read_only = config.name not in DYNAMIC
        yield entry, config.documentation
    levels = {name: Source.DYNAMIC_BROKER, ALL_SERVERS: Source.DYNAMIC_DEFAULT}
    yield from _unknown_entries(ctx, levels)


def _unknown_entries(
    ctx: RequestContext, levels: Mapping[str, Source]
) -> Iterator[tuple[Entry, str]]:
    """Yield settings under unknown names, without the value, as in Kafka.

    The value may be a secret of a plug-in. `levels`: the resources, the one in force first.
    """
    seen: set[str] = set()
    for name, source in levels.items():
        for setting in sorted(ctx.server.host.catalog.resources.of(ResourceType.BROKER, name)):
            if setting not in KNOWN_OF_SERVERS and not is_kafkas(setting) and setting not in seen:
                seen.add(setting)
                synonym = DescribeConfigsSynonym(setting, None, source)
                yield (
                    Entry(
                        name=setting,
                        value=None,
                        config_source=source,
                        is_sensitive=True,
                        synonyms=[synonym],
                    ),
                    UNKNOWN,
                )


def _logger_entries(ctx: RequestContext, name: str) -> Iterator[tuple[Entry, str]]:
    check_server_name(ctx, name)
    loggers = ctx.server.loggers
    for logger, level in loggers.levels().items() if loggers is not None else ():
        entry = Entry(name=logger, value=level, config_source=Source.BROKER_LOGGER)
        yield entry, "Lowest level of messages that this logger writes."


def _group_entries(ctx: RequestContext, name: str) -> Iterator[tuple[Entry, str]]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the name of a group must not be empty")
    return _resource_entries(
        group_configs.KNOWN,
        ctx.server.host.catalog.resources.of(ResourceType.GROUP, name),
        Source.GROUP,
    )


def _client_metrics_entries(ctx: RequestContext, name: str) -> Iterator[tuple[Entry, str]]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the name of a subscription must not be empty")
    return _resource_entries(
        client_metrics_configs.KNOWN,
        ctx.server.host.catalog.resources.of(ResourceType.CLIENT_METRICS, name),
        Source.CLIENT_METRICS,
    )


def _resource_entries(
    known: Iterable[TopicConfig], configs: Mapping[str, str], source: Source
) -> Iterator[tuple[Entry, str]]:
    """Yield the settings of a resource that need not exist: none may have been set for it."""
    for config in known:
        synonyms = []
        in_force = Layer(Source.DEFAULT, config.default)
        if config.broker_name:
            synonyms.append(_synonym(config.broker_name, in_force))
        own = configs.get(config.name)
        if own is not None:
            in_force = Layer(source, own)
            synonyms.insert(0, _synonym(config.name, in_force))
        yield _entry(config, in_force, synonyms), config.documentation


_BY_TYPE: Mapping[int, Callable[[RequestContext, str], Iterator[tuple[Entry, str]]]] = {
    ResourceType.TOPIC: _topic_entries,
    ResourceType.BROKER: _broker_entries,
    ResourceType.BROKER_LOGGER: _logger_entries,
    ResourceType.GROUP: _group_entries,
    ResourceType.CLIENT_METRICS: _client_metrics_entries,
}


def _entry(config: TopicConfig, layer: Layer, synonyms: list[DescribeConfigsSynonym]) -> Entry:
    return Entry(
        name=config.name,
        value=layer.value,
        config_source=layer.source,
        synonyms=synonyms,
        config_type=config.type,
    )


def _own_entry(name: str, layer: Layer) -> Entry:
    """Return the entry of a setting that cannot be changed."""
    return Entry(
        name=name,
        value=layer.value,
        read_only=True,
        config_source=layer.source,
        synonyms=[_synonym(name, layer)],
        config_type=TYPES.get(name, ConfigType.STRING),
    )


def _of_the_cluster(ctx: RequestContext) -> dict[str, Layer]:
    """Return the settings that were fixed when the cluster was formed.

    Kafka's internal topics are its coordinators, each a Raft group of as many servers.
    """
    catalog = ctx.server.host.catalog
    replicas = max(1, len(catalog.voters))
    values = {
        REPLICAS_SETTING: ctx.server.config.replicas_per_server_max,
        "offsets.topic.num.partitions": catalog.coordinator_groups,
        "offsets.topic.replication.factor": replicas,
        "share.coordinator.state.topic.num.partitions": catalog.coordinator_groups,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": replicas // 2 + 1,
        "transaction.state.log.num.partitions": catalog.coordinator_groups,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": replicas // 2 + 1,
    }
    return {name: Layer(Source.STATIC_BROKER, str(value)) for name, value in values.items()}


def _synonym(name: str, layer: Layer) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name, layer.value, layer.source)


# --- ListConfigResources -------------------------------------------------------------------------


def handle_list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources: all topics and servers, and others that have settings."""
    wanted: Iterable[int] = (ResourceType.CLIENT_METRICS,)
    if ctx.api_version >= _TYPES_FROM:
        wanted = sorted(set(request.resource_types)) or list(ResourceType)
    response = ListConfigResourcesResponse()
    for kind in wanted:
        if kind not in frozenset(ResourceType):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        response.config_resources += [
            ConfigResource(name, kind) for name in _names(ctx, ResourceType(kind))
        ]
    return response


def _names(ctx: RequestContext, kind: ResourceType) -> Iterable[str]:
    catalog = ctx.server.host.catalog
    match kind:
        case ResourceType.TOPIC:
            return sorted(catalog.topics)
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return map(str, sorted(catalog.servers))
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            return catalog.resources.names(kind)
