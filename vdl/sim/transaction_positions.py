"""Offsets that one transactional producer commits in a consumer group of its own.

Some of its transactions commit an offset, each higher than the last. While no transaction is open,
the group's stable offset is that of the newest committed transaction: never an aborted one, never
an older one (KIP-447).

Does not depend on how a transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from vdl.errors import ErrorCode
from vdl.kafka.wire import add_offsets_to_txn, find_coordinator, offset_fetch, txn_offset_commit
from vdl.sim.client import Failure, KafkaClient, Message

NONE = -1
"""No offset is committed."""

_STABLE_FROM = 8
"""First version of OffsetFetch with several groups."""

_PASSES = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION, ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
)  # fmt: skip

Ended = Callable[[bool], None]
"""Called with True if the offset is part of the transaction now."""

Asks = Callable[[ModuleType, Callable[[int], Message], Callable[[Message | Failure], None]], None]
"""Sends a request to the coordinator of the transactional id."""


class TransactionPositions:
    """The producer's group: commits its offsets and checks them."""

    def __init__(self, client: KafkaClient, transactional_id: str, topic: str) -> None:
        self.group = f"{transactional_id}-positions"
        self.problems: list[str] = []
        """Descriptions of incorrect offsets."""
        self._client = client
        self._transactional_id = transactional_id
        self._topic = topic
        self._coordinator = -1
        self._number = 0
        self._allowed = {NONE}
        """Permitted offsets of the group while no transaction is open."""
        self._failures = 0

    # --- in a transaction ------------------------------------------------------------------------
    def commit(
        self,
        producer_id: int,
        epoch: int,
        *,
        deadline_ns: int,
        tell: Asks | None,
        ended: Ended,
    ) -> int:
        """Commit the next offset with the transaction of this producer; return the offset.

        `tell`: sends to the transaction's coordinator, if the group has to be added there first.
        """
        self._number += 1
        number = self._number

        def commit() -> None:
            self._ask(txn_offset_commit, partial(self._request, producer_id, epoch, number), done)

        def done(response: Message | Failure) -> None:
            code = ErrorCode.NETWORK_EXCEPTION
            if not isinstance(response, Failure):
                code = response.topics[0].partitions[0].error_code
            self._go_on(code, deadline_ns, commit, ended)

        def add() -> None:
            assert tell is not None
            request = add_offsets_to_txn.AddOffsetsToTxnRequest(
                self._transactional_id, producer_id, epoch, self.group
            )
            tell(add_offsets_to_txn, lambda _: request, added)

        def added(response: Message | Failure) -> None:
            code = ErrorCode.NETWORK_EXCEPTION
            if not isinstance(response, Failure):
                code = response.error_code
            if code == ErrorCode.NONE:
                commit()
            else:
                self._go_on(code, deadline_ns, add, ended)

        if tell is None:
            commit()
        else:
            add()
        return number

    def _request(
        self, producer_id: int, epoch: int, number: int, version: int
    ) -> txn_offset_commit.TxnOffsetCommitRequest:
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(0, number)
        topic = txn_offset_commit.TxnOffsetCommitRequestTopic(
            self._topic, self._client.metadata.topic_id(self._topic), [partition]
        )
        return txn_offset_commit.TxnOffsetCommitRequest(
            self._transactional_id, self.group, producer_id, epoch, topics=[topic]
        )

    def _go_on(self, code: int, deadline_ns: int, again: Callable[[], None], ended: Ended) -> None:
        if code == ErrorCode.NONE:
            self._failures = 0
            ended(True)
        elif code in _PASSES and self._client.clock.now_ns() < deadline_ns:
            self._again(code, again)
        else:
            ended(False)

    def over(self, number: int, kind: str) -> None:
        """Note the end of a transaction that committed an offset: ok, fail, or info."""
        if kind == "ok":
            self._allowed = {number}
        elif kind == "info":
            self._allowed.add(number)

    # --- between transactions --------------------------------------------------------------------
    def look(self, then: Callable[[], None]) -> None:
        """Check the group's stable offset while no transaction is open."""

        def build(version: int) -> offset_fetch.OffsetFetchRequest:
            if version < _STABLE_FROM:
                topic = offset_fetch.OffsetFetchRequestTopic(self._topic, [0])
                return offset_fetch.OffsetFetchRequest(self.group, [topic], require_stable=True)
            topic_id = self._client.metadata.topic_id(self._topic)
            topics = [offset_fetch.OffsetFetchRequestTopics(self._topic, topic_id, [0])]
            group = offset_fetch.OffsetFetchRequestGroup(self.group, topics=topics)
            return offset_fetch.OffsetFetchRequest(groups=[group], require_stable=True)

        def answered(response: Message | Failure) -> None:
            code, offset = ErrorCode.NETWORK_EXCEPTION, NONE
            if not isinstance(response, Failure):
                row = response.groups[0] if response.groups else response
                code = row.error_code
                if code == ErrorCode.NONE:
                    partition = row.topics[0].partitions[0]
                    code, offset = partition.error_code, partition.committed_offset
            if code != ErrorCode.NONE:
                self._again(code, partial(self.look, then))
                return
            self._failures = 0
            if offset not in self._allowed:
                self.problems.append(f"{self.group} is at {offset}, not at {sorted(self._allowed)}")
            self._allowed = {offset}
            then()

        self._ask(offset_fetch, build, answered)

    # --- the coordinator of the group -----------------------------------------------------------
    def _ask(
        self,
        api: ModuleType,
        build: Callable[[int], Message],
        answered: Callable[[Message | Failure], None],
    ) -> None:
        if self._coordinator < 0:
            self._find(partial(self._ask, api, build, answered))
        else:
            self._client.call(self._coordinator, api, build, answered)

    def _find(self, then: Callable[[], None]) -> None:
        def build(version: int) -> find_coordinator.FindCoordinatorRequest:
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest("", 0, [self.group])
            return find_coordinator.FindCoordinatorRequest(self.group, 0)

        def answered(response: Message | Failure) -> None:
            row = response
            if not isinstance(response, Failure) and response.coordinators:
                row = response.coordinators[0]
            if isinstance(row, Failure) or row.error_code:
                self._again(ErrorCode.COORDINATOR_NOT_AVAILABLE, partial(self._find, then))
                return
            self._coordinator = row.node_id
            self._client.refresh()
            then()

        self._client.call_any(find_coordinator, build, answered)

    def _again(self, code: int, step: Callable[[], None]) -> None:
        if code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            self._coordinator = -1
        self._failures += 1
        self._client.backoff(self._failures, step)
