"""DescribeLogDirs (key 35) and AlterReplicaLogDirs (34): directories of this server's replicas.

DescribeLogDirs: v1 the lag of replicas (KIP-113), v3 an error for the request, v4 size and free
space of the file system (KIP-827), v5 marks directories that take no new replicas, of which there
are none here.

A server has one data directory. A replica that should move into it is already there; any other
directory is unknown. Sizes are those of committed entries. The lag of a replica is defined as in
Kafka: the distance of its end from the high watermark it knows. Here no replica knows a high
watermark beyond its end.

Does not depend on how sizes are determined.
"""

from __future__ import annotations

from collections.abc import Iterable

from ids import GroupId
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later, Unbuilt
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.error_map import code_of
from vdl.kafka.lookup import find_topic, partition_group
from vdl.kafka.partitions.log_sizes import Sizes
from vdl.kafka.wire.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from vdl.kafka.wire.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle_describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> Later:
    """Return the one directory, with the requested replicas in it; null means all."""
    later = Later()
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)

    def found(sizes: Sizes) -> None:
        later.run(lambda: later.complete(Unbuilt(lambda: _description(ctx, wanted, sizes))))

    ctx.server.log_sizes.look_up(_groups(ctx, wanted), found)
    return later


def _groups(ctx: RequestContext, wanted: dict[str, set[int]] | None) -> Iterable[GroupId]:
    """Return the groups of the requested partitions that exist; None means all."""
    catalog = ctx.server.host.catalog
    if wanted is None:
        return catalog.groups
    return [
        groups[index]
        for name, indexes in wanted.items()
        if name in catalog.topics
        for groups in (catalog.topics[name].partitions,)
        for index in indexes
        if 0 <= index < len(groups)
    ]


def _description(
    ctx: RequestContext, wanted: dict[str, set[int]] | None, sizes: Sizes
) -> DescribeLogDirsResponse:
    result = DescribeLogDirsResult(
        log_dir=ctx.server.log_directory,
        total_bytes=sizes.total_bytes,
        usable_bytes=sizes.usable_bytes,
    )
    if sizes.error is not None:
        result.error_code = code_of(sizes.error)
        return DescribeLogDirsResponse(results=[result])
    topics = ctx.server.host.catalog.topics
    names = topics if wanted is None else [name for name in wanted if name in topics]
    for name in sorted(names):
        groups = topics[name].partitions
        indexes = range(len(groups)) if wanted is None else sorted(wanted[name])
        partitions = [
            DescribeLogDirsPartition(index, sizes.by_group[groups[index]])
            for index in indexes
            if 0 <= index < len(groups) and groups[index] in sizes.by_group
        ]
        if partitions:
            result.topics.append(DescribeLogDirsTopic(name, partitions))
    return DescribeLogDirsResponse(results=[result])


def handle_alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Accept each replica that should be in the one directory.

    A replica named twice has one answer, that for the last directory named.
    """
    answers: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                error = _move(ctx, directory.path, topic.name, index)
                answers.setdefault(topic.name, {})[index] = error
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                name,
                [AlterReplicaLogDirPartitionResult(index, error) for index, error in found.items()],
            )
            for name, found in answers.items()
        ]
    )


def _move(ctx: RequestContext, path: str, topic_name: str, index: int) -> ErrorCode:
    if path != ctx.server.log_directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = find_topic(ctx, topic_name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        stream = ctx.server.host.stream(partition_group(topic, index))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE if stream is not None else ErrorCode.REPLICA_NOT_AVAILABLE


def fail_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, _version: int, code: ErrorCode
) -> AlterReplicaLogDirsResponse:
    """Return `code` for each partition."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic.name,
                [AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )
