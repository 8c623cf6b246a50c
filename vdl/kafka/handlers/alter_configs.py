"""Changes of settings: AlterConfigs (key 33), IncrementalAlterConfigs (key 44).

Resources are topics, servers, consumer groups and subscriptions to metrics (KIP-133, KIP-226,
KIP-339, KIP-714, KIP-848).

Levels of loggers (KIP-412) belong to one server and last as long as its process. They are set at
once, by IncrementalAlterConfigs only.

AlterConfigs replaces all settings of a resource by the named ones. IncrementalAlterConfigs sets and
unsets settings, and adds to or removes from lists. Of a server's settings only some can be changed
at run time (`vdl.kafka.configs.broker_configs`); the others come from its file.

Values are validated here. The existence of a topic, and the present value of a list that is
changed, are checked where the command is applied or, if the request is only validated, in this
server's catalog. Topics and other resources are two commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Gathering, Later
from vdl.kafka.configs import broker_configs, group_configs, topic_configs
from vdl.kafka.configs.broker_configs import ALL_SERVERS
from vdl.kafka.configs.topic_configs import (
    MIN_IN_SYNC_REPLICAS,
    ConfigType,
    InvalidConfig,
    TopicConfig,
    check_configs,
)
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.configs import check_large_batches, check_server_name
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.lookup import find_topic
from vdl.kafka.telemetry import client_metrics_configs
from vdl.kafka.telemetry.client_metrics_configs import Refusal
from vdl.kafka.wire import alter_configs as whole
from vdl.kafka.wire import incremental_alter_configs as incremental
from vdl.log import KAFKA_LEVELS, ROOT_LOGGER
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import (
    AlterResourceConfigs,
    AlterTopicConfigs,
    ConfigChange,
    ListChange,
)
from vdl.state.resource_configs import ResourceType, changed_configs, list_parts
from vdl.state.topic_names import topic_name_complaint

_TIMEOUT_MS = 30_000
"""Timeout of these requests, which have none of their own."""

PATTERNS_MAX = 500
"""Maximum number of patterns of one request, all of which are remembered until it is decided."""

Asked = TypeVar("Asked", whole.AlterConfigsResource, incremental.AlterConfigsResource)
Response = TypeVar(
    "Response", whole.AlterConfigsResponse, incremental.IncrementalAlterConfigsResponse
)
Result = whole.AlterConfigsResourceResponse | incremental.AlterConfigsResourceResponse


class Operation(IntEnum):
    """Operation on one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class _Kind:
    """Settings of one type of resource, and the errors for invalid ones."""

    name: str
    find: Callable[[str], TopicConfig | None]
    unknown: ErrorCode = ErrorCode.INVALID_CONFIG
    invalid: ErrorCode = ErrorCode.INVALID_CONFIG
    check_parts: Callable[[str, str, Refusal], None] | None = None
    """Additional check of (name, value). Raises InvalidConfig."""
    check_together: Callable[[Mapping[str, str]], None] | None = None
    """Check of all settings that a resource would have. Raises InvalidConfig."""
    unsets_unknown: bool = False
    """True if an unknown setting may be deleted, as tools do that know settings unknown here."""

    def setting(self, name: str) -> TopicConfig:
        """Return the setting of a name. Raises KafkaError if it is unknown."""
        known = self.find(name)
        if known is None:
            raise KafkaError(self.unknown, f"{self.name}: {name}")
        return known

    def check(self, values: dict[str, str], refusal: Refusal) -> dict[str, str]:
        """Return the settings in their stored form. Raises KafkaError, InvalidConfig."""
        kept = check_configs(values, {name: self.setting(name) for name in values})
        if self.check_parts is not None:
            for name, value in kept.items():
                self.check_parts(name, value, refusal)
        return kept


