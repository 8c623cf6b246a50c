"""Rules about consumer groups and their offsets.

Does not depend on the rules of each API (`table.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.permissions.rules import NO_ID, REFUSAL, Check, Finish, Need, Refused
from vdl.kafka.permissions.topic_rules import NOT_ASKED, may_describe, visible_topics
from vdl.state.acls import CLUSTER_NAME, AclOperation, AclResource

_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."

# --- groups --------------------------------------------------------------------------------------

_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2


def coordinator_need(check: Check, key: str) -> Need | None:
    kind = check.request.key_type
    if kind == _GROUP_KEY:
        return AclOperation.DESCRIBE, AclResource.GROUP, key
    if kind == _TRANSACTION_KEY:
        return AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, key
    if kind == _SHARE_KEY:
        return AclOperation.CLUSTER_ACTION, AclResource.CLUSTER, CLUSTER_NAME
    return None  # refused as unknown


def one_coordinator(check: Check) -> Refused | None:
    """DESCRIBE on the group or the transactional id, CLUSTER_ACTION on the cluster for others.

    Before v4 there is one key.
    """
    if check.ctx.api_version >= 4:
        return None
    need = coordinator_need(check, check.request.key)
    if need is None or check.may(*need):
        return None
    return check.refuse(REFUSAL[need[1]])


def listed_groups(check: Check) -> Finish | None:
    """DESCRIBE on each group in the answer, or on the cluster."""
    if check.may_to_cluster(AclOperation.DESCRIBE, quietly=True):
        return None

    def finish(answer: Any) -> Any:
        answer.groups = [
            group
            for group in answer.groups
            if check.may(AclOperation.DESCRIBE, AclResource.GROUP, group.group_id, quietly=True)
        ]
        return answer

    return finish


def group_operations(check: Check) -> Finish | None:
    if not check.request.include_authorized_operations:
        return None

    def finish(answer: Any) -> Any:
        for group in answer.groups:
            if group.authorized_operations != NOT_ASKED:
                group.authorized_operations = check.authorizer.operations(
                    check.ctx.connection, AclResource.GROUP, group.group_id
                )
        return answer

    return finish


def fetched_offsets(check: Check) -> Finish | Refused | None:
    """DESCRIBE on each group; DESCRIBE on each topic.

    Named topics are refused; of all topics of a group, those the client may not describe are left
    out.
    """
    request = check.request
    if check.ctx.api_version < 8:
        if not check.may(AclOperation.DESCRIBE, AclResource.GROUP, request.group_id):
            return check.refuse(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        refused = _take_refused(check, request)
        visible = visible_topics(check) if request.topics is None else None
        return lambda answer: _fetched(check, answer, refused, visible)
    wire = check.api.wire
    allowed: list[Any] = []
    refusals: list[Any] = []
    refused_topics: dict[str, list[Any]] = {}
    fetches_all: set[str] = set()
    is_visible = visible_topics(check)
    for group in request.groups:
        if not check.may(AclOperation.DESCRIBE, AclResource.GROUP, group.group_id):
            refusals.append(
                wire.OffsetFetchResponseGroup(
                    group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
                )
            )
            continue
        allowed.append(group)
        if group.topics is None:
            fetches_all.add(group.group_id)
        else:
            refused_topics[group.group_id] = _take_refused(check, group)
    request.groups = allowed
    if not allowed:
        return Refused(wire.OffsetFetchResponse(groups=refusals))

    def finish(answer: Any) -> Any:
        for group in answer.groups:
            if group.error_code == ErrorCode.NONE:
                _fetched(
                    check,
                    group,
                    refused_topics.get(group.group_id, []),
                    is_visible if group.group_id in fetches_all else None,
                )
        answer.groups += refusals
        refusals.clear()  # the first response of an answer in parts has them
        return answer

    return finish


def _take_refused(check: Check, target: Any) -> list[Any]:
    """Remove the topics that the client may not describe from a request, or from a group in it."""
    if target.topics is None:
        return []
    allowed: list[Any] = []
    refused: list[Any] = []
    for topic in target.topics:
        name = check.topic_name(topic.name, getattr(topic, "topic_id", NO_ID))
        is_allowed = name is None or may_describe(check, name)
        (allowed if is_allowed else refused).append(topic)
    target.topics = allowed
    return refused


def _fetched(
    check: Check,
    answer: Any,
    refused: list[Any],
    is_visible: Callable[[str | None, bytes], bool] | None,
) -> Any:
    """Return the answer with the refused topics. `is_visible`: filter of all topics of a group."""
    wire = check.api.wire
    if is_visible is not None:
        answer.topics = [
            topic
            for topic in answer.topics
            if is_visible(topic.name, getattr(topic, "topic_id", NO_ID))
        ]
    for topic in refused:
        if hasattr(topic, "topic_id"):
            told = wire.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            partition = wire.OffsetFetchResponsePartitions
        else:
            told = wire.OffsetFetchResponseTopic(name=topic.name)
            partition = wire.OffsetFetchResponsePartition
        told.partitions = [
            partition(index, -1, metadata="", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for index in topic.partition_indexes
        ]
        answer.topics.append(told)
    return answer


def offset_delete_refusals(check: Check, topics: list[Any], code: ErrorCode) -> list[Any]:
    wire = check.api.wire
    return [
        wire.OffsetDeleteResponseTopic(
            topic.name,
            [
                wire.OffsetDeleteResponsePartition(partition.partition_index, code)
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


# --- groups whose assignments the coordinator computes (KIP-848) ---------------------------------


def subscribed_topics(check: Check) -> Finish | Refused | None:
    """DESCRIBE on each topic that is subscribed to, or that a pattern matches.

    In the answer to a member that subscribes by a pattern, topics that it may not describe are left
    out.
    """
    names = check.request.subscribed_topic_names or ()
    if not all(may_describe(check, name) for name in names):
        return check.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def finish(answer: Any) -> Any:
        if answer.assignment is not None:
            answer.assignment.topic_partitions = [
                topic
                for topic in answer.assignment.topic_partitions
                if (name := check.topic_name(None, topic.topic_id)) is None
                or may_describe(check, name, quietly=True)
            ]
        return answer

    return finish


def assigned_topics(check: Check) -> Finish:
    """DESCRIBE on each topic that members of the group are assigned."""

    def finish(answer: Any) -> Any:
        described = check.api.wire.DescribedGroup
        for position, group in enumerate(answer.groups):
            names = {
                topic.topic_name
                for member in group.members
                for assignment in (member.assignment, getattr(member, "target_assignment", None))
                if assignment is not None
                for topic in assignment.topic_partitions
            }
            if not all(may_describe(check, name) for name in sorted(names)):
                answer.groups[position] = described(
                    group_id=group.group_id,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=_HIDDEN_TOPICS,
                )
        return answer

    return finish
