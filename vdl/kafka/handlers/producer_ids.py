"""Ids of producers: InitProducerId (key 22) v0–5, DescribeProducers (61) v0.

InitProducerId returns an id for an idempotent or transactional producer. DescribeProducers lists
the producers known to partitions (KIP-664).

v3: a producer may name its id and epoch (KIP-360), both or neither. Without a transactional id
there is nothing to fence, so it gets a new id, as from Kafka. v4: a producer that was replaced gets
PRODUCER_FENCED (KIP-588). v6 is about two-phase commit (KIP-939) and not supported.

Each id is a command to the catalog. Producers start rarely, the command is batched with others of
the turn, and no server has to keep a block of ids.

With a transactional id its coordinator decides, late if it must first abort a transaction. While
not all servers support transactions, a transactional id is refused with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53), here and in FindCoordinator: librdkafka, the Java client
and kafka-python all treat that as final at once. After an invalid request librdkafka retries for
ever; after 14, 15, 16 and 51 all do.

Any replica answers DescribeProducers, as in Kafka, from its applied state. A partition remembers up
to 32,768 producers, so they are collected in pieces, and one answer has a limit.

Does not depend on the records of producers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from vdl.clock import MS
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.host import ActiveProducer
from vdl.kafka.lookup import find_topic, partition_group
from vdl.kafka.wire.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from vdl.kafka.wire.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import AllocateProducerIds, InitTransactions
from vdl.state.topic_names import topic_name_complaint
from vdl.state.transactions import TransactionAnswer

_PRODUCERS_PER_ANSWER_MAX = 50_000
"""About 15 MB while the answer is built."""
_PRODUCERS_PER_STEP = 2_000
"""Producers collected in one step: about 2 ms."""
_FENCED_FROM = 4
"""In InitProducerId."""


def handle_init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> Later | InitProducerIdResponse:
    """Return a new id with epoch 0. Errors are ones that clients retry."""
    names_one_of_both = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or names_one_of_both:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return _init_transactions(ctx, request, request.transactional_id)
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            later.complete(InitProducerIdResponse(producer_id=outcome.result.first))
        else:
            # An id that was allocated and is not used is no loss. Of the errors that clients retry,
            # only this one does not make them look for a transaction coordinator first.
            later.complete(
                InitProducerIdResponse(
                    error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1
                )
            )

    deadline_ns = ctx.server.clock.now_ns() + ctx.server.config.read_timeout_ms * MS
    ctx.server.host.propose_catalog(AllocateProducerIds(1), deadline_ns=deadline_ns, done=decided)
    return later


def _init_transactions(
    ctx: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> Later | InitProducerIdResponse:
    transactions = ctx.server.transactions
    if transactions is None or not transactions.is_available:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    timeout_ms = request.transaction_timeout_ms
    if not 0 < timeout_ms <= ctx.server.config.transaction_max_timeout_ms:
        code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    later = Later()

    def decided(error: ErrorCode, answer: TransactionAnswer | None) -> None:
        code = error if answer is None else answer.error
        if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < _FENCED_FROM:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        response = InitProducerIdResponse(error_code=code, producer_epoch=-1)
        if answer is not None and code is ErrorCode.NONE:
            response.producer_id, response.producer_epoch = answer.producer_id, answer.epoch
        later.complete(response)

    command = InitTransactions(
        transactional_id,
        timeout_ms,
        expected_producer_id=request.producer_id,
        expected_epoch=request.producer_epoch,
    )
    transactions.decide(command, decided, asker=ctx.sharer)
    return later


def fail_init_producer_id(
    _request: InitProducerIdRequest, _version: int, code: ErrorCode
) -> InitProducerIdResponse:
    """Return `code` for the request."""
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)


def handle_describe_producers(
    ctx: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Later:
    """Describe producers; each partition has its own answer."""
    response = DescribeProducersResponse()
    left: list[tuple[str, PartitionResponse]] = []
    for topic in request.topics:
        partitions = [PartitionResponse(index) for index in topic.partition_indexes]
        response.topics.append(TopicResponse(topic.name, partitions))
        left += [(topic.name, partition) for partition in partitions]
    left.reverse()
    describing = _Describing(ctx, response, left)
    describing.step()
    return describing.later


class _Describing:
    """One DescribeProducers under way.

    Nothing in it refers back to it: the answer may be large, and must not wait for the garbage
    collector.
    """

    __slots__ = ("_ctx", "_left", "_producers", "_response", "_target", "_told", "later")

    def __init__(
        self,
        ctx: RequestContext,
        response: DescribeProducersResponse,
        left: list[tuple[str, PartitionResponse]],
    ) -> None:
        """`left`: (topic, partition of the response), the last one first."""
        self.later = Later()
        self._ctx = ctx
        self._response = response
        self._left = left
        self._told = 0
        self._target = PartitionResponse()
        """The partition that is being described."""
        self._producers: Iterator[ActiveProducer] = iter(())
        """Its producers that are not in the answer yet."""

    def step(self) -> None:
        """Continue as far as one turn allows."""
        room = _PRODUCERS_PER_STEP
        while room > 0:
            some = list(islice(self._producers, room))
            self._target.active_producers += map(_described, some)
            self._told += len(some)
            room -= len(some) + 1
            if room < 0:
                break  # there may be more
            if not self._left:
                self.later.complete(self._response)
                return
            name, self._target = self._left.pop()
            target = self._target
            try:
                self._producers = _active_producers(
                    self._ctx, name, target.partition_index, self._told
                )
            except KafkaError as error:
                target.error_code, target.error_message = error.code, error.message
        self._ctx.server.clock.call_soon(lambda: self.later.run(self.step))


def fail_describe_producers(
    request: DescribeProducersRequest, _version: int, code: ErrorCode
) -> DescribeProducersResponse:
    """Return `code` for each partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                topic.name,
                [PartitionResponse(index, error_code=code) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _active_producers(
    ctx: RequestContext, name: str, index: int, told: int
) -> Iterator[ActiveProducer]:
    """Return a partition's producers. `told`: producers already in the answer. Raises
    KafkaError."""
    if complaint := topic_name_complaint(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
    topic = find_topic(ctx, name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    stream = ctx.server.stream(partition_group(topic, index), topic.name)
    if stream is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if told >= _PRODUCERS_PER_ANSWER_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "the response would be too large; request fewer partitions at once",
        )
    return iter(stream.producers())


def _described(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.first_offset,
    )
