"""Rules about share groups and their offsets (KIP-932).

Does not depend on the rules of each API (`table.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.permissions.rules import NO_ID, Check, Each, Finish, Need, of_topics
from vdl.kafka.permissions.topic_rules import may_describe
from vdl.state.acls import AclOperation, AclResource

Refusals = Callable[[Check, list[Any], ErrorCode], list[Any]]


def described_group(check: Check, item: Any) -> Need | None:
    """Return the need of a group whose offsets are requested: DESCRIBE."""
    del check
    return AclOperation.DESCRIBE, AclResource.GROUP, item.group_id


def described_share_topics(check: Check) -> Finish:
    """DESCRIBE on each topic.

    Named topics are refused; of all topics of a group, those the client may not describe are left
    out.
    """
    names_all = {group.group_id for group in check.request.groups if group.topics is None}

    def finish(answer: Any) -> Any:
        for group in answer.groups:
            kept = []
            for topic in group.topics:
                if may_describe(check, topic.topic_name, quietly=group.group_id in names_all):
                    kept.append(topic)
                elif group.group_id not in names_all:
                    kept.append(_hidden(check, topic))
            group.topics = kept
        return answer

    return finish


def _hidden(check: Check, topic: Any) -> Any:
    """Return the refusal of a topic, which reveals nothing about it."""
    wire = check.api.wire
    return wire.DescribeShareGroupOffsetsResponseTopic(
        topic.topic_name,
        NO_ID,
        [
            wire.DescribeShareGroupOffsetsResponsePartition(
                partition.partition_index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            for partition in topic.partitions
        ],
    )


def each_share_topic(refusals: Refusals) -> Each:
    """Return a rule: each topic whose offsets are changed needs READ."""
    need = of_topics(AclOperation.READ, "topic_name")
    return Each("READ on each topic", "topics", "responses", need, refusals=refusals)


def altered_refusals(check: Check, topics: list[Any], code: ErrorCode) -> list[Any]:
    """Return refused topics as in AlterShareGroupOffsets."""
    wire = check.api.wire
    return [
        wire.AlterShareGroupOffsetsResponseTopic(
            topic.topic_name,
            NO_ID,
            [
                wire.AlterShareGroupOffsetsResponsePartition(partition.partition_index, code)
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]


def deleted_refusals(check: Check, topics: list[Any], code: ErrorCode) -> list[Any]:
    """Return refused topics as in DeleteShareGroupOffsets."""
    wire = check.api.wire
    return [
        wire.DeleteShareGroupOffsetsResponseTopic(topic.topic_name, NO_ID, code) for topic in topics
    ]
