"""Transactions, through the coordinators of transactional ids.

AddPartitionsToTxn (key 24) v0–5, AddOffsetsToTxn (25) v0–4, EndTxn (26) v0–5, TxnOffsetCommit (28)
v0–6, WriteTxnMarkers (27) v1–2, DescribeTransactions (65) v0, ListTransactions (66) v0–2.

AddPartitionsToTxn: v4 is for use between brokers: several transactions, and a query whether
    partitions belong to them (KIP-890). Servers here have frames of their own for that, but the
    query is answered.
EndTxn: v5 bumps the epoch, and returns the producer id and epoch to continue with (KIP-890).
TxnOffsetCommit: v3 members (KIP-447), v5 adds the group to the transaction by itself (KIP-890), v6
    names topics by id.
WriteTxnMarkers: ends a hanging transaction in a partition (KIP-664). Only an abort, because only a
    coordinator may decide to commit.
ListTransactions: v1 filters by duration, v2 by a pattern (KIP-994, KIP-1152).

From v2 of the first three on, a producer that was replaced gets PRODUCER_FENCED (KIP-588); before
that, INVALID_PRODUCER_EPOCH.

Does not depend on how a transaction ends, or on how its participants learn of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from ids import NO_INDEX, GroupId
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, InParts, Later, Paused, pages
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.handlers.groups import group_coordinator
from vdl.kafka.handlers.offsets import position_of
from vdl.kafka.limits.pattern_work import Found
from vdl.kafka.lookup import find_topic, is_internal
from vdl.kafka.parts import PART_ELEMENTS
from vdl.kafka.transactions.led_transactions import LedTransactions
from vdl.kafka.transactions.transaction_coordinator import TransactionCoordinator
from vdl.kafka.views.transactions_topic import topics_of
from vdl.kafka.wire import add_offsets_to_txn as add_offsets_wire
from vdl.kafka.wire import add_partitions_to_txn as add_wire
from vdl.kafka.wire import describe_transactions as describe_wire
from vdl.kafka.wire import end_txn as end_wire
from vdl.kafka.wire import list_transactions as list_wire
from vdl.kafka.wire import txn_offset_commit as commit_wire
from vdl.kafka.wire import write_txn_markers as markers_wire
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.patterns import BadPattern
from vdl.state import commands
from vdl.state.acls import AclOperation, AclResource
from vdl.state.answer import CommandAnswer
from vdl.state.coordinator import CommitAnswer, Coordinator
from vdl.state.partition import EndTransactionMarker, encode_command
from vdl.state.transactions import (
    FIRST_VERSION,
    SECOND_VERSION,
    TransactionalId,
    TransactionAnswer,
    TransactionState,
)

_FENCED_FROM = 2
"""In AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""
_BROKERS_FROM = 4
_ABORTABLE_FROM = 4
"""In TxnOffsetCommit."""
_BUMPS_EPOCH_FROM = 5
"""In EndTxn and TxnOffsetCommit."""
_TOPIC_IDS_FROM = 6
_ATTEMPTS = 5
"""Number of proposals of the offsets of a producer that names no member."""
_MEMBER_MOVED = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
"""Errors if the member used for such a producer has another epoch by now, or is gone."""

STATE_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
_OTHER_STATES = ("Dead", "PrepareEpochFence")
"""States of Kafka that no transactional id is ever reported in here."""


def transaction_coordinator(ctx: RequestContext) -> TransactionCoordinator:
    """Return this server's transaction coordinator."""
    transactions = ctx.server.transactions
    assert transactions is not None, "a server has one before it takes requests"
    return transactions


def _as_of(ctx: RequestContext, code: ErrorCode, transactional_id: str) -> ErrorCode:
    """Return the code for a client, whose version may be older than KIP-588."""
    if code is ErrorCode.PRODUCER_FENCED:
        ctx.server.log.note(
            "producer_fenced", client=ctx.client_text, transactional_id=transactional_id
        )
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < _FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# --- AddPartitionsToTxn --------------------------------------------------------------------------


