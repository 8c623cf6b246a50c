"""DeleteRecords (key 21): delete all records below an offset (KIP-107).

The answer is sent when the deletion is decided and applied here. From then on no leader of the
partition serves those records. Their disk space is freed a little later.
"""

from __future__ import annotations

from functools import partial

from ids import Offset
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Gathering, Later
from vdl.kafka.configs.topic_configs import is_deleted
from vdl.kafka.context import RequestContext
from vdl.kafka.host import LogStream
from vdl.kafka.lookup import find_topic, is_internal, led_stream
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
    """Delete records; each partition has its own answer."""
    parts = Gathering(DeleteRecordsResponse())
    deadline_ns = ctx.deadline_ns(request.timeout_ms)
    for topic in request.topics:
        results: list[DeleteRecordsPartitionResult] = []
        parts.response.topics.append(DeleteRecordsTopicResult(topic.name, results))
        for partition in topic.partitions:
            result = DeleteRecordsPartitionResult(partition.partition_index, _NO_OFFSET)
            results.append(result)
            try:
                _check_policy(ctx, topic.name)
                stream = led_stream(ctx, topic.name, partition.partition_index)
            except KafkaError as error:
                result.error_code = error.code
            else:
                parts.expect()
                done = partial(_decided, parts, stream, result)
                stream.delete_records(Offset(partition.offset), deadline_ns=deadline_ns, done=done)
    return parts.result()


def _check_policy(ctx: RequestContext, name: str) -> None:
    """Raise KafkaError for an internal topic, or one that is only compacted.

    A compacted topic must keep the newest record of each key.
    """
    if is_internal(ctx, name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    topic = find_topic(ctx, name)
    if topic is not None and not is_deleted(topic.configs, ctx.server.config):
        raise KafkaError(ErrorCode.POLICY_VIOLATION)


def _decided(
    parts: Gathering[DeleteRecordsResponse],
    stream: LogStream,
    result: DeleteRecordsPartitionResult,
    error: ErrorCode,
) -> None:
    def fill() -> None:
        result.error_code = error
        if error is ErrorCode.NONE:
            result.low_watermark = stream.log_start_offset
        parts.arrived()

    parts.later.run(fill)


def fail_delete_records(
    request: DeleteRecordsRequest, _version: int, code: ErrorCode
) -> DeleteRecordsResponse:
    """Return `code` for each partition."""
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