_KINDS: Mapping[int, _Kind] = {
    ResourceType.TOPIC: _Kind(
        "Unknown topic config name",
        topic_configs.BY_NAME.get,
        check_together=topic_configs.check_together,
        unsets_unknown=True,
    ),
    ResourceType.BROKER: _Kind(
        "Cannot update these configs dynamically",
        broker_configs.setting,
        unknown=ErrorCode.INVALID_REQUEST,
        invalid=ErrorCode.INVALID_REQUEST,
        check_parts=broker_configs.check_parts,
    ),
    ResourceType.GROUP: _Kind(
        "Unknown group config name",
        group_configs.BY_NAME.get,
        check_together=group_configs.check_together,
    ),
    ResourceType.CLIENT_METRICS: _Kind(
        "Unknown client metrics configuration",
        client_metrics_configs.BY_NAME.get,
        unknown=ErrorCode.INVALID_REQUEST,
        check_parts=client_metrics_configs.check_parts,
    ),
}


_NAMED = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLIENT_METRICS})
"""Types of resources that need a name."""


@dataclass(slots=True)
class _Change:
    """A valid change of one resource, and its answer."""

    resource_type: int
    change: ConfigChange
    result: Result


def handle_alter_configs(
    ctx: RequestContext, request: whole.AlterConfigsRequest
) -> whole.AlterConfigsResponse | Later:
    """Replace the settings of each resource; each has its own answer."""
    alter = partial(_alter_whole, ctx, request)
    return _with_patterns(ctx, request.resources, alter, partial(fail_alter_configs, request))


def _alter_whole(
    ctx: RequestContext, request: whole.AlterConfigsRequest
) -> whole.AlterConfigsResponse | Later:
    response = whole.AlterConfigsResponse()
    changes: list[_Change] = []
    refusal = ctx.server.pattern_work.refusal
    for asked, result in _answers(request.resources, response, whole.AlterConfigsResourceResponse):
        _judge(ctx, result, changes, partial(_whole, asked, refusal=refusal))
    if request.validate_only:
        _validate(ctx, changes)
        return response
    return _propose(ctx, changes, response) if changes else response


def fail_alter_configs(
    request: whole.AlterConfigsRequest, _version: int, code: ErrorCode
) -> whole.AlterConfigsResponse:
    """Return `code` for each resource."""
    return whole.AlterConfigsResponse(
        responses=[
            whole.AlterConfigsResourceResponse(code, None, asked.resource_type, asked.resource_name)
            for asked in request.resources
        ]
    )


def handle_incremental_alter_configs(
    ctx: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse | Later:
    """Change settings of each resource; each has its own answer."""
    alter = partial(_alter_incrementally, ctx, request)
    fail = partial(fail_incremental_alter_configs, request)
    return _with_patterns(ctx, request.resources, alter, fail)


def _alter_incrementally(
    ctx: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse | Later:
    response = incremental.IncrementalAlterConfigsResponse()
    changes: list[_Change] = []
    refusal = ctx.server.pattern_work.refusal
    made = incremental.AlterConfigsResourceResponse
    for asked, result in _answers(request.resources, response, made):
        if asked.resource_type == ResourceType.BROKER_LOGGER:
            _set_levels(ctx, asked, result, validate_only=request.validate_only)
        else:
            _judge(ctx, result, changes, partial(_incremental, asked, refusal=refusal))
    if request.validate_only:
        _validate(ctx, changes)
        return response
    return _propose(ctx, changes, response) if changes else response


def fail_incremental_alter_configs(
    request: incremental.IncrementalAlterConfigsRequest, _version: int, code: ErrorCode
) -> incremental.IncrementalAlterConfigsResponse:
    """Return `code` for each resource."""
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                code, None, asked.resource_type, asked.resource_name
            )
            for asked in request.resources
        ]
    )


