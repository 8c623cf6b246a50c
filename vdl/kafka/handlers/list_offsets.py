"""ListOffsets (key 2) and OffsetForLeaderEpoch (key 23): beginning and end of a partition's log.

ListOffsets: v0 the end of the log and the starts of segments, newest first: records up to a time
lie before the returned offsets, with the precision of segments. v1 one offset per partition
(KIP-79), v2 isolation levels, v4 leader epochs (KIP-320), v6 flexible, v7 the record with the
largest timestamp (KIP-734), v8 the start of the records on local disks (KIP-405), v9 the end of the
records in remote storage (KIP-1005), v10 a timeout for look-ups there (KIP-1075), v11 the start of
the records to be uploaded (KIP-1023). There is no remote storage: all records are local, none are
remote or to be uploaded, and the timeout bounds nothing.

Both APIs answer only after a quorum confirmed that this server still leads. The start of a deposed
leader's log, or of a log that has not applied the last deletion, would expose deleted records; its
end would make a consumer skip records; its epochs would make a consumer believe that records it
read were truncated. Under READ_COMMITTED records behind the last stable offset are not visible
(KIP-98): the log ends there, and a record found behind it is not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ids import Offset
from segments.api import StorageError
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Gathering, Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.error_map import code_of
from vdl.kafka.host import LogStream, TimedOffset
from vdl.kafka.lookup import led_stream
from vdl.kafka.wire import list_offsets as offsets_wire
from vdl.kafka.wire import offset_for_leader_epoch as epochs_wire

LATEST = -1
EARLIEST = -2
LARGEST_TIME = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SPECIAL_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    LARGEST_TIME: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""First version in which a negative timestamp has a meaning."""
_EPOCHS_FROM = 4
_READ_COMMITTED = 1
_NO_VERSION = 1 << 15
_NOT_A_REPLICA = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
"""Replicas use the peer port: a client that claims to be a replica is refused."""


Asked = TypeVar("Asked", offsets_wire.ListOffsetsResponse, epochs_wire.OffsetForLeaderEpochResponse)


def _confirm(
    ctx: RequestContext,
    parts: Gathering[Asked],
    stream: LogStream,
    then: Callable[[bool], None],
) -> None:
    """Have a quorum confirm that `stream` leads. `then` must finally call `parts.arrived`."""
    parts.expect()
    stream.read_index(
        deadline_ns=ctx.deadline_ns(ctx.server.config.read_timeout_ms),
        done=lambda confirmed: parts.later.run(lambda: then(confirmed)),
    )


