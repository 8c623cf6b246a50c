"""Produce (key 0): check each batch as Kafka does and append it to its partition's log.

* v0–v2: the message formats of that time are refused; a batch of today's format is taken. They are
  advertised because librdkafka infers from v0 whether a broker knows compression (KAFKA-18659).
* v7: zstd (KIP-110). v8: error texts (KIP-467). v10: leader hints (KIP-951). v13: topic ids
  (KIP-516).

There is one kind of acknowledgement: a majority has the batch on disk. acks=1 is answered like
acks=all. With acks=0 nothing is answered and an error closes the connection, as in Kafka; the
request still counts as in flight until its fate is known, so that its bytes are bounded.

Transactional batches are refused with INVALID_TXN_STATE: no transaction can be open, because
no transactional id is ever given a producer id.

Records are opaque: what Kafka finds wrong inside a batch (a varint, a header) is stored and
returned as it was sent. A timestamp is checked by the batch's largest, and by its first for the
lower bound.
"""

from __future__ import annotations

from functools import partial

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.api import Later, Reply
from vdl.kafka.context import Appended, LogStream, RequestContext
from vdl.kafka.handlers.partitions import (
    Topic,
    find_topic,
    leader_endpoints,
    partition_group,
    topic_setting,
)
from vdl.kafka.topic_configs import (
    MAX_MESSAGE_BYTES,
    TIMESTAMP_AFTER_MAX_MS,
    TIMESTAMP_BEFORE_MAX_MS,
    TIMESTAMP_TYPE,
)
from vdl.kafka.wire.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from vdl.records import (
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_batch,
    patch_log_append_time,
)

_ACKS = frozenset({-1, 0, 1})
_HINTS_FROM = 10
_TOPIC_IDS_FROM = 13
_NO_TIMESTAMP = -1
_NO_LIMIT_MS = (1 << 63) - 1


class _Produce:
    """One request under way: its answer, and how many appends it waits for."""

    __slots__ = ("acks", "ctx", "deadline_ns", "later", "response", "waiting")

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        self.ctx = ctx
        self.acks = request.acks
        self.deadline_ns = ctx.deadline_ns(request.timeout_ms)
        self.response = ProduceResponse()
        self.later: Later | None = None
        self.waiting = 0

    def append(
        self, topic: Topic, data: PartitionProduceData, answer: PartitionProduceResponse
    ) -> None:
        """Check and append one partition's batch. Raises KafkaError for what is wrong with it."""
        group_id = partition_group(topic, data.index)
        host = self.ctx.server.host
        stream: LogStream | None = host.stream(group_id)
        if stream is None or not stream.is_leader:
            self.refuse_as_follower(group_id, answer)
            return
        bytes_max = topic_setting(
            topic, MAX_MESSAGE_BYTES, self.ctx.server.config.message_max_bytes
        )
        records = data.records
        assert records is None or type(records) is memoryview, type(records)
        header = check_batch(records, produce_version=self.ctx.api_version, bytes_max=bytes_max)
        assert records is not None, "checked"
        if header.attributes & TRANSACTIONAL_FLAG:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported")
        self.check_time(topic, header, records, answer)
        self.waiting += 1
        stream.append(
            records,
            header,
            deadline_ns=self.deadline_ns,
            done=partial(self.appended, group_id, answer),
        )

    def check_time(
        self,
        topic: Topic,
        header: BatchHeader,
        records: memoryview,
        answer: PartitionProduceResponse,
    ) -> None:
        """Refuse timestamps out of bounds (KIP-32, KIP-937), or give the batch the time of now."""
        now_ms = self.ctx.server.clock.wall_ms()
        if topic.configs and topic.configs.get(TIMESTAMP_TYPE, "").lower() == "logappendtime":
            patch_log_append_time(records, now_ms)
            header.max_timestamp = now_ms
            answer.log_append_time_ms = now_ms
            return
        newest, first = header.max_timestamp, header.base_timestamp
        after_ms = topic_setting(topic, TIMESTAMP_AFTER_MAX_MS, 3_600_000)
        before_ms = topic_setting(topic, TIMESTAMP_BEFORE_MAX_MS, _NO_LIMIT_MS)
        if (newest != _NO_TIMESTAMP and newest - now_ms > after_ms) or (
            first != _NO_TIMESTAMP and now_ms - first > before_ms
        ):
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, "a timestamp of the batch is out of the allowed range"
            )

    def appended(self, group_id: int, answer: PartitionProduceResponse, appended: Appended) -> None:
        """The fate of one partition's batch. Called from the host's turn, which a bug here must not
        reach."""
        try:
            self.settle(group_id, answer, appended)
        except Exception as error:  # noqa: BLE001 - the connection edge
            if self.later is not None and not self.later.done:
                self.later.complete(error)

    def settle(self, group_id: int, answer: PartitionProduceResponse, appended: Appended) -> None:
        error = appended.error
        answer.error_code = error
        answer.log_start_offset = appended.log_start_offset
        if error is ErrorCode.NONE:
            answer.base_offset = appended.base_offset
        else:
            answer.log_append_time_ms = -1
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.refuse_as_follower(group_id, answer)
        self.waiting -= 1
        if not self.waiting and self.later is not None:
            self.later.complete(self.answer())

    def refuse_as_follower(self, group_id: int, answer: PartitionProduceResponse) -> None:
        """Not the leader; say who is, to clients that listen (KIP-951)."""
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        ctx = self.ctx
        if ctx.api_version < _HINTS_FROM:
            return
        leader, epoch = ctx.server.host.leader_of(group_id)
        if leader < 0:
            return
        answer.current_leader = LeaderIdAndEpoch(leader, epoch)
        known = self.response.node_endpoints
        if all(node.node_id != leader for node in known):
            known.extend(NodeEndpoint(*row) for row in leader_endpoints(ctx, leader))

    def answer(self) -> ProduceResponse | Reply:
        """What the client gets once no append is awaited."""
        if self.acks:
            return self.response
        if any(
            partition.error_code
            for topic in self.response.responses
            for partition in topic.partition_responses
        ):
            return Reply.CLOSE
        return Reply.NONE


def handle_produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | Reply | Later:
    """Append what is sound; each partition has its own answer."""
    produce = _Produce(ctx, request)
    ctx.server.reader_pace.produced_ns = ctx.received_ns
    refusal = ErrorCode.NONE
    if request.acks not in _ACKS:
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    elif request.transactional_id is not None:
        refusal = ErrorCode.INVALID_TXN_STATE
    by_id = ctx.api_version >= _TOPIC_IDS_FROM
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic_data in request.topic_data:
        topic = find_topic(ctx, topic_data.topic_id if by_id else topic_data.name)
        answers: list[PartitionProduceResponse] = []
        produce.response.responses.append(
            TopicProduceResponse(topic_data.name, topic_data.topic_id, answers)
        )
        for data in topic_data.partition_data:
            answer = PartitionProduceResponse(data.index, ErrorCode.NONE, -1)
            answers.append(answer)
            if refusal:
                answer.error_code = refusal
            elif topic is None:
                answer.error_code = unknown
            else:
                try:
                    produce.append(topic, data, answer)
                except KafkaError as error:
                    answer.error_code = error.code
                    answer.error_message = error.message or None
    if not produce.waiting:
        return produce.answer()
    later = produce.later = Later()
    return later