def handle_add_partitions_to_txn(
    ctx: RequestContext, request: add_wire.AddPartitionsToTxnRequest
) -> add_wire.AddPartitionsToTxnResponse | Later:
    """Add all partitions of a transaction, or none."""
    parts = Gathering(add_wire.AddPartitionsToTxnResponse())
    if ctx.api_version < _BROKERS_FROM:
        _add(
            ctx,
            add_wire.AddPartitionsToTxnTransaction(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                False,
                request.v3_and_below_topics,
            ),
            parts.response.results_by_topic_v3_and_below,
            parts,
        )
        return parts.result()
    for transaction in request.transactions:
        result = add_wire.AddPartitionsToTxnResult(transaction.transactional_id)
        parts.response.results_by_transaction.append(result)
        _add(ctx, transaction, result.topic_results, parts)
    return parts.result()


def fail_add_partitions_to_txn(
    request: add_wire.AddPartitionsToTxnRequest, version: int, code: ErrorCode
) -> add_wire.AddPartitionsToTxnResponse:
    """Return `code` for each partition, from v4 on for the request."""
    if version >= _BROKERS_FROM:
        return add_wire.AddPartitionsToTxnResponse(error_code=code)
    return add_wire.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            add_wire.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    add_wire.AddPartitionsToTxnPartitionResult(index, code)
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


def _add(
    ctx: RequestContext,
    transaction: add_wire.AddPartitionsToTxnTransaction,
    topics: list[add_wire.AddPartitionsToTxnTopicResult],
    parts: Gathering[add_wire.AddPartitionsToTxnResponse],
) -> None:
    """Fill in the results of one transaction."""
    partitions: list[add_wire.AddPartitionsToTxnPartitionResult] = []
    participants: list[GroupId] = []
    refused = False
    for asked in transaction.topics:
        answered = add_wire.AddPartitionsToTxnTopicResult(asked.name)
        topics.append(answered)
        topic = find_topic(ctx, asked.name)
        for index in asked.partitions:
            partition = add_wire.AddPartitionsToTxnPartitionResult(index)
            answered.results_by_partition.append(partition)
            partitions.append(partition)
            if topic is None or not 0 <= index < len(topic.partitions):
                partition.partition_error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_internal(ctx, asked.name):
                partition.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                participants.append(topic.partitions[index])
                continue
            refused = True
    if refused:
        for partition in partitions:
            if not partition.partition_error_code:
                partition.partition_error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
        return
    parts.expect()

    def decided(error: ErrorCode, answer: TransactionAnswer | None) -> None:
        name = transaction.transactional_id
        code = _as_of(ctx, error if answer is None else answer.error, name)
        for partition in partitions:
            partition.partition_error_code = code
        parts.arrived()

    if not transaction.transactional_id:
        decided(ErrorCode.INVALID_REQUEST, None)
        return
    from_broker = ctx.api_version >= _BROKERS_FROM
    command = commands.AddToTransaction(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        participants,
        verify_only=transaction.verify_only,
        version=SECOND_VERSION if from_broker else FIRST_VERSION,
    )
    transaction_coordinator(ctx).decide(command, decided, asker=ctx.sharer)


# --- AddOffsetsToTxn -----------------------------------------------------------------------------


def handle_add_offsets_to_txn(
    ctx: RequestContext, request: add_offsets_wire.AddOffsetsToTxnRequest
) -> add_offsets_wire.AddOffsetsToTxnResponse | Later:
    """Add the coordinator of a consumer group to the transaction."""
    if not request.transactional_id:
        return add_offsets_wire.AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not request.group_id:
        return add_offsets_wire.AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    later = Later()

    def decided(error: ErrorCode, answer: TransactionAnswer | None) -> None:
        code = _as_of(ctx, error if answer is None else answer.error, request.transactional_id)
        later.complete(add_offsets_wire.AddOffsetsToTxnResponse(error_code=code))

    command = commands.AddToTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [ctx.server.host.coordinator_group(request.group_id)],
    )
    transaction_coordinator(ctx).decide(command, decided, asker=ctx.sharer)
    return later


# --- EndTxn --------------------------------------------------------------------------------------


