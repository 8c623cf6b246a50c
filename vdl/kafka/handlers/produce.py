"""Produce (key 0): check each batch as Kafka does and append it to its partition's log.

* v0–v2: messages of magic 0 and 1 become one batch of magic 2 (`vdl.records.legacy`), which is
  checked as any other. v1 throttle time, v2 append time (KIP-32). librdkafka infers from v0 whether
  a broker supports compression (KAFKA-18659).
* v7: zstd (KIP-110). v8: error texts (KIP-467). v10: leader hints (KIP-951). v13: topic ids
  (KIP-516).

A batch is acknowledged when a majority has it on disk. With acks=all, `min.insync.replicas` voters
must have it, too. acks=1 is answered like acks=all of a topic that requires no more than a
majority. With acks=0 no answer is sent and an error closes the connection, as in Kafka; the request
still counts as in flight until its outcome is known, so that its bytes are bounded.

A batch of a transaction is appended if the transaction is open (KIP-98, KIP-890). Where the log
stream does not know, it queries the transaction's coordinator (`verification`). v12: the query also
adds the partition to the transaction. Only that producer's batches wait meanwhile.

A batch is appended only after every record in it was walked (`record_checks`): every acknowledged
record is readable, and as many offsets are assigned as there are records. The largest timestamp is
the one found; if the header has another one, it is corrected, as in Kafka. For retention, a batch
without timestamps has the time of its append.

Most batches are checked and appended in one step. If a batch must be checked off the loop, the
request's batches behind it and the connection's later requests wait for it: the log has them in the
order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from ids import GroupId
from rpc.traces import TracedRequest
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
from vdl.logstream.group.replica_ids import server_of
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
        """Query that verifies that the batch's transaction is open; None outside a transaction."""
        self.copies_min = copies_min
        """Voters that must have the batch on disk before it is acknowledged."""
        self.group_id = group_id
        self.records = records
        self.header = header
        self.answer = answer
        self.log_append_time = log_append_time
        """True if the batch gets the time of its append."""
        self.verdict: Verdict | None = None
        """Result of the check; None while the batch is being checked."""

    def converted(self, batch: memoryview) -> None:
        """Replace the message set that was sent by the batch made of it."""
        self.records = batch
        self.header = read_header(batch)
        self.verdict = self.header.max_timestamp