def _with_patterns(
    ctx: RequestContext,
    resources: Sequence[whole.AlterConfigsResource] | Sequence[incremental.AlterConfigsResource],
    alter: Callable[[], Response | Later],
    fail: Callable[[int, ErrorCode], Response],
) -> Response | Later:
    """Compile the patterns of a request off the loop, because it takes too long for it; then
    alter."""
    patterns = [
        pattern
        for asked in resources
        if asked.resource_type == ResourceType.CLIENT_METRICS
        for config in asked.configs
        for pattern in client_metrics_configs.patterns_of(config.name, config.value)
    ]
    work = ctx.server.pattern_work
    if all(work.knows(pattern) for pattern in patterns):
        return alter()
    later = Later()
    if len(patterns) > PATTERNS_MAX or not work.check(
        ctx.asker, patterns, later.step(lambda: later.follow(alter()))
    ):
        return fail(ctx.api_version, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return later


def _answers(
    resources: list[Asked], response: Any, made: Callable[..., Result]
) -> Iterator[tuple[Asked, Result]]:
    """Yield each resource that is named once, with its answer. The others get an error."""
    times = Counter((asked.resource_type, asked.resource_name) for asked in resources)
    for asked in resources:
        result = made(resource_type=asked.resource_type, resource_name=asked.resource_name)
        response.responses.append(result)
        if times[asked.resource_type, asked.resource_name] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "the resource is listed more than once"
        else:
            yield asked, result


def _judge(
    ctx: RequestContext,
    result: Result,
    changes: list[_Change],
    read: Callable[[_Kind], ConfigChange],
) -> None:
    """Add the change to those that may be proposed, or set its error."""
    resource_type, name = result.resource_type, result.resource_name
    kind = _KINDS.get(resource_type)
    try:
        if kind is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resource type {resource_type} has no settings that can be changed",
            )
        _check_name(ctx, resource_type, name)
        change = read(kind)
        if kind.check_together is not None:
            kind.check_together(changed_configs(change, _present(ctx, resource_type, name)) or {})
        if resource_type == ResourceType.TOPIC:
            check_large_batches(ctx, change.set, _present(ctx, resource_type, name))
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    except InvalidConfig as error:
        assert kind is not None, resource_type
        result.error_code, result.error_message = kind.invalid, str(error)
    else:
        result.error_message = None
        changes.append(_Change(resource_type, change, result))


def _set_levels(
    ctx: RequestContext,
    asked: incremental.AlterConfigsResource,
    result: Result,
    *,
    validate_only: bool,
) -> None:
    """Set the levels of loggers, all or none, or the error of the resource."""
    loggers = ctx.server.loggers
    try:
        check_server_name(ctx, asked.resource_name)
        known = loggers.levels() if loggers is not None else {}
        names: set[str] = set()
        for config in asked.configs:
            _check_level(config, known, names)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return
    result.error_message = None
    if validate_only or loggers is None:
        return
    for config in asked.configs:
        if config.config_operation == Operation.DELETE:
            loggers.unset(config.name)
        else:
            assert config.value is not None, config.name
            loggers.set(config.name, config.value)


def _check_level(
    config: incremental.AlterableConfig, known: Mapping[str, str], names: set[str]
) -> None:
    """Validate one level. `names` are those named before; add this one. Raises KafkaError."""
    name, level, operation = config.name, config.value, config.config_operation
    if name in names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is listed more than once")
    names.add(name)
    if level is None and operation != Operation.DELETE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"null value for {name}")
    if operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"operation {operation} is not supported for logger levels"
        )
    if name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE:
        if name == ROOT_LOGGER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the level of the root logger cannot be removed"
            )
    elif level not in KAFKA_LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{level} is not a log level; expected one of {', '.join(KAFKA_LEVELS)}",
        )


def _present(ctx: RequestContext, resource_type: int, name: str) -> Mapping[str, str]:
    """Return the settings of a resource as far as this server knows."""
    if resource_type == ResourceType.TOPIC:
        topic = find_topic(ctx, name)
        return topic.configs if topic is not None else {}
    return ctx.server.host.catalog.resources.of(resource_type, name)


def _check_name(ctx: RequestContext, resource_type: int, name: str) -> None:
    """Raise KafkaError if no resource of the type may have the name."""
    if resource_type == ResourceType.BROKER and name != ALL_SERVERS:
        check_server_name(ctx, name)
    elif resource_type in _NAMED and not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default resources are not allowed.")
    elif resource_type == ResourceType.TOPIC and (complaint := topic_name_complaint(name)):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)


def _check_scope(asked: Asked) -> None:
    """Raise KafkaError if a setting of all servers is set for one server.

    The number of copies that a batch needs must not change with its leader. Such a setting can
    still be deleted for one server.
    """
    if asked.resource_type != ResourceType.BROKER or asked.resource_name == ALL_SERVERS:
        return
    if any(config.name == MIN_IN_SYNC_REPLICAS and _sets(config) for config in asked.configs):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered; set the default for all brokers.",
        )


