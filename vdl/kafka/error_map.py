"""The one map from what went wrong inside to what a client is told.

`code_of` turns an exception of any layer into a Kafka code. `failure` builds the answer of an API
whose request failed as a whole: every API says "error" at another place, so the table says where.

Rule: a code that a client takes as final is used only where the outcome is known. What is not
understood is UNKNOWN_SERVER_ERROR, which promises nothing; what may have happened is
REQUEST_TIMED_OUT.

Must not know: which handler failed, or why.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from segments.api import (
    Compacted,
    CorruptRecord,
    NotInMemory,
    OffsetOutOfRange,
    ReadRefused,
    StorageError,
    Unavailable,
)
from vdl.errors import ErrorCode, KafkaError

_STORAGE_CODES: dict[type[BaseException], ErrorCode] = {
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    Compacted: ErrorCode.OFFSET_OUT_OF_RANGE,
    Unavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    NotInMemory: ErrorCode.KAFKA_STORAGE_ERROR,
    ReadRefused: ErrorCode.KAFKA_STORAGE_ERROR,
    CorruptRecord: ErrorCode.KAFKA_STORAGE_ERROR,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
}


def code_of(error: BaseException) -> ErrorCode:
    """The Kafka code of an exception that a handler met."""
    if isinstance(error, KafkaError):
        return error.code
    for kind in type(error).__mro__:
        code = _STORAGE_CODES.get(kind)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def failure(api_key: int, request: Any, version: int, code: ErrorCode) -> Any:
    """The response of the API that says `code` wherever the request could have been answered."""
    build = _FAILURES.get(api_key)
    if build is not None:
        return build(request, version, code)
    name = _TOP_LEVEL[api_key]
    module = import_module(f"vdl.kafka.wire.{name}")
    response = getattr(module, "".join(word.title() for word in name.split("_")) + "Response")
    return response(error_code=code)


_TOP_LEVEL = {
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    16: "list_groups",
    18: "api_versions",
    22: "init_producer_id",
    60: "describe_cluster",
}
"""APIs whose response has an error code of its own, and their modules."""


def _produce(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import produce as wire

    del version
    return wire.ProduceResponse(
        responses=[
            wire.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    wire.PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import fetch as wire

    if version >= 7:
        return wire.FetchResponse(error_code=code)
    return wire.FetchResponse(
        responses=[
            wire.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    wire.PartitionData(
                        partition_index=partition.partition, error_code=code, high_watermark=-1
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import list_offsets as wire

    del version
    return wire.ListOffsetsResponse(
        topics=[
            wire.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    wire.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_for_leader_epoch(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import offset_for_leader_epoch as wire

    del version
    return wire.OffsetForLeaderEpochResponse(
        topics=[
            wire.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    wire.EpochEndOffset(error_code=code, partition=partition.partition)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _metadata(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import metadata as wire

    if version >= 13:
        return wire.MetadataResponse(error_code=code)
    return wire.MetadataResponse(
        topics=[
            wire.MetadataResponseTopic(
                error_code=code, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in request.topics or ()
        ]
    )


def _offset_commit(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import offset_commit as wire

    del version
    return wire.OffsetCommitResponse(
        topics=[
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    wire.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import offset_fetch as wire

    if version >= 8:
        return wire.OffsetFetchResponse(
            groups=[
                wire.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
                for group in request.groups
            ]
        )
    # v2 to v7 have a place for all of it, where not every client looks: a partition without an
    # error of its own reads as one in which nothing was ever committed.
    response = wire.OffsetFetchResponse(error_code=code)
    for topic in request.topics or ():
        response.topics.append(
            wire.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    wire.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
    return response


def _find_coordinator(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import find_coordinator as wire

    if version >= 4:
        return wire.FindCoordinatorResponse(
            coordinators=[
                wire.Coordinator(key=key, node_id=-1, port=-1, error_code=code)
                for key in request.coordinator_keys
            ]
        )
    return wire.FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)


def _describe_groups(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import describe_groups as wire

    del version
    return wire.DescribeGroupsResponse(
        groups=[wire.DescribedGroup(error_code=code, group_id=group) for group in request.groups]
    )


def _delete_groups(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import delete_groups as wire

    del version
    return wire.DeleteGroupsResponse(
        results=[
            wire.DeletableGroupResult(group_id=group, error_code=code)
            for group in request.groups_names
        ]
    )


def _create_topics(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import create_topics as wire

    del version
    return wire.CreateTopicsResponse(
        topics=[
            wire.CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics
        ]
    )


def _delete_topics(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import delete_topics as wire

    if version >= 6:
        results = [
            wire.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        ]
    else:
        results = [
            wire.DeletableTopicResult(name=name, error_code=code) for name in request.topic_names
        ]
    return wire.DeleteTopicsResponse(responses=results)


def _describe_configs(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import describe_configs as wire

    del version
    return wire.DescribeConfigsResponse(
        results=[
            wire.DescribeConfigsResult(
                error_code=code,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _delete_records(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import delete_records as wire

    del version
    return wire.DeleteRecordsResponse(
        topics=[
            wire.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    wire.DeleteRecordsPartitionResult(partition.partition_index, -1, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _alter_configs(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import alter_configs as wire

    del version
    return wire.AlterConfigsResponse(responses=_resources(wire, request, code))


def _incremental_alter_configs(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import incremental_alter_configs as wire

    del version
    return wire.IncrementalAlterConfigsResponse(responses=_resources(wire, request, code))


def _resources(wire: Any, request: Any, code: ErrorCode) -> list[Any]:
    made = wire.AlterConfigsResourceResponse
    return [made(code, None, r.resource_type, r.resource_name) for r in request.resources]


def _describe_topic_partitions(request: Any, version: int, code: ErrorCode) -> Any:
    from vdl.kafka.wire import describe_topic_partitions as wire

    del version
    return wire.DescribeTopicPartitionsResponse(
        topics=[
            wire.DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name)
            for topic in request.topics
        ]
    )


_FAILURES: dict[int, Callable[[Any, int, ErrorCode], Any]] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    15: _describe_groups,
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    23: _offset_for_leader_epoch,
    32: _describe_configs,
    33: _alter_configs,
    42: _delete_groups,
    44: _incremental_alter_configs,
    75: _describe_topic_partitions,
}