class _Produce:
    """One request under way: its answer, and the number of appends it waits for."""

    __slots__ = (
        "acks", "ctx", "deadline_ns", "is_late", "later", "line", "placed_ns", "response",
        "settled_group", "settled_last", "transactional_id", "waiting",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        self.ctx = ctx
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.deadline_ns = ctx.deadline_ns(request.timeout_ms) - (ctx.received_ns - ctx.arrived_ns)
        """Counted from the request's arrival, because its client does not know when it started."""
        is_waited_for = request.acks != 0 and request.timeout_ms > 0
        self.is_late = is_waited_for and self.deadline_ns <= ctx.received_ns
        """True if the client's timeout ended before the request started."""
        self.response = ProduceResponse()
        self.later: Later | None = None
        self.waiting = 0
        """Number of batches whose outcome is open."""
        self.line: deque[_Placed] = deque()
        """Batches that are not appended yet: the first is being checked, the rest waits behind
        it."""
        self.placed_ns = 0
        """Time at which the last batch that was checked off the loop was appended; 0: none."""
        self.settled_last: Appended | None = None
        """Outcome of the append that was decided last, in `settled_group`; None: none yet."""
        self.settled_group = GroupId(-1)

    def append(
        self, topic: Topic, data: PartitionProduceData, answer: PartitionProduceResponse
    ) -> None:
        """Check and append one partition's batch. Raises KafkaError if the batch is invalid."""
        group_id = partition_group(topic, data.index)
        host = self.ctx.server.host
        stream = host.stream(group_id)
        if stream is None or not stream.is_leader:
            if group_id <= host.coordinator_count:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, "producers cannot write to an internal topic"
                )
            self.refuse_as_follower(group_id, answer)
            self.note(group_id, answer)
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
        """Check one batch, and place it now or when its check is done. Raises KafkaError."""
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
            # Appending it would be wasted work, which grows with the delay. A batch of an
            # idempotent producer is appended anyway: without it later batches would be out of
            # order, and a retry costs nothing.
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
        """Return the query that verifies a batch's transaction. Raises KafkaError."""
        transactional_id = self.transactional_id
        if not header.has_producer_id:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a transaction has a producer")
        if transactional_id is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a batch of a transaction requires a transactional id in the request",
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
        """Continue with a batch that was checked off the loop.

        Called from the loop, which must not see exceptions of this file.
        """
        self.placed_ns = self.ctx.server.clock.now_ns()
        try:
            placed.verdict = verdict
            while self.line and self.line[0].verdict is not None:
                placed = self.line.popleft()
                # The topic and its log may have been deleted meanwhile.
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
                self.note(group_id, answer)
                return
            placed.records, placed.header = verdict.batch, verdict.header
            verdict = verdict.max_timestamp
        header = placed.header
        if stream is None:
            self.refuse_as_follower(group_id, answer)
            self.note(group_id, answer)
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
        """Record the outcome of one partition's batch.

        Called from the host's turn, which must not see exceptions of this file.
        """
        self.ctx.server.read_throttle.waiting -= 1
        self.settled_last, self.settled_group = appended, group_id
        try:
            if appended.duplicate_timestamp is not None and log_append_time:
                answer.log_append_time_ms = appended.duplicate_timestamp
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
                self.note(group_id, answer)
            self.settled()
        except Exception as fault:  # noqa: BLE001 - the connection edge
            if self.later is not None and not self.later.done:
                self.later.complete(fault)

    def settled(self) -> None:
        """Count one more batch as settled, and answer after the last one."""
        self.waiting -= 1
        if not self.waiting and self.later is not None:
            self.later.complete(self.answer())

    def trace(
        self, into: TracedRequest, since_ns: int, until_ns: int
    ) -> list[tuple[str, int, int]]:
        """See `Traceable`. The batch that was decided last counts: the answer waited for it."""
        host, last = self.ctx.server.host, self.settled_last
        if last is None:
            return [("check", since_ns, until_ns)]
        group = host.catalog.groups.get(self.settled_group)
        if group is not None:
            into.slowest = f"{group.topic}-{group.partition}"
            into.topics |= {group.topic}  # with acks=0 no answer names it
        into.term, into.acked_by = last.term, server_of(last.acked_by)
        appended_ns = min(max(since_ns, self.placed_ns, last.appended_ns), until_ns)
        durable_ns = min(host.written_after(appended_ns) or appended_ns, until_ns)
        if into.acked_by == host.server_id:
            durable_ns = until_ns
        return [
            ("check", since_ns, appended_ns),
            ("disk", appended_ns, durable_ns),
            ("replication", durable_ns, until_ns),
        ]

    def note(self, group_id: GroupId, answer: PartitionProduceResponse) -> None:
        """Keep the refusal of a batch as an event of its partition."""
        ctx = self.ctx
        info = ctx.server.host.catalog.groups.get(group_id)
        if info is not None:
            ctx.server.log.note(
                "produce_refused",
                partition=f"{info.topic}-{info.partition}",
                error=ErrorCode(answer.error_code).name,
                message=answer.error_message,
                client=ctx.client_text,
            )

    def refuse_as_follower(self, group_id: GroupId, answer: PartitionProduceResponse) -> None:
        """Set NOT_LEADER_OR_FOLLOWER, and from v10 on the leader (KIP-951)."""
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
        """Return the answer to the client once no append is pending."""
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
    """Append the valid batches; each partition has its own answer."""
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
                name = topic_data.topic_id.hex() if by_id else topic_data.name
                ctx.server.log.note("topic_unknown", client=ctx.client_text, topic=name)
            elif (topic.name, data.index) in seen:
                # Otherwise one request could submit any number of small batches for checking at
                # once.
                answer.error_code = ErrorCode.INVALID_REQUEST
                answer.error_message = "a request may have only one batch for each partition"
            else:
                seen.add((topic.name, data.index))
                try:
                    produce.append(topic, data, answer)
                except KafkaError as error:
                    refuse(answer, error)
                    if data.index in range(len(topic.partitions)):
                        produce.note(topic.partitions[data.index], answer)
    if not produce.waiting:
        return produce.answer()
    later = produce.later = Later()
    later.about = produce
    later.holding = bool(produce.line)
    return later


def fail_produce(
    request: ProduceRequest, _version: int, code: ErrorCode
) -> ProduceResponse | Reply:
    """Return `code` for each partition, or close the connection with acks=0.

    With acks=0 the client would take a frame for the next answer.
    """
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
