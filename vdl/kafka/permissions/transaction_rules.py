"""Rules about transactions.

Does not depend on the rules of each API (`table.py`).
"""

from __future__ import annotations

from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.permissions.rules import Check, Finish, Refused
from vdl.kafka.permissions.topic_rules import may_describe
from vdl.state.acls import AclOperation, AclResource

_BATCHED_FROM = 4
"""AddPartitionsToTxn: first version that only brokers use."""


def added_partitions(check: Check) -> Refused | None:
    """WRITE on the transactional id and on each topic; from v4 on CLUSTER_ACTION on the cluster.

    All topics are added or none, so allowed topics get OPERATION_NOT_ATTEMPTED.
    """
    request = check.request
    if check.ctx.api_version >= _BATCHED_FROM:
        if check.may_to_cluster(AclOperation.CLUSTER_ACTION):
            return None
        return check.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    name = request.v3_and_below_transactional_id
    if not check.may(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, name):
        return check.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused = {
        topic.name
        for topic in request.v3_and_below_topics
        if not check.may(AclOperation.WRITE, AclResource.TOPIC, topic.name)
    }
    if not refused:
        return None
    answer = check.failure(request, ErrorCode.OPERATION_NOT_ATTEMPTED)
    for topic in answer.results_by_topic_v3_and_below:
        if topic.name in refused:
            for partition in topic.results_by_partition:
                partition.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return Refused(answer)


def written_markers(check: Check) -> Refused | None:
    """ALTER or CLUSTER_ACTION on the cluster."""
    if check.may_to_cluster(AclOperation.ALTER, quietly=True):
        return None
    if check.may_to_cluster(AclOperation.CLUSTER_ACTION):
        return None
    return check.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def described_transactions(check: Check) -> Finish:
    """DESCRIBE on each of its topics in the answer."""

    def finish(answer: Any) -> Any:
        for transaction in answer.transaction_states:
            transaction.topics = [
                topic
                for topic in transaction.topics
                if may_describe(check, topic.topic, quietly=True)
            ]
        return answer

    return finish


def listed_transactions(check: Check) -> Finish:
    """DESCRIBE on each transactional id in the answer."""

    def finish(answer: Any) -> Any:
        answer.transaction_states = [
            one
            for one in answer.transaction_states
            if check.may(
                AclOperation.DESCRIBE,
                AclResource.TRANSACTIONAL_ID,
                one.transactional_id,
                quietly=True,
            )
        ]
        return answer

    return finish
