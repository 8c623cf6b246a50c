"""AlterConfigs (key 33), IncrementalAlterConfigs (key 44): settings of topics (KIP-133, KIP-339).

The older one replaces all settings of a topic by those named; the newer one sets, unsets, and adds
to or takes from lists. Servers' own settings are read-only: they come from their files.

Values are judged here; that the topic exists, and what a list is that is added to, is decided where
the command is applied, or, when the request is only to be validated, by this server's catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.configs import Resource
from vdl.kafka.handlers.partitions import find_topic
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.topic_configs import (
    BY_NAME,
    ConfigType,
    InvalidConfig,
    check_configs,
    list_parts,
)
from vdl.kafka.wire import alter_configs as whole
from vdl.kafka.wire import incremental_alter_configs as incremental
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.catalog import changed_list
from vdl.state.commands import AlterTopicConfigs, ConfigChange, ListChange

_TIMEOUT_MS = 30_000
"""These requests have no time-out of their own."""

Asked = TypeVar("Asked", whole.AlterConfigsResource, incremental.AlterConfigsResource)
Result = whole.AlterConfigsResourceResponse | incremental.AlterConfigsResourceResponse


class Operation(IntEnum):
    """What happens to one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def handle_alter_configs(
    ctx: RequestContext, request: whole.AlterConfigsRequest
) -> whole.AlterConfigsResponse | Later:
    """Replace the settings of each topic; each has its own answer."""
    response = whole.AlterConfigsResponse()
    changes: list[tuple[ConfigChange, Result]] = []
    for asked, result in _answers(request.resources, response, whole.AlterConfigsResourceResponse):
        _judge(result, changes, partial(_whole, asked))
    if request.validate_only:
        _validate(ctx, changes)
        return response
    return _propose(ctx, changes, response) if changes else response


def fail_alter_configs(
    request: whole.AlterConfigsRequest, _version: int, code: ErrorCode
) -> whole.AlterConfigsResponse:
    """`code` for each resource."""
    return whole.AlterConfigsResponse(
        responses=[
            whole.AlterConfigsResourceResponse(code, None, asked.resource_type, asked.resource_name)
            for asked in request.resources
        ]
    )


def handle_incremental_alter_configs(
    ctx: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse | Later:
    """Change settings of each topic; each has its own answer."""
    response = incremental.IncrementalAlterConfigsResponse()
    changes: list[tuple[ConfigChange, Result]] = []
    made = incremental.AlterConfigsResourceResponse
    for asked, result in _answers(request.resources, response, made):
        _judge(result, changes, partial(_incremental, asked))
    if request.validate_only:
        _validate(ctx, changes)
        return response
    return _propose(ctx, changes, response) if changes else response


def fail_incremental_alter_configs(
    request: incremental.IncrementalAlterConfigsRequest, _version: int, code: ErrorCode
) -> incremental.IncrementalAlterConfigsResponse:
    """`code` for each resource."""
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                code, None, asked.resource_type, asked.resource_name
            )
            for asked in request.resources
        ]
    )


def _answers(
    resources: list[Asked], response: Any, made: Callable[..., Result]
) -> Iterator[tuple[Asked, Result]]:
    """Each resource that may be changed, and its answer; the others are answered."""
    times = Counter((asked.resource_type, asked.resource_name) for asked in resources)
    for asked in resources:
        result = made(resource_type=asked.resource_type, resource_name=asked.resource_name)
        response.responses.append(result)
        if times[asked.resource_type, asked.resource_name] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "the resource is named more than once"
        elif asked.resource_type != Resource.TOPIC:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "only settings of topics can be changed at run time"
        else:
            yield asked, result


def _judge(
    result: Result,
    changes: list[tuple[ConfigChange, Result]],
    read: Callable[[], ConfigChange],
) -> None:
    """Add the change to those that may be proposed, or set its error."""
    try:
        change = read()
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    except InvalidConfig as error:
        result.error_code, result.error_message = ErrorCode.INVALID_CONFIG, str(error)
    else:
        result.error_message = None
        changes.append((change, result))


def _whole(asked: whole.AlterConfigsResource) -> ConfigChange:
    """Raises KafkaError, InvalidConfig."""
    values: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"null value for {config.name}")
        values[config.name] = config.value
    return ConfigChange(asked.resource_name, check_configs(values), replaces=True)


def _incremental(asked: incremental.AlterConfigsResource) -> ConfigChange:
    """Raises KafkaError, InvalidConfig."""
    values: dict[str, str] = {}
    unset: list[str] = []
    lists: dict[str, ListChange] = {}
    for config in asked.configs:
        name, value = config.name, config.value
        if name in values or name in unset or name in lists:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is named more than once")
        known = BY_NAME.get(name)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if config.config_operation == Operation.DELETE:
            unset.append(name)
            continue
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"null value for {name}")
        if config.config_operation == Operation.SET:
            values[name] = value
            continue
        if config.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"operation {config.config_operation}")
        if known.type is not ConfigType.LIST:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list")
        if known.is_open_list:
            known.check(value)
        lists[name] = ListChange(
            name,
            list_parts(value),
            subtracts=config.config_operation == Operation.SUBTRACT,
            default=known.default,
            allowed=list(known.allowed or ()),
            is_open=known.is_open_list,
        )
    return ConfigChange(
        asked.resource_name, check_configs(values), unset, lists=list(lists.values())
    )


def _validate(ctx: RequestContext, changes: list[tuple[ConfigChange, Result]]) -> None:
    """Set the errors that the applied command would return."""
    for change, result in changes:
        topic = find_topic(ctx, change.topic)
        if topic is None:
            _refuse(change, result, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif any(changed_list(one, topic.configs.get(one.name)) is None for one in change.lists):
            _refuse(change, result, ErrorCode.INVALID_CONFIG)


def _refuse(change: ConfigChange, result: Result, error: ErrorCode) -> None:
    result.error_code = error
    result.error_message = f"no topic '{result.resource_name}'"
    if error is ErrorCode.INVALID_CONFIG:
        names = ", ".join(one.name for one in change.lists)
        result.error_message = f"{names} would have a value that is not supported here"


def _propose(
    ctx: RequestContext,
    changes: list[tuple[ConfigChange, Result]],
    response: whole.AlterConfigsResponse | incremental.IncrementalAlterConfigsResponse,
) -> Later:
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for (change, result), error in zip(changes, outcome.result.errors, strict=True):
                if error:
                    _refuse(change, result, error)
        else:
            code, message = undecided(outcome)
            for _, result in changes:
                result.error_code, result.error_message = code, message
        later.complete(response)

    ctx.server.host.propose_catalog(
        AlterTopicConfigs([change for change, _ in changes]),
        deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later
