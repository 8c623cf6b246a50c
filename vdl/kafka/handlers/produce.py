"""Produce (key 0): check each batch as Kafka does and append it to its partition's log.

* v0–v2: messages of magic 0 and 1 become one batch of magic 2 (`vdl.records.legacy`), which is
  checked as any other. v1 throttle time, v2 append time (KIP-32). librdkafka infers from v0 whether
  a broker knows compression (KAFKA-18659).
* v7: zstd (KIP-110). v8: error texts (KIP-467). v10: leader hints (KIP-951). v13: topic ids
  (KIP-516).

A batch is acknowledged when a majority has it on disk, with acks=all when `min.insync.replicas`
have it, too. acks=1 is answered like acks=all of a topic that asks for no more than a majority.
With acks=0 nothing is answered and an error closes the connection, as in Kafka; the request still
counts as in flight until its fate is known, so that its bytes are bounded.

A batch of a transaction is appended if that is open (KIP-98, KIP-890): the log stream has its
coordinator asked (`verification`) where it does not know. v12: the partition is added to it. Only
that producer's batches wait meanwhile.

A batch is appended only after every record in it was walked (`record_checks`): nothing is
acknowledged that a consumer could not read, and as many offsets are given as there are records. The
largest timestamp is the one found; where the header says another, it is corrected, as in Kafka. A
batch without any is filed under the time of its append, so that retention can age it.

Most batches are checked and appended in one step. Where one must be checked off the loop, the
request's batches behind it wait with it, and so do the connection's later requests: the log has
them in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from ids import GroupId
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later, Reply
from vdl.kafka.context import RequestContext
from vdl.kafka.host import Appended, LogStream, Verify
from vdl.kafka.lookup import Topic, find_topic, leader_endpoints, partition_group
from vdl.kafka.partitions.record_checks import Bounds, Codec, Recompressed, RecordsRefused, Verdict
from vdl.kafka.transactions.verification import IMPLICIT_FROM, produce_code, verification
from vdl.kafka.wire.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from vdl.records.batch import (
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_batch,
    patch_log_append_time,
    patch_max_timestamp,
    read_header,
)
from vdl.records.legacy import LAST_PRODUCE_VERSION, header_to_come, is_legacy

ACKS_ALL = -1
_ACKS = frozenset({ACKS_ALL, 0, 1})
_HINTS_FROM = 10
_TOPIC_IDS_FROM = 13


class _Placed:
    """One partition's batch on its way into the log."""

    __slots__ = (
        "answer", "copies_min", "group_id", "header", "log_append_time", "records", "verdict",
        "verify",
    )  # fmt: skip

    def __init__(
        self,
        group_id: GroupId,
        records: memoryview,
        header: BatchHeader,
        answer: PartitionProduceResponse,
        *,
        copies_min: int,
        log_append_time: bool,
        verify: Verify | None,
    ) -> None:
        self.verify = verify
        """Of a batch of a transaction: asks whether that is open."""
        self.copies_min = copies_min
        """Voters that are to have it on disk before it is acknowledged."""
        self.group_id = group_id
        self.records = records
        self.header = header
        self.answer = answer
        self.log_append_time = log_append_time
        """Whether it gets the time of its append."""
        self.verdict: Verdict | None = None
        """None while it is being checked."""

    def converted(self, batch: memoryview) -> None:
        """The batch that stands for what was sent."""
        self.records = batch
        self.header = read_header(batch)
        self.verdict = self.header.max_timestamp