def handle_end_txn(
    ctx: RequestContext, request: end_wire.EndTxnRequest
) -> end_wire.EndTxnResponse | Later:
    """End a transaction, and answer once the outcome is decided.

    The participants are notified afterwards, under all circumstances.
    """
    if not request.transactional_id:
        return end_wire.EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    later = Later()
    bumps = ctx.api_version >= _BUMPS_EPOCH_FROM

    def decided(error: ErrorCode, answer: TransactionAnswer | None) -> None:
        code = _as_of(ctx, error if answer is None else answer.error, request.transactional_id)
        response = end_wire.EndTxnResponse(error_code=code)
        if answer is not None and bumps and code is ErrorCode.NONE:
            response.producer_id, response.producer_epoch = answer.producer_id, answer.epoch
        later.complete(response)

    command = commands.EndTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        SECOND_VERSION if bumps else FIRST_VERSION,
    )
    transaction_coordinator(ctx).decide(command, decided)
    return later


# --- TxnOffsetCommit -----------------------------------------------------------------------------


def handle_txn_offset_commit(
    ctx: RequestContext, request: commit_wire.TxnOffsetCommitRequest
) -> commit_wire.TxnOffsetCommitResponse | Later:
    """Store valid offsets until the transaction ends, all together; each invalid one has its error.

    First the transaction's coordinator is queried: is the transaction open, and does it include the
    group? From v5 on the query also adds the group.
    """
    version = ctx.api_version
    response = commit_wire.TxnOffsetCommitResponse()
    offsets: list[commands.OffsetCommit] = []
    waiting: list[commit_wire.TxnOffsetCommitResponsePartition] = []
    for asked in request.topics:
        answered = commit_wire.TxnOffsetCommitResponseTopic(asked.name, asked.topic_id)
        response.topics.append(answered)
        key = asked.topic_id if version >= _TOPIC_IDS_FROM else asked.name
        for position in asked.partitions:
            partition = commit_wire.TxnOffsetCommitResponsePartition(position.partition_index)
            answered.partitions.append(partition)
            found = position_of(
                ctx,
                key,
                position.partition_index,
                position.committed_offset,
                position.committed_leader_epoch,
                position.committed_metadata or "",
            )
            if isinstance(found, ErrorCode):
                partition.error_code = found
            else:
                waiting.append(partition)
                offsets.append(found)

    commit = _OffsetsCommit(ctx, request, response, waiting, offsets)
    if not offsets:
        return response
    if not request.group_id:
        return commit.answer(ErrorCode.INVALID_GROUP_ID)
    if not request.transactional_id:
        return commit.answer(ErrorCode.INVALID_REQUEST)
    if sum(len(offset.metadata) for offset in offsets) > ctx.server.config.message_max_bytes:
        return commit.answer(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    led = group_coordinator(ctx).find(request.group_id)
    if isinstance(led, ErrorCode):
        return commit.answer(led)
    return commit.begin(led)


class _OffsetsCommit:
    """The valid offsets of one TxnOffsetCommit.

    Its callers refer to it, but it refers to none of them. Once it is answered, nothing is left for
    the garbage collector.
    """

    __slots__ = (
        "_asked_at", "_attempts_left", "_ctx", "_later", "_led", "_names_nobody", "_offsets",
        "_request", "_response", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        ctx: RequestContext,
        request: commit_wire.TxnOffsetCommitRequest,
        response: commit_wire.TxnOffsetCommitResponse,
        waiting: list[commit_wire.TxnOffsetCommitResponsePartition],
        offsets: list[commands.OffsetCommit],
    ) -> None:
        """Begin with `waiting`: the partitions of the response that correspond to `offsets`."""
        self._ctx = ctx
        self._request = request
        self._response = response
        self._waiting = waiting
        self._offsets = offsets
        self._later = Later()
        self._led: LedCoordinator | None = None
        self._asked_at: int = NO_INDEX
        """Index of the group's coordinator when the transaction's coordinator was queried."""
        self._names_nobody = (
            request.generation_id_or_member_epoch == -1
            and not request.member_id
            and request.group_instance_id is None
        )
        self._attempts_left = _ATTEMPTS

    def answer(self, code: ErrorCode) -> commit_wire.TxnOffsetCommitResponse:
        """Return the response, with `code` for all of these partitions."""
        for partition in self._waiting:
            partition.error_code = code
        return self._response

    def begin(self, led: LedCoordinator) -> Later:
        """Query the transaction's coordinator, and continue with its answer."""
        ctx, request = self._ctx, self._request
        adds = ctx.api_version >= _BUMPS_EPOCH_FROM
        self._led, self._asked_at = led, led.machine.index
        transaction_coordinator(ctx).add_participants(
            commands.AddToTransaction(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                [ctx.server.host.coordinator_group(request.group_id)],
                verify_only=not adds,
                version=SECOND_VERSION if adds else FIRST_VERSION,
            ),
            self._later.step(self._added),
        )
        return self._later

    def _added(self, verdict: CommandAnswer | None) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if verdict is None else verdict.error
        if verdict is None or code is not ErrorCode.NONE:
            self._later.complete(self.answer(_of_participant(code, self._ctx.api_version)))
        else:
            self._propose(int.from_bytes(verdict.data))

    def _propose(self, number: int) -> None:
        """Propose the offsets. `number` is that of the transaction."""
        assert self._led is not None, "`begin` was called"
        self._attempts_left -= 1
        if self._attempts_left and self._led.machine.pending.may_have_forgotten(self._asked_at):
            # The transaction may have ended since: ask again.
            self.begin(self._led)
            return
        request = self._request
        epoch, member_id = request.generation_id_or_member_epoch, request.member_id
        if self._names_nobody:
            epoch, member_id = _anybody(self._led.machine, request.group_id)
        command = commands.CommitTransactionOffsets(
            group_id=request.group_id,
            generation=epoch,
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            number=number,
            offsets=self._offsets,
            asked_at=self._asked_at,
        )
        done = self._later.step(partial(self._committed, number))
        groups = group_coordinator(self._ctx)
        groups.propose(
            request.group_id, command, done, member_id=request.member_id, asker=self._ctx.asker
        )

    def _committed(self, number: int, error: ErrorCode, result: CommitAnswer | None) -> None:
        code = error if result is None else result.error
        if self._names_nobody and code in _MEMBER_MOVED and self._attempts_left:
            self._propose(number)
            return
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self._later.complete(self.answer(code))


def _anybody(machine: Coordinator, group_id: str) -> tuple[int, str]:
    """Return the (epoch, member) used for a producer that names none, as older clients do.

    A classic group accepts (-1, ""). In a group of the newer protocol, in which such a producer may
    commit as well, any member is used, because servers of all versions apply that command alike.
    """
    group = machine.consumer.groups.get(group_id)
    member = None if group is None else next(iter(group.members.values()), None)
    return (-1, "") if member is None else (member.epoch, member.member_id)


def _of_participant(code: ErrorCode, version: int) -> ErrorCode:
    """Translate an error of the transaction's coordinator for a client of a participant.

    A producer with an old epoch may abort, and older clients have no code for an abortable error.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return code


def fail_txn_offset_commit(
    request: commit_wire.TxnOffsetCommitRequest, _version: int, code: ErrorCode
) -> commit_wire.TxnOffsetCommitResponse:
    """Return `code` for each partition."""
    return commit_wire.TxnOffsetCommitResponse(
        topics=[
            commit_wire.TxnOffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [
                    commit_wire.TxnOffsetCommitResponsePartition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# --- WriteTxnMarkers -----------------------------------------------------------------------------


def handle_write_txn_markers(
    ctx: RequestContext, request: markers_wire.WriteTxnMarkersRequest
) -> markers_wire.WriteTxnMarkersResponse | Later:
    """Append the markers through each partition's leader; each partition has its own answer."""
    parts = Gathering(markers_wire.WriteTxnMarkersResponse())
    deadline_ns = ctx.server.clock.now_ns() + ctx.server.config.read_timeout_ms * MS

    def done(target: markers_wire.WritableTxnMarkerPartitionResult, outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            target.error_code = outcome.result.error
        else:
            target.error_code = ErrorCode.REQUEST_TIMED_OUT
        parts.arrived()

    for marker in request.markers:
        result = markers_wire.WritableTxnMarkerResult(marker.producer_id)
        parts.response.markers.append(result)
        command = EndTransactionMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            False,
            marker.transaction_version,
        )
        for asked in marker.topics:
            answered = markers_wire.WritableTxnMarkerTopicResult(asked.name)
            result.topics.append(answered)
            topic = find_topic(ctx, asked.name)
            for index in asked.partition_indexes:
                target = markers_wire.WritableTxnMarkerPartitionResult(index)
                answered.partitions.append(target)
                if marker.transaction_result or is_internal(ctx, asked.name):
                    target.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                elif topic is None or not 0 <= index < len(topic.partitions):
                    target.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    parts.expect()
                    ctx.server.host.command_group(
                        topic.partitions[index],
                        encode_command(command),
                        deadline_ns=deadline_ns,
                        done=partial(done, target),
                    )
    return parts.result()


def fail_write_txn_markers(
    request: markers_wire.WriteTxnMarkersRequest, _version: int, code: ErrorCode
) -> markers_wire.WriteTxnMarkersResponse:
    """Return `code` for each partition."""
    return markers_wire.WriteTxnMarkersResponse(
        markers=[
            markers_wire.WritableTxnMarkerResult(
                marker.producer_id,
                [
                    markers_wire.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            markers_wire.WritableTxnMarkerPartitionResult(index, code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


# --- DescribeTransactions ------------------------------------------------------------------------


def handle_describe_transactions(
    ctx: RequestContext, request: describe_wire.DescribeTransactionsRequest
) -> describe_wire.DescribeTransactionsResponse | Later:
    """Describe each transactional id through its coordinator.

    A quorum confirms the coordinator's leadership first. An id that is repeated too often gets
    INVALID_REQUEST.
    """
    transactions = transaction_coordinator(ctx)
    parts = Gathering(describe_wire.DescribeTransactionsResponse())

    def read(target: describe_wire.TransactionState, led: LedTransactions, current: bool) -> None:
        known = led.get(target.transactional_id)
        if not current:
            target.error_code = ErrorCode.NOT_COORDINATOR
        elif known is None:
            target.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        else:
            _describe(ctx, target, known)
        parts.arrived()

    repeats = ctx.repeats("the transactional id must not be empty")
    for name in request.transactional_ids:
        target = describe_wire.TransactionState(transactional_id=name)
        parts.response.transaction_states.append(target)
        is_wrong = not name or repeats.refuses(name)
        led = ErrorCode.INVALID_REQUEST if is_wrong else transactions.find(name)
        if isinstance(led, ErrorCode):
            target.error_code = led
        else:
            parts.expect()
            transactions.read(led, parts.later.step(partial(read, target, led)))
    return parts.result()


def _describe(
    ctx: RequestContext, target: describe_wire.TransactionState, known: TransactionalId
) -> None:
    target.transaction_state = STATE_NAMES[known.state]
    target.transaction_timeout_ms = known.timeout_ms
    target.transaction_start_time_ms = known.started_ms
    target.producer_id = known.producer_id
    target.producer_epoch = known.epoch
    topics = topics_of(known.participants, ctx.server.host.catalog)
    target.topics = [describe_wire.TopicData(*topic) for topic in topics.items()]


def fail_describe_transactions(
    request: describe_wire.DescribeTransactionsRequest, _version: int, code: ErrorCode
) -> describe_wire.DescribeTransactionsResponse:
    """Return `code` for each transactional id."""
    return describe_wire.DescribeTransactionsResponse(
        transaction_states=[
            describe_wire.TransactionState(error_code=code, transactional_id=name)
            for name in request.transactional_ids
        ]
    )


# --- ListTransactions ----------------------------------------------------------------------------


def handle_list_transactions(
    ctx: RequestContext, request: list_wire.ListTransactionsRequest
) -> list_wire.ListTransactionsResponse | InParts | Paused | Later:
    """List the transactions that this server coordinates. KIP-664.

    A pattern that was not used before is compiled first, off the loop.
    """
    pattern = request.transactional_id_pattern
    work = ctx.server.pattern_work
    if not pattern or work.knows(pattern):
        return _list_transactions(ctx, request)
    later = Later()
    checked = later.step(lambda: later.follow(_list_transactions(ctx, request)))
    if not work.check(ctx.asker, (pattern,), checked):
        return list_wire.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return later


def _list_transactions(
    ctx: RequestContext, request: list_wire.ListTransactionsRequest
) -> list_wire.ListTransactionsResponse | InParts | Paused | Later:
    """Match a pattern only with ids that the client may describe.

    Neither the answer nor the time of the match reveals anything about other ids.
    """
    known_names = {*STATE_NAMES.values(), *_OTHER_STATES}
    response = list_wire.ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in known_names]
    )
    states = {name for name in request.state_filters if name in known_names}
    if request.state_filters and not states:
        return response
    pattern, work = request.transactional_id_pattern, ctx.server.pattern_work
    if pattern and work.refusal(pattern) is not None:
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return response
    now_ms = ctx.server.host.agreed_ms()
    producers = set(request.producer_id_filters)
    machines: list[Coordinator] = []

    def is_wanted(known: TransactionalId) -> bool:
        if states and STATE_NAMES[known.state] not in states:
            return False
        if producers and known.producer_id not in producers:
            return False
        return request.duration_filter < 0 or (
            known.started_ms >= 0 and now_ms - known.started_ms > request.duration_filter
        )

    def read(led: LedTransactions, current: bool) -> None:
        if current:
            machines.append(led.machine)
        else:
            response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        parts.arrived()

    wanted = (known if is_wanted(known) else None for known in _all_of(machines))
    parts: Gathering[InParts | Paused]
    if pattern:
        parts = Gathering(_Matching(ctx, pattern, response, wanted).pause())
    else:
        parts = Gathering(_listed(ctx, response, wanted))
    transactions = transaction_coordinator(ctx)
    for led in transactions.all_here():
        if isinstance(led, ErrorCode):
            response.error_code = led
        else:
            parts.expect()
            transactions.read(led, parts.later.step(partial(read, led)))
    return parts.result()


def _all_of(machines: Iterable[Coordinator]) -> Iterator[TransactionalId]:
    """Yield all transactional ids of coordinators, each as it is when its turn comes."""
    for machine in machines:
        ids = machine.transactions.ids
        for name in list(ids):
            if name in ids:
                yield ids[name]


def _listed(
    ctx: RequestContext,
    first: list_wire.ListTransactionsResponse,
    wanted: Iterable[TransactionalId | None],
) -> InParts:
    """Return the answer with the transactional ids that are `wanted`."""
    told = (
        known
        and list_wire.TransactionState(
            known.transactional_id, known.producer_id, STATE_NAMES[known.state]
        )
        for known in wanted
    )
    answered = "transaction_states"
    return InParts(ctx, answered, partial(pages, first, answered, told))


class _Matching:
    """A ListTransactions with a pattern: the ids are collected in turns, then matched."""

    __slots__ = ("_collected", "_ctx", "_first", "_pattern", "_wanted")

    def __init__(
        self,
        ctx: RequestContext,
        pattern: str,
        first: list_wire.ListTransactionsResponse,
        wanted: Iterator[TransactionalId | None],
    ) -> None:
        self._ctx = ctx
        self._pattern = pattern
        self._first = first
        self._wanted = wanted
        self._collected: dict[str, TransactionalId] = {}

    def pause(self) -> Paused:
        return Paused(self._step, lambda: None)

    def _step(self) -> Paused | Later | list_wire.ListTransactionsResponse:
        server = self._ctx.server
        later = Later()
        looked = list(islice(self._wanted, PART_ELEMENTS))
        self._collected.update(
            (known.transactional_id, known)
            for known in looked
            if known is not None and _may_describe(self._ctx, known.transactional_id)
        )
        if looked:
            # Behind the next poll of the sockets.
            server.clock.call_later(1, lambda: later.complete(self.pause()))
            return later
        question = self._pattern, list(self._collected)
        matched = later.step(lambda found: later.complete(self._answer(found[0])))
        if server.pattern_work.match(self._ctx.asker, [question], matched) is None:
            self._first.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return self._first
        return later

    def _answer(self, found: Found) -> InParts | list_wire.ListTransactionsResponse:
        if isinstance(found, BadPattern):
            self._first.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
            return self._first
        return _listed(self._ctx, self._first, (self._collected[name] for name in found))


def _may_describe(ctx: RequestContext, transactional_id: str) -> bool:
    authorizer = ctx.server.authorizer
    return authorizer is None or authorizer.allows(
        ctx.connection, AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, transactional_id
    )
