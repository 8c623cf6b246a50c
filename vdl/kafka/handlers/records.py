"""DeleteRecords (key 21): forget everything below an offset (KIP-107).

The answer is given when the deletion is decided and applied here: from then on nobody who leads the
partition serves those records. Their room on disk is freed a little later.
"""

from __future__ import annotations

from functools import partial

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later
from vdl.kafka.context import LogStream, RequestContext
from vdl.kafka.handlers.partitions import find_topic, partition_group
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_OFFSET = -1


def handle_delete_records(
    ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Later:
    """Each partition has its own answer."""
    response = DeleteRecordsResponse()
    deadline_ns = ctx.deadline_ns(request.timeout_ms)
    wanted: list[tuple[LogStream, int, DeleteRecordsPartitionResult]] = []
    for topic in request.topics:
        results: list[DeleteRecordsPartitionResult] = []
        response.topics.append(DeleteRecordsTopicResult(topic.name, results))
        for partition in topic.partitions:
            result = DeleteRecordsPartitionResult(partition.partition_index, _NO_OFFSET)
            results.append(result)
            try:
                stream = _leader(ctx, topic.name, partition.partition_index)
            except KafkaError as error:
                result.error_code = error.code
            else:
                wanted.append((stream, partition.offset, result))
    if not wanted:
        return response
    later = Later()
    left = [len(wanted)]

    def decided(stream: LogStream, result: DeleteRecordsPartitionResult, error: ErrorCode) -> None:
        result.error_code = error
        if error is ErrorCode.NONE:
            result.low_watermark = stream.log_start_offset
        left[0] -= 1
        if not left[0]:
            later.complete(response)

    def answer(stream: LogStream, result: DeleteRecordsPartitionResult, error: ErrorCode) -> None:
        later.run(partial(decided, stream, result, error))

    for stream, offset, result in wanted:
        stream.delete_records(offset, deadline_ns=deadline_ns, done=partial(answer, stream, result))
    return later


def fail_delete_records(
    request: DeleteRecordsRequest, _version: int, code: ErrorCode
) -> DeleteRecordsResponse:
    """`code` for each partition."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(partition.partition_index, -1, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _leader(ctx: RequestContext, topic_name: str, index: int) -> LogStream:
    """The log of a partition this server leads. Raises KafkaError."""
    topic = find_topic(ctx, topic_name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stream = ctx.server.host.stream(partition_group(topic, index))
    if stream is None or not stream.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return stream