class _Produce:
    """One request under way: its answer, and how many appends it waits for."""

    __slots__ = (
        "acks", "ctx", "deadline_ns", "is_late", "later", "line", "response", "transactional_id",
        "waiting",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        self.ctx = ctx
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.deadline_ns = ctx.deadline_ns(request.timeout_ms) - (ctx.received_ns - ctx.arrived_ns)
        """Counted from when the request was there: its client does not know when it started."""
        is_waited_for = request.acks != 0 and request.timeout_ms > 0
        self.is_late = is_waited_for and self.deadline_ns <= ctx.received_ns
        """Whether its client gave it up before it started."""
        self.response = ProduceResponse()
        self.later: Later | None = None
        self.waiting = 0
        """Batches whose fate is open."""
        self.line: deque[_Placed] = deque()
        """Batches that have not been appended: the first is being checked, the rest behind it."""

    def append(
        self, topic: Topic, data: PartitionProduceData, answer: PartitionProduceResponse
    ) -> None:
        """Check and append one partition's batch. Raises KafkaError for what is wrong with it."""
        group_id = partition_group(topic, data.index)
        host = self.ctx.server.host
        stream = host.stream(group_id)
        if stream is None or not stream.is_leader:
            if group_id <= host.coordinator_count:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "an internal topic")
            self.refuse_as_follower(group_id, answer)
            return
        try:
            self.check(topic, group_id, stream, data.records, answer)
        except KafkaError:
            answer.log_start_offset = stream.log_start_offset
            raise

    def check(
        self,
        topic: Topic,
        group_id: GroupId,
        stream: LogStream,
        records: object,
        answer: PartitionProduceResponse,
    ) -> None:
        """Check one batch and place it, now or when it is known to be sound. Raises KafkaError."""
        server = self.ctx.server
        rules = server.batch_rules.of(topic, server.config)
        bytes_max = rules.bytes_max
        assert records is None or type(records) is memoryview, type(records)
        version = self.ctx.api_version
        is_old = version <= LAST_PRODUCE_VERSION and is_legacy(records)
        if is_old:
            header = header_to_come()
        else:
            header = check_batch(records, produce_version=version, bytes_max=bytes_max)
        assert records is not None, "checked"
        if self.is_late and not header.has_producer_id:
            # To append it were work that nobody waits for, and the more the later it is. One of an
            # idempotent producer is appended: without it those behind it would be out of order, and
            # to repeat it costs nothing.
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "it came to be started too late")
        verify: Verify | None = None
        if header.attributes & TRANSACTIONAL_FLAG:
            verify = self.verification(header, group_id)
        log_append_time = rules.log_append_time
        bounds = rules.any_time if log_append_time else rules.bounds(server.host.agreed_ms())
        codec = rules.codec
        copies_min = rules.copies_min if self.acks == ACKS_ALL else 1
        placed = _Placed(
            group_id, records, header, answer,
            copies_min=copies_min, log_append_time=log_append_time, verify=verify,
        )  # fmt: skip
        checks = server.record_checks
        if is_old:
            self.convert(placed, stream, bytes_max, bounds, codec)
            return
        verdict = checks.check(records, header, bounds, codec) if not self.line else None
        self.waiting += 1
        if verdict is not None:
            placed.verdict = verdict
            self.place(placed, stream)
            return
        self.line.append(placed)
        checks.check_later(
            records, header, bounds, partial(self.checked, placed), codec, asker=self.ctx.asker
        )

    def verification(self, header: BatchHeader, group_id: GroupId) -> Verify:
        """How it is found out whether a batch's transaction is open. Raises KafkaError."""
        transactional_id = self.transactional_id
        if not header.has_producer_id:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a transaction has a producer")
        if transactional_id is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id is given"
            )
        return verification(
            self.ctx.server.host,
            transactional_id,
            header,
            group_id,
            version=self.ctx.api_version,
            deadline_ns=self.deadline_ns,
        )

    def convert(
        self,
        placed: _Placed,
        stream: LogStream,
        bytes_max: int,
        bounds: Bounds,
        codec: Codec | None,
    ) -> None:
        """Make a batch of a message set, and place it as `check` does. Raises KafkaError."""
        checks = self.ctx.server.record_checks
        batch = checks.convert(placed.records, bytes_max, bounds, codec) if not self.line else None
        self.waiting += 1
        if batch is not None:
            placed.converted(batch)
            self.place(placed, stream)
            return

        def done(outcome: memoryview | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self.checked(placed, outcome)
            else:
                placed.converted(outcome)
                self.checked(placed, placed.header.max_timestamp)

        self.line.append(placed)
        checks.convert_later(placed.records, bytes_max, bounds, done, codec, asker=self.ctx.asker)

    def checked(self, placed: _Placed, verdict: Verdict) -> None:
        """A batch that had left the loop is checked. Called from the loop, which a bug here must
        not reach."""
        try:
            placed.verdict = verdict
            while self.line and self.line[0].verdict is not None:
                placed = self.line.popleft()
                # Its topic may have gone meanwhile, and the log with it.
                self.place(placed, self.ctx.server.host.stream(placed.group_id))
        except Exception as error:  # noqa: BLE001 - the connection edge
            self.line.clear()
            if self.later is not None and not self.later.done:
                self.later.complete(error)
        if not self.line and self.later is not None:
            self.later.release()

    def place(self, placed: _Placed, stream: LogStream | None) -> None:
        """Append a checked batch, or set its error."""
        verdict, answer, group_id = placed.verdict, placed.answer, placed.group_id
        if not isinstance(verdict, int):
            if not isinstance(verdict, Recompressed):
                self.refused(verdict, answer, stream)
                return
            placed.records, placed.header = verdict.batch, verdict.header
            verdict = verdict.max_timestamp
        header = placed.header
        if stream is None:
            self.refuse_as_follower(group_id, answer)
            self.settled()
            return
        if placed.log_append_time:
            now_ms = self.ctx.server.host.agreed_ms()
            patch_log_append_time(placed.records, now_ms)
            header.max_timestamp = now_ms
            answer.log_append_time_ms = now_ms
        elif verdict != header.max_timestamp:
            patch_max_timestamp(placed.records, verdict)
            header.max_timestamp = verdict
        if header.max_timestamp == NO_TIMESTAMP:
            header.max_timestamp = self.ctx.server.host.agreed_ms()
        ctx = self.ctx
        done = partial(self.appended, group_id, answer, placed.log_append_time)
        ctx.server.read_throttle.produced(group_id, len(placed.records), ctx.received_ns)
        stream.append(
            placed.records,
            header,
            copies_min=placed.copies_min,
            deadline_ns=self.deadline_ns,
            done=done,
            verify=placed.verify,
            begins_epoch=placed.verify is not None and ctx.api_version >= IMPLICIT_FROM,
        )

    def refused(
        self,
        verdict: BaseException | None,
        answer: PartitionProduceResponse,
        stream: LogStream | None,
    ) -> None:
        """Set the error of a batch that will not be appended."""
        assert verdict is not None, "still being checked"
        if not isinstance(verdict, KafkaError):
            raise verdict
        answer.log_start_offset = -1 if stream is None else stream.log_start_offset
        refuse(answer, verdict)
        self.settled()

    def appended(
        self,
        group_id: GroupId,
        answer: PartitionProduceResponse,
        log_append_time: bool,
        appended: Appended,
    ) -> None:
        """The fate of one partition's batch. Called from the host's turn, which a bug here must not
        reach."""
        self.ctx.server.read_throttle.waiting -= 1
        try:
            if appended.duplicate_timestamp is not None and log_append_time:
                answer.log_append_time_ms = appended.duplicate_timestamp
            self.settle(group_id, answer, appended)
        except Exception as error:  # noqa: BLE001 - the connection edge
            if self.later is not None and not self.later.done:
                self.later.complete(error)

    def settle(
        self, group_id: GroupId, answer: PartitionProduceResponse, appended: Appended
    ) -> None:
        error = appended.error
        if error is ErrorCode.CONCURRENT_TRANSACTIONS:
            error = produce_code(error, self.ctx.api_version)
        answer.error_code = error
        answer.log_start_offset = appended.log_start_offset
        if error is ErrorCode.NONE:
            answer.base_offset = appended.base_offset
        else:
            answer.log_append_time_ms = -1
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.refuse_as_follower(group_id, answer)
        self.settled()

    def settled(self) -> None:
        """One batch less whose fate is open."""
        self.waiting -= 1
        if not self.waiting and self.later is not None:
            self.later.complete(self.answer())

    def refuse_as_follower(self, group_id: GroupId, answer: PartitionProduceResponse) -> None:
        """Not the leader; name the leader, from v10 on (KIP-951)."""
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
    refusal = ErrorCode.NONE
    if request.acks not in _ACKS:
        refusal = ErrorCode.INVALID_REQUIRED_ACKS
    by_id = ctx.api_version >= _TOPIC_IDS_FROM
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    seen: set[tuple[str, int]] = set()
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
            elif (topic.name, data.index) in seen:
                # Else one request could bring any number of small batches to check at once.
                answer.error_code = ErrorCode.INVALID_REQUEST
                answer.error_message = "a request has one batch a partition"
            else:
                seen.add((topic.name, data.index))
                try:
                    produce.append(topic, data, answer)
                except KafkaError as error:
                    refuse(answer, error)
    if not produce.waiting:
        return produce.answer()
    later = produce.later = Later()
    later.holding = bool(produce.line)
    return later


def fail_produce(
    request: ProduceRequest, _version: int, code: ErrorCode
) -> ProduceResponse | Reply:
    """`code` for each partition; with acks=0 a frame would be taken for the next answer."""
    if request.acks == 0:
        return Reply.CLOSE
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def refuse(answer: PartitionProduceResponse, error: KafkaError) -> None:
    """Set the error of a batch, and of its records (KIP-467)."""
    answer.error_code = error.code
    answer.error_message = error.message or None
    if isinstance(error, RecordsRefused):
        answer.record_errors = [
            BatchIndexAndErrorMessage(index, text) for index, text in error.record_errors
        ]
