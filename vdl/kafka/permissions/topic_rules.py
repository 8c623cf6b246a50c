"""Rules about topics and their records: their names, and the information about them in answers.

A topic that the client may not describe is indistinguishable from one that does not exist: it is
left out of lists, and a request that names it is refused with error 29 in both cases. Its id is not
revealed.

Does not depend on the rules of each API (`table.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vdl.errors import ErrorCode
from vdl.kafka.api import API
from vdl.kafka.lookup import all_topics, find_topic
from vdl.kafka.parts import PAGE_ELEMENTS, names_of_page
from vdl.kafka.permissions.rules import NO_ID, Check, Each, Finish, Need, NeedOf, Refused
from vdl.state.acls import CLUSTER_NAME, AclOperation, AclResource
from vdl.state.resource_configs import ResourceType

if TYPE_CHECKING:
    from vdl.kafka.context import RequestContext

NOT_ASKED = -(1 << 31)
"""Value of the allowed operations if the request does not include them."""
_RECORDS_ATTRIBUTES = 22
"""Position of the low byte of the attributes in a batch with magic (at 16) 2."""
_RECORDS_MAGIC = 16
_TRANSACTIONAL = 0x10
_IDS_IN_METADATA_FROM = 12
"""Before this version an answer cannot have a topic without a name, and a request by id is
invalid."""

# --- records -------------------------------------------------------------------------------------


def transactional_batches(check: Check) -> Refused | None:
    """WRITE on the transactional id, where there is one, in the request or by what a batch says.

    A batch that claims to be transactional needs it, even if the request names no transactional id.
    """
    request = check.request
    name = request.transactional_id
    if name is None and not any(
        _is_transactional(partition.records)
        for topic in request.topic_data
        for partition in topic.partition_data
    ):
        return None
    if name is not None and check.may(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, name):
        return None
    return check.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _is_transactional(records: Any) -> bool:
    return (
        records is not None
        and len(records) > _RECORDS_ATTRIBUTES
        and records[_RECORDS_MAGIC] == 2
        and bool(records[_RECORDS_ATTRIBUTES] & _TRANSACTIONAL)
    )


def producer_id(check: Check) -> Refused | None:
    """WRITE on the transactional id; without one, WRITE on any topic (KIP-679), or
    IDEMPOTENT_WRITE on the cluster."""
    name = check.request.transactional_id
    if name is not None:
        if check.may(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, name):
            return None
        return check.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    connection = check.ctx.connection
    if check.authorizer.allows_some(connection, AclOperation.WRITE, AclResource.TOPIC):
        return None
    if check.may_to_cluster(AclOperation.IDEMPOTENT_WRITE):
        return None
    return check.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def fetched_partitions(check: Check) -> None:
    """READ on each topic.

    The partitions of a session are not in the request: the permission is checked where each is
    read.
    """
    del check


def may_read(ctx: RequestContext, topic: str) -> bool:
    """Return True if the client of a Fetch may read a topic now. Called at each attempt to read."""
    authorizer = ctx.server.authorizer
    if authorizer is None:
        return True
    check = Check(authorizer, API[ctx.api_key], ctx, None)
    is_allowed = check.may(AclOperation.READ, AclResource.TOPIC, topic)
    check.note()
    return is_allowed


# --- metadata ------------------------------------------------------------------------------------


def may_describe(check: Check, topic: str, *, quietly: bool = False) -> bool:
    return check.may(AclOperation.DESCRIBE, AclResource.TOPIC, topic, quietly=quietly)


def metadata(check: Check) -> Finish | Refused | None:
    """DESCRIBE on each topic; to have one created, CREATE on it, or on the cluster.

    If all topics are requested, the answer has those that the client may describe.
    """
    request = check.request
    asked = request.topics
    wants_all = asked is None or (not asked and check.ctx.api_version == 0)
    if wants_all:
        is_visible = visible_topics(check)
        return lambda answer: _visible(check, answer, is_visible)
    wire = check.api.wire
    allowed: list[Any] = []
    refused: dict[tuple[str, bytes], Any] = {}
    """Refused topics, once each, like the other topics in the answer."""
    for topic in asked:
        name = check.topic_name(topic.name, topic.topic_id)
        is_by_id = topic.topic_id != NO_ID
        if name is None or (is_by_id and check.ctx.api_version < _IDS_IN_METADATA_FROM):
            allowed.append(topic)  # the handler sets the error
        elif not may_describe(check, name) or not _may_have_created(check, topic, name):
            refused[name, topic.topic_id] = wire.MetadataResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                name=None if is_by_id else name,
                topic_id=topic.topic_id,
            )
        else:
            allowed.append(topic)
    if refused:
        # Every client may see the brokers: an empty list of topics requests them alone.
        request.topics = allowed
    if not allowed and not check.ctx.api_version:
        request.topics = [wire.MetadataRequestTopic(name="")]

    def finish(answer: Any) -> Any:
        if not allowed:
            answer.topics = []
        _tell_operations(check, answer)
        answer.topics += refused.values()
        refused.clear()  # the first response of an answer in parts has them
        return answer

    return finish


def _may_have_created(check: Check, topic: Any, name: str) -> bool:
    """Return True if the request may create a missing topic, or would not create it."""
    request, ctx = check.request, check.ctx
    would = request.allow_auto_topic_creation or ctx.api_version < 4
    if (
        topic.topic_id != NO_ID
        or not would
        or not ctx.server.config.auto_create_topics
        or find_topic(ctx, name) is not None
    ):
        return True
    return check.may_to_cluster(AclOperation.CREATE, quietly=True) or check.may(
        AclOperation.CREATE, AclResource.TOPIC, name
    )


def visible_topics(check: Check) -> Callable[[str | None, bytes], bool]:
    """Return a filter of the topics that the client may describe, for all parts of one answer.

    Topics come one after the other. One that is cut is judged once, at its first partitions: with
    some of its partitions left out, it would look like a smaller one.
    """
    last: tuple[str | None, bytes] | None = None
    is_visible = False

    def judged(name: str | None, topic_id: bytes) -> bool:
        nonlocal last, is_visible
        if (name, topic_id) != last:
            last = name, topic_id
            is_visible = may_describe(check, check.topic_name(*last) or "", quietly=True)
        return is_visible

    return judged


def _visible(check: Check, answer: Any, is_visible: Callable[[str | None, bytes], bool]) -> Any:
    answer.topics = [topic for topic in answer.topics if is_visible(topic.name, NO_ID)]
    _tell_operations(check, answer)
    return answer


def _tell_operations(check: Check, answer: Any) -> None:
    connection = check.ctx.connection
    if answer.cluster_authorized_operations != NOT_ASKED:
        answer.cluster_authorized_operations = check.authorizer.cluster_operations(connection)
    for topic in answer.topics:
        if topic.topic_authorized_operations != NOT_ASKED:
            topic.topic_authorized_operations = check.authorizer.operations(
                connection, AclResource.TOPIC, topic.name or ""
            )


def described_topics(check: Check) -> Finish | Refused | None:
    """DESCRIBE on each topic.

    Pages: of the named topics, only as many are checked as a page may have. Topics that the client
    may not see are removed before the page is cut.
    """
    request, wire = check.request, check.api.wire
    cursor = request.cursor
    if not request.topics:
        names = [
            topic.name
            for topic in all_topics(check.ctx)
            if may_describe(check, topic.name, quietly=True)
        ]
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
            if not names or names[0] != cursor.topic_name:
                # its topic was deleted, or is no longer visible to the client
                request.cursor = None
        if not names:
            return Refused(wire.DescribeTopicPartitionsResponse())
        request.topics = [wire.TopicRequest(name) for name in names]
        return lambda answer: _told_of_topics(check, answer, [])
    names = names_of_page(request)
    if cursor is not None:
        start = bisect_left(names, cursor.topic_name)
        if names[start : start + 1] != [cursor.topic_name]:
            return None  # the handler refuses it as invalid
        names = names[start:]
    page, rest = names[:PAGE_ELEMENTS], names[PAGE_ELEMENTS:]
    allowed = [name for name in page if may_describe(check, name)]
    visible = frozenset(allowed)
    if cursor is not None and cursor.topic_name not in visible:
        request.cursor = None
    refusals = [
        wire.DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
        )
        for name in page
        if name not in visible
    ]
    request.topics = [wire.TopicRequest(name) for name in allowed]

    def finish(answer: Any) -> Any:
        if rest and answer.next_cursor is None:
            answer.next_cursor = wire.Cursor(rest[0], 0)
        return _told_of_topics(check, answer, refusals)

    if not allowed:
        return Refused(finish(wire.DescribeTopicPartitionsResponse()))
    return finish


def _told_of_topics(check: Check, answer: Any, refusals: list[Any]) -> Any:
    for topic in answer.topics:
        topic.topic_authorized_operations = check.authorizer.operations(
            check.ctx.connection, AclResource.TOPIC, topic.name or ""
        )
    answer.topics += refusals
    return answer


def described_cluster(check: Check) -> Finish | None:
    """DESCRIBE on the cluster for the operations that the client may do with it."""
    if not check.request.include_cluster_authorized_operations:
        return None

    def finish(answer: Any) -> Any:
        if answer.cluster_authorized_operations != NOT_ASKED:
            answer.cluster_authorized_operations = check.authorizer.cluster_operations(
                check.ctx.connection
            )
        return answer

    return finish


# --- topics --------------------------------------------------------------------------------------


def created_topics(check: Check) -> Finish | Refused | None:
    """DESCRIBE_CONFIGS on a new topic for its settings."""

    def finish(answer: Any) -> Any:
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE and not check.may(
                AclOperation.DESCRIBE_CONFIGS, AclResource.TOPIC, topic.name, quietly=True
            ):
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.configs = []
                topic.num_partitions = topic.replication_factor = -1
        return answer

    return finish


def creatable_topics(check: Check) -> Finish | Refused | None:
    """CREATE on each topic, or on the cluster.

    A topic that is named twice is a mistake, independently of permissions.
    """
    times = Counter(topic.name for topic in check.request.topics)

    def need(_: Check, topic: Any) -> Need | None:
        if times[topic.name] > 1:
            return None
        return AclOperation.CREATE, AclResource.TOPIC, topic.name

    rule = Each("", "topics", "topics", need, refusals=_unmade_topics, unless=AclOperation.CREATE)
    return rule(check)


def _unmade_topics(check: Check, topics: list[Any], code: ErrorCode) -> list[Any]:
    result = check.api.wire.CreatableTopicResult
    names = dict.fromkeys(topic.name for topic in topics)
    return [
        result(name=name, error_code=code, error_message="Authorization failed.", configs=[])
        for name in names
    ]


def deleted_topics(check: Check) -> Finish | Refused | None:
    """DELETE on each topic, or on the cluster.

    By name: a topic that the client may not describe is refused, whether or not it exists. By id:
    the answer does not reveal the name to a client that may not describe the topic. A topic that
    does not exist, as far as this server knows, is deleted only with permission: the catalog may
    know it when it decides.
    """
    if check.may_to_cluster(AclOperation.DELETE, quietly=True):
        return None
    request, wire = check.request, check.api.wire
    by_state = bool(request.topics)
    items = request.topics if by_state else request.topic_names
    allowed: list[Any] = []
    refused: list[Any] = []
    for item in items:
        name, topic_id = (item.name, item.topic_id) if by_state else (item, NO_ID)
        known = check.topic_name(name, topic_id)
        if not known:
            allowed.append(item)  # the handler answers that there is no such name or id
            continue
        may_delete = check.may(AclOperation.DELETE, AclResource.TOPIC, known)
        is_visible = may_describe(check, known, quietly=True)
        if may_delete and (is_visible or topic_id != NO_ID):
            allowed.append(item)
            continue
        code, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
        if is_visible and find_topic(check.ctx, known) is None:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic does not exist"
        refused.append(
            wire.DeletableTopicResult(
                name=known if topic_id == NO_ID or is_visible else None,
                topic_id=topic_id,
                error_code=code,
                error_message=message,
            )
        )
    if not refused:
        return None
    if not allowed:
        return Refused(wire.DeleteTopicsResponse(responses=refused))
    setattr(request, "topics" if by_state else "topic_names", allowed)

    def finish(answer: Any) -> Any:
        # Sorted by name, so that positions do not reveal the reasons of refusals.
        answer.responses = sorted(
            [*answer.responses, *refused], key=lambda one: (one.name or "", bytes(one.topic_id))
        )
        return answer

    return finish


_CONFIGS_OF: Mapping[int, AclResource] = {
    ResourceType.TOPIC: AclResource.TOPIC,
    ResourceType.BROKER: AclResource.CLUSTER,
    ResourceType.BROKER_LOGGER: AclResource.CLUSTER,
    ResourceType.CLIENT_METRICS: AclResource.CLUSTER,
    ResourceType.GROUP: AclResource.GROUP,
}


def each_config(operation: AclOperation, answered: str) -> Each:
    """Return a rule: each of `resources` needs an operation on the resource that has the
    settings."""
    text = f"{operation.name} on each topic or group, on the cluster for settings of others"
    return Each(text, "resources", answered, _of_configs(operation))


def _of_configs(operation: AclOperation) -> NeedOf:
    """Return the `NeedOf` of settings: on the topic or group, on the cluster for all others."""

    def need(check: Check, item: Any) -> Need | None:
        del check
        resource = _CONFIGS_OF.get(item.resource_type)
        if resource is None:
            return None  # refused as unknown
        is_cluster = resource is AclResource.CLUSTER
        return operation, resource, CLUSTER_NAME if is_cluster else item.resource_name

    return need
