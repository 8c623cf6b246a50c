"""Transactional producers whose cost is counted.

Each runs sequential transactions on its own connections, with the first version of the protocol,
which librdkafka uses (KIP-98).

Does not depend on what is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tests.cost.cluster import TOPIC, Cluster
from vdl.kafka.wire import (
    add_partitions_to_txn,
    end_txn,
    find_coordinator,
    init_producer_id,
    produce,
)
from vdl.records.batch import BatchFields, Record, build_batch
from vdl.sim.client import Failure, Message
from vdl.sim.subscription import TopicPartition

VERSIONS = {0: 9, 22: 4, 24: 0, 26: 1}
TIMEOUT_MS = 60_000
_KEY_IS_TRANSACTIONAL_ID = 1

Steps = Iterator[tuple[int, ModuleType, Message]]
"""(server, API, request) of each step, which ends with its answer."""


class Transactional:
    """One producer. A transaction writes one batch to one partition, and commits."""

    def __init__(self, cluster: Cluster, name: str, partition: int, records: list[Record]) -> None:
        self._client = cluster.client(VERSIONS)
        self._name = name
        self._partition = partition
        self._records = records
        self._producer_id, self._epoch, self._sequence = -1, -1, 0
        self._coordinator = -1
        self._answer: Message | None = None
        self._left = 0

    @property
    def is_done(self) -> bool:
        """True if all requested transactions are committed."""
        return self._left == 0

    def begin(self, transactions: int) -> None:
        """Begin `transactions` sequential transactions."""
        self._left = transactions
        self._go(self._all_of_it())

    def _all_of_it(self) -> Steps:
        if self._coordinator < 0:
            yield from self._init()
        while self._left:
            yield from self._transact()
            self._left -= 1

    def _init(self) -> Steps:
        kind = _KEY_IS_TRANSACTIONAL_ID
        asked = find_coordinator.FindCoordinatorRequest("", kind, [self._name])
        yield 1, find_coordinator, asked
        self._coordinator = self._answered.coordinators[0].node_id
        yield (
            self._coordinator,
            init_producer_id,
            init_producer_id.InitProducerIdRequest(self._name, TIMEOUT_MS),
        )
        assert not self._answered.error_code, self._answered
        self._producer_id = self._answered.producer_id
        self._epoch = self._answered.producer_epoch

    def _transact(self) -> Steps:
        who = self._name, self._producer_id, self._epoch
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(TOPIC, [self._partition])
        yield (
            self._coordinator,
            add_partitions_to_txn,
            add_partitions_to_txn.AddPartitionsToTxnRequest([], *who, [topic]),
        )
        (added,) = self._answered.results_by_topic_v3_and_below
        assert not added.results_by_partition[0].partition_error_code, added
        metadata = self._client.metadata
        rows = [produce.PartitionProduceData(self._partition, self._batch())]
        data = produce.TopicProduceData(TOPIC, metadata.topic_id(TOPIC), rows)
        yield (
            metadata.leader(TopicPartition(TOPIC, self._partition)),
            produce,
            produce.ProduceRequest(self._name, -1, TIMEOUT_MS // 2, [data]),
        )
        (taken,) = self._answered.responses[0].partition_responses
        assert not taken.error_code, taken
        yield self._coordinator, end_txn, end_txn.EndTxnRequest(*who, committed=True)
        assert not self._answered.error_code, self._answered

    def _batch(self) -> bytearray:
        fields = BatchFields(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        self._sequence += len(self._records)
        return build_batch(self._records, fields)

    @property
    def _answered(self) -> Message:
        assert self._answer is not None, "nothing was asked"
        return self._answer

    def _go(self, steps: Steps) -> None:
        following = next(steps, None)
        if following is None:
            return
        node, api, request = following

        def answered(response: Message | Failure) -> None:
            assert not isinstance(response, Failure), response
            self._answer = response
            self._go(steps)

        self._client.call(node, api, lambda _: request, answered)
