"""CreateTopics (key 19), DeleteTopics (20), CreatePartitions (37): decided by the catalog.

Any server accepts the requests.

CreateTopics: v1 error texts and validation only, counts may be left to the server (KIP-464; Kafka's
brokers allow it in every version), v5 the answer has the chosen values (KIP-525), v7 topic ids.
DeleteTopics: v5 error texts, v6 by id (KIP-516). v2 and v1 added the throttle time.
CreatePartitions: KIP-195; v2 flexible, v3 may be refused by a quota (KIP-599).

Quotas on changes (KIP-599) are applied before the handlers (`permissions.mutation_quota`).

Conditions that do not need the catalog (duplicates, settings, the form of assignments) are checked
here. The rest is decided where the command is applied, so one of two racing requests wins. A
creation is answered when all its partitions have leaders, or at its timeout; the partitions exist
then, too. A command whose outcome is unknown at the timeout is REQUEST_TIMED_OUT; one that was
certainly not appended is NOT_CONTROLLER, which clients retry.
"""

from __future__ import annotations

from collections import Counter

from ids import GroupId, ServerId
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later
from vdl.kafka.configs.topic_configs import InvalidConfig, check_configs, check_together
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.configs import check_large_batches, created_configs
from vdl.kafka.handlers.leaders import when_led
from vdl.kafka.lookup import NO_TOPIC_ID, find_topic, is_internal
from vdl.kafka.wire.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from vdl.kafka.wire.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from vdl.kafka.wire.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.catalog_answers import CreatedTopic, DeletedTopic
from vdl.state.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
)

_BY_ID_FROM = 6


def handle_create_topics(
    ctx: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | Later:
    """Create each valid topic; each has its own answer."""
    response = CreateTopicsResponse()
    wanted: list[tuple[NewTopic, CreatableTopicResult]] = []
    times = Counter(topic.name for topic in request.topics)
    first_of: dict[str, CreatableTopic] = {}
    for topic in request.topics:
        first_of.setdefault(topic.name, topic)
    options = ctx.server.config
    partitions = sum(
        len(topic.assignments)
        or (options.num_partitions if topic.num_partitions < 0 else topic.num_partitions)
        for topic in request.topics
    )
    too_many = partitions > options.partitions_per_request_max
    for name, topic in first_of.items():
        result = CreatableTopicResult(name=name, configs=[])
        response.topics.append(result)
        try:
            if times[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "duplicate topic name")
            if too_many:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "too many partitions in one request")
            if is_internal(ctx, name):
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"'{name}' is an internal topic")
            wanted.append((_new_topic(ctx, topic), result))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
    if not wanted:
        return response
    return _propose_creation(ctx, request, response, wanted)


def fail_create_topics(
    request: CreateTopicsRequest, _version: int, code: ErrorCode
) -> CreateTopicsResponse:
    """Return `code` for each topic."""
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
    )