def handle_list_offsets(
    ctx: RequestContext, request: offsets_wire.ListOffsetsRequest
) -> offsets_wire.ListOffsetsResponse | Later:
    """Return the earliest or latest offset, or the first at or after a time.

    Each partition may be requested once.
    """
    if request.replica_id >= 0:
        return fail_list_offsets(request, ctx.api_version, _NOT_A_REPLICA)
    parts = Gathering(offsets_wire.ListOffsetsResponse())
    times = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    for topic in request.topics:
        answers: list[offsets_wire.ListOffsetsPartitionResponse] = []
        parts.response.topics.append(offsets_wire.ListOffsetsTopicResponse(topic.name, answers))
        for asked in topic.partitions:
            answer = offsets_wire.ListOffsetsPartitionResponse(asked.partition_index)
            answers.append(answer)
            try:
                if times[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                timestamp = asked.timestamp
                if timestamp < 0 < ctx.api_version < _SPECIAL_FROM.get(timestamp, _NO_VERSION):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
                stream = led_stream(
                    ctx, topic.name, asked.partition_index, asked.current_leader_epoch
                )
                if ctx.api_version == 0:
                    _find_segments(ctx, parts, stream, asked, answer)
                else:
                    is_committed = request.isolation_level == _READ_COMMITTED
                    then = partial(
                        _confirmed_end, ctx, parts, stream, timestamp, answer, is_committed
                    )
                    _confirm(ctx, parts, stream, then)
            except KafkaError as error:
                answer.error_code = error.code
    return parts.result()


def fail_list_offsets(
    request: offsets_wire.ListOffsetsRequest, _version: int, code: ErrorCode
) -> offsets_wire.ListOffsetsResponse:
    """Return `code` for each partition."""
    return offsets_wire.ListOffsetsResponse(
        topics=[
            offsets_wire.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    offsets_wire.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _find_segments(
    ctx: RequestContext,
    parts: Gathering[offsets_wire.ListOffsetsResponse],
    stream: LogStream,
    asked: offsets_wire.ListOffsetsPartition,
    answer: offsets_wire.ListOffsetsPartitionResponse,
) -> None:
    if asked.max_num_offsets < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    def confirmed(leads: bool) -> None:
        if leads:
            stream.segment_starts(lambda starts: parts.later.run(partial(found, starts)))
        else:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            parts.arrived()

    def found(starts: list[tuple[Offset, int]] | StorageError) -> None:
        if isinstance(starts, StorageError):
            answer.error_code = code_of(starts)
        else:
            end = stream.high_watermark
            begin = stream.log_start_offset
            now_ms = ctx.server.host.agreed_ms()
            offsets = offsets_before(asked.timestamp, starts, begin=begin, end=end, now_ms=now_ms)
            answer.old_style_offsets = [*offsets[: asked.max_num_offsets]]
        parts.arrived()

    _confirm(ctx, parts, stream, confirmed)


def offsets_before(
    timestamp: int, starts: list[tuple[Offset, int]], *, begin: Offset, end: Offset, now_ms: int
) -> list[Offset]:
    """Return the answer of v0, newest first.

    `starts` is that of `LogStream.segment_starts`; [begin, end) can be read now. A time selects the
    newest segment of which all records are as old.
    """
    if timestamp == EARLIEST:
        return [begin]
    offsets = [
        start for start, newest_ms in starts if newest_ms <= timestamp or timestamp == LATEST
    ]
    offsets = [start for start in offsets if begin <= start < end]
    if timestamp == LATEST or now_ms <= timestamp:
        offsets.append(end)
    return offsets[::-1]


def _confirmed_end(
    ctx: RequestContext,
    parts: Gathering[offsets_wire.ListOffsetsResponse],
    stream: LogStream,
    timestamp: int,
    answer: offsets_wire.ListOffsetsPartitionResponse,
    is_committed: bool,
    confirmed: bool,
) -> None:
    def found(record: TimedOffset | StorageError) -> None:
        end = stream.last_stable_offset if is_committed else stream.high_watermark
        if not isinstance(record, StorageError) and record.offset >= end:
            parts.later.run(parts.arrived)  # not visible under this isolation level yet
            return
        parts.later.run(partial(_found_time, ctx, parts, answer, record))

    if not confirmed:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = stream.log_start_offset
        if ctx.api_version >= _EPOCHS_FROM:
            stream.earliest_epoch(
                lambda epoch: parts.later.run(partial(_found_epoch, parts, answer, epoch))
            )
            return
    elif timestamp == LATEST:
        answer.offset = stream.last_stable_offset if is_committed else stream.high_watermark
        if ctx.api_version >= _EPOCHS_FROM:
            answer.leader_epoch = stream.term
    elif timestamp == LARGEST_TIME:
        stream.offset_of_largest_time(found)
        return
    elif timestamp >= 0:
        stream.offset_for_time(timestamp, found)
        return
    parts.arrived()


def _found_epoch(
    parts: Gathering[offsets_wire.ListOffsetsResponse],
    answer: offsets_wire.ListOffsetsPartitionResponse,
    epoch: int,
) -> None:
    answer.leader_epoch = epoch
    parts.arrived()


def _found_time(
    ctx: RequestContext,
    parts: Gathering[offsets_wire.ListOffsetsResponse],
    answer: offsets_wire.ListOffsetsPartitionResponse,
    found: TimedOffset | StorageError,
) -> None:
    if isinstance(found, StorageError):
        answer.error_code = code_of(found)
    elif found.offset >= 0:
        answer.offset = found.offset
        answer.timestamp = found.timestamp
        if ctx.api_version >= _EPOCHS_FROM:
            answer.leader_epoch = found.leader_epoch
    parts.arrived()


def handle_offset_for_leader_epoch(
    ctx: RequestContext, request: epochs_wire.OffsetForLeaderEpochRequest
) -> epochs_wire.OffsetForLeaderEpochResponse | Later:
    """Return the end of the largest epoch up to the requested one, by which clients find
    truncation."""
    if request.replica_id >= 0:
        return fail_offset_for_leader_epoch(request, ctx.api_version, _NOT_A_REPLICA)
    parts = Gathering(epochs_wire.OffsetForLeaderEpochResponse())
    for topic in request.topics:
        answers: list[epochs_wire.EpochEndOffset] = []
        parts.response.topics.append(epochs_wire.OffsetForLeaderTopicResult(topic.topic, answers))
        for asked in topic.partitions:
            answer = epochs_wire.EpochEndOffset(partition=asked.partition)
            answers.append(answer)
            try:
                stream = led_stream(ctx, topic.topic, asked.partition, asked.current_leader_epoch)
            except KafkaError as error:
                answer.error_code = error.code
            else:
                then = partial(_confirmed_epoch, parts, stream, asked.leader_epoch, answer)
                _confirm(ctx, parts, stream, then)
    return parts.result()


def fail_offset_for_leader_epoch(
    request: epochs_wire.OffsetForLeaderEpochRequest, _version: int, code: ErrorCode
) -> epochs_wire.OffsetForLeaderEpochResponse:
    """Return `code` for each partition."""
    return epochs_wire.OffsetForLeaderEpochResponse(
        topics=[
            epochs_wire.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    epochs_wire.EpochEndOffset(error_code=code, partition=partition.partition)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _confirmed_epoch(
    parts: Gathering[epochs_wire.OffsetForLeaderEpochResponse],
    stream: LogStream,
    epoch: int,
    answer: epochs_wire.EpochEndOffset,
    confirmed: bool,
) -> None:
    if confirmed:
        answer.leader_epoch, answer.end_offset = stream.end_offset_for_epoch(epoch)
    else:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    parts.arrived()