def _sets(config: whole.AlterableConfig | incremental.AlterableConfig) -> bool:
    return getattr(config, "config_operation", Operation.SET) != Operation.DELETE


def _whole(asked: whole.AlterConfigsResource, kind: _Kind, *, refusal: Refusal) -> ConfigChange:
    """Return the change of a resource by AlterConfigs. Raises KafkaError, InvalidConfig."""
    _check_scope(asked)
    values: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"null value for {config.name}")
        values[config.name] = config.value
    return ConfigChange(asked.resource_name, kind.check(values, refusal), replaces=True)


def _incremental(
    asked: incremental.AlterConfigsResource, kind: _Kind, *, refusal: Refusal
) -> ConfigChange:
    """Return the change by IncrementalAlterConfigs. Raises KafkaError, InvalidConfig."""
    _check_scope(asked)
    values: dict[str, str] = {}
    unset: list[str] = []
    lists: dict[str, ListChange] = {}
    for config in asked.configs:
        name, value = config.name, config.value
        if name in values or name in unset or name in lists:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is listed more than once")
        if config.config_operation == Operation.DELETE:
            if not kind.unsets_unknown:
                kind.setting(name)
            unset.append(name)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"null value for {name}")
        known = kind.setting(name)
        if config.config_operation == Operation.SET:
            values[name] = value
            continue
        if config.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"operation {config.config_operation} is not supported"
            )
        if known.type is not ConfigType.LIST:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list")
        if known.is_open_list:
            kind.check({name: value}, refusal)
        lists[name] = ListChange(
            name,
            list_parts(value),
            subtracts=config.config_operation == Operation.SUBTRACT,
            default=known.default,
            allowed=list(known.allowed or ()),
            is_open=known.is_open_list,
            may_be_empty=known.may_be_empty,
        )
    return ConfigChange(
        asked.resource_name, kind.check(values, refusal), unset, lists=list(lists.values())
    )


def _validate(ctx: RequestContext, changes: list[_Change]) -> None:
    """Set the errors that the applied command would return."""
    for one in changes:
        if one.resource_type != ResourceType.TOPIC:
            continue
        topic = find_topic(ctx, one.change.topic)
        if topic is None:
            _refuse(one, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif changed_configs(one.change, topic.configs) is None:
            _refuse(one, ErrorCode.INVALID_CONFIG)


def _refuse(one: _Change, error: ErrorCode) -> None:
    result = one.result
    result.error_code = error
    match error:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            result.error_message = f"topic '{result.resource_name}' does not exist"
        case ErrorCode.POLICY_VIOLATION:
            result.error_message = (
                "the settings of all resources have reached their maximum size; remove some first"
            )
        case _:
            names = ", ".join(part.name for part in one.change.lists)
            result.error_message = (
                f"the resulting value of {names} is not supported"
                if names
                else "the settings of the resource would exceed their maximum size"
            )


def _propose(
    ctx: RequestContext,
    changes: list[_Change],
    response: whole.AlterConfigsResponse | incremental.IncrementalAlterConfigsResponse,
) -> Any:
    """Propose the changes. Return the response once all are decided."""
    parts = Gathering(response)
    topics = [one for one in changes if one.resource_type == ResourceType.TOPIC]
    others = [one for one in changes if one.resource_type != ResourceType.TOPIC]
    if topics:
        _propose_one(ctx, AlterTopicConfigs([one.change for one in topics]), topics, parts)
    if others:
        pairs = [(one.resource_type, one.change) for one in others]
        _propose_one(ctx, AlterResourceConfigs(pairs), others, parts)
    return parts.result()


def _propose_one(
    ctx: RequestContext,
    command: AlterTopicConfigs | AlterResourceConfigs,
    changes: list[_Change],
    parts: Gathering[Any],
) -> None:
    parts.expect()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for one, error in zip(changes, outcome.result.errors, strict=True):
                if error:
                    _refuse(one, error)
        else:
            code, message = undecided(outcome)
            for one in changes:
                one.result.error_code, one.result.error_message = code, message
        parts.arrived()

    ctx.server.host.propose_catalog(command, deadline_ns=ctx.deadline_ns(_TIMEOUT_MS), done=decided)