def _new_topic(ctx: RequestContext, topic: CreatableTopic) -> NewTopic:
    """Return the topic as in a command. Raises KafkaError for errors found without the catalog."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"null value for {config.name}")
        configs[config.name] = config.value
    try:
        configs = check_configs(configs)
        check_together(configs)
        check_large_batches(ctx, configs, {})
    except InvalidConfig as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return NewTopic(
        topic.name,
        ctx.server.random_bytes(16),
        topic.num_partitions,
        topic.replication_factor,
        _assignments(topic),
        configs,
    )


def _assignments(topic: CreatableTopic) -> list[list[ServerId]] | None:
    """Return server ids by partition. Raise KafkaError unless the partitions are 0, 1, 2, …"""
    if not topic.assignments:
        return None
    by_index = {
        item.partition_index: [ServerId(n) for n in item.broker_ids] for item in topic.assignments
    }
    if sorted(by_index) != list(range(len(topic.assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions must be numbered 0, 1, 2 and so on, each once",
        )
    return [by_index[index] for index in range(len(by_index))]


def _propose_creation(
    ctx: RequestContext,
    request: CreateTopicsRequest,
    response: CreateTopicsResponse,
    wanted: list[tuple[NewTopic, CreatableTopicResult]],
) -> Later:
    server = ctx.server
    later = Later()
    deadline_ns = ctx.deadline_ns(request.timeout_ms)

    def decided(outcome: Outcome) -> None:
        groups: list[GroupId] = []
        if outcome.kind is OutcomeKind.APPLIED:
            for created, (_, result) in zip(outcome.result.topics, wanted, strict=True):
                _fill_created(ctx, created, result)
                groups += created.group_ids
        else:
            code, message = undecided(outcome)
            for _, result in wanted:
                result.error_code, result.error_message = code, message
        when_led(
            server,
            groups,
            deadline_ns=deadline_ns,
            later=later,
            done=lambda: later.complete(response),
        )

    server.host.propose_catalog(
        CreateTopics(
            topics=[topic for topic, _ in wanted],
            default_partitions=server.config.num_partitions,
            default_replication_factor=server.config.default_replication_factor,
            validate_only=request.validate_only,
            alive=sorted(server.host.alive_servers()),
            replicas_per_server_max=server.config.replicas_per_server_max,
            counts_each_server=True,
        ),
        deadline_ns=deadline_ns,
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later


def _fill_created(ctx: RequestContext, created: CreatedTopic, result: CreatableTopicResult) -> None:
    result.error_code = created.error
    result.error_message = created.message or None
    ctx.server.topics_refused += created.error is ErrorCode.POLICY_VIOLATION
    if created.error is ErrorCode.NONE:
        result.num_partitions = created.partitions
        result.replication_factor = created.replication_factor
        result.configs = created_configs(ctx, created.configs)
        if created.group_ids:
            result.topic_id = created.topic_id


def undecided(outcome: Outcome) -> tuple[ErrorCode, str]:
    """Return code and message for a catalog command that was not applied here in time."""
    if outcome.kind is OutcomeKind.NOT_APPENDED:
        return (
            ErrorCode.NOT_CONTROLLER,
            "the catalog has no leader that accepts the request; nothing was changed",
        )
    if outcome.kind is OutcomeKind.TOO_LARGE:
        return ErrorCode.INVALID_REQUEST, "the request is too large for one command; split it"
    return ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown: the request may have taken effect"


def handle_create_partitions(
    ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | Later:
    """Add partitions to each topic where possible; each has its own answer."""
    server = ctx.server
    response = CreatePartitionsResponse()
    results: list[CreatePartitionsTopicResult] = []
    wanted: list[NewPartitions] = []
    times = Counter(topic.name for topic in request.topics)
    first_of: dict[str, CreatePartitionsTopic] = {}
    for topic in request.topics:
        first_of.setdefault(topic.name, topic)
    known = server.host.catalog.topics
    added = sum(
        max(0, topic.count - len(known[topic.name].partitions))
        for topic in first_of.values()
        if topic.name in known
    )
    too_many = added > server.config.partitions_per_request_max
    for name, topic in first_of.items():
        result = CreatePartitionsTopicResult(name=name)
        response.results.append(result)
        if times[name] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "duplicate topic name"
        elif too_many:
            result.error_code = ErrorCode.POLICY_VIOLATION
            result.error_message = "too many partitions in one request"
        elif is_internal(ctx, name):
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            result.error_message = f"'{name}' is an internal topic"
        else:
            results.append(result)
            assignments = topic.assignments
            servers = (
                None
                if assignments is None
                else [[ServerId(n) for n in one.broker_ids] for one in assignments]
            )
            wanted.append(NewPartitions(name, topic.count, servers))
    if not wanted:
        return response
    later = Later()
    deadline_ns = ctx.deadline_ns(request.timeout_ms)

    def decided(outcome: Outcome) -> None:
        groups: list[GroupId] = []
        if outcome.kind is OutcomeKind.APPLIED:
            for grown, result in zip(outcome.result.topics, results, strict=True):
                result.error_code = grown.error
                result.error_message = grown.message or None
                server.topics_refused += grown.error is ErrorCode.POLICY_VIOLATION
                groups += grown.group_ids
        else:
            code, message = undecided(outcome)
            for result in results:
                result.error_code, result.error_message = code, message
        when_led(
            server,
            groups,
            deadline_ns=deadline_ns,
            later=later,
            done=lambda: later.complete(response),
        )

    server.host.propose_catalog(
        CreatePartitions(
            topics=wanted,
            validate_only=request.validate_only,
            alive=sorted(server.host.alive_servers()),
            replicas_per_server_max=server.config.replicas_per_server_max,
        ),
        deadline_ns=deadline_ns,
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later


def fail_create_partitions(
    request: CreatePartitionsRequest, _version: int, code: ErrorCode
) -> CreatePartitionsResponse:
    """Return `code` for each topic."""
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code)
            for topic in request.topics
        ]
    )


def handle_delete_topics(
    ctx: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse | Later:
    """Delete each topic that exists; each has its own answer."""
    asked = request.topics
    if ctx.api_version < _BY_ID_FROM:
        asked = [DeleteTopicState(name, NO_TOPIC_ID) for name in request.topic_names]
    times = Counter((topic.name, topic.topic_id) for topic in asked)
    both_ways = _named_both_ways(ctx, asked)
    answered_by_name = frozenset(both_ways.values())
    response = DeleteTopicsResponse()
    by_name: list[DeletableTopicResult] = []
    by_id: list[DeletableTopicResult] = []
    for name, topic_id in times:
        if name is None and topic_id in answered_by_name:
            continue
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        response.responses.append(result)
        if times[name, topic_id] > 1:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "the topic is listed more than once"
        elif (name is None) == (topic_id == NO_TOPIC_ID):
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "either a name or an id is required"
        elif name in both_ways:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "the topic is listed by name and by id"
            result.topic_id = both_ways[name]
        elif is_internal(ctx, topic_id if name is None else name):
            result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
            result.error_message = "an internal topic cannot be deleted"
        elif name is None and ctx.unknown_ids is not None and topic_id in ctx.unknown_ids:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            result.error_message = "the topic does not exist"
        elif name is None:
            by_id.append(result)
        else:
            by_name.append(result)
    results = by_name + by_id
    if not results:
        return response
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for deleted, result in zip(outcome.result.topics, results, strict=True):
                _fill_deleted(deleted, result)
        else:
            code, message = undecided(outcome)
            for result in results:
                result.error_code, result.error_message = code, message
        later.complete(response)

    ctx.server.host.propose_catalog(
        DeleteTopics(
            names=[result.name for result in by_name if result.name is not None],
            topic_ids=[result.topic_id for result in by_id],
        ),
        deadline_ns=ctx.deadline_ns(request.timeout_ms),
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later


def fail_delete_topics(
    request: DeleteTopicsRequest, version: int, code: ErrorCode
) -> DeleteTopicsResponse:
    """Return `code` for each topic."""
    if version >= 6:
        results = [
            DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        ]
    else:
        results = [DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    return DeleteTopicsResponse(responses=results)


def _named_both_ways(ctx: RequestContext, asked: list[DeleteTopicState]) -> dict[str | None, bytes]:
    """Return name → id of the topics that a request names by name and by id.

    Such a request is a mistake, and its intent is unknown.
    """
    names = {topic.name for topic in asked if topic.topic_id == NO_TOPIC_ID}
    found: dict[str | None, bytes] = {}
    for topic_id in {topic.topic_id for topic in asked if topic.name is None}:
        topic = find_topic(ctx, topic_id)
        if topic is not None and topic.name in names:
            found[topic.name] = topic_id
    return found


def _fill_deleted(deleted: DeletedTopic, result: DeletableTopicResult) -> None:
    result.error_code = deleted.error
    if deleted.error is ErrorCode.NONE:
        result.name = deleted.name
        result.topic_id = deleted.topic_id
    else:
        result.error_message = "the topic does not exist"
