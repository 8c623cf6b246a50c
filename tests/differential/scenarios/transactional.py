"""APIs of transactions: a transaction from begin to end, and requests outside of any."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import batch
from tests.differential.side import Side
from vdl.kafka.wire.add_offsets_to_txn import AddOffsetsToTxnRequest
from vdl.kafka.wire.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from vdl.kafka.wire.describe_transactions import DescribeTransactionsRequest
from vdl.kafka.wire.end_txn import EndTxnRequest
from vdl.kafka.wire.init_producer_id import InitProducerIdRequest
from vdl.kafka.wire.list_transactions import ListTransactionsRequest
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.kafka.wire.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from vdl.kafka.wire.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TIMEOUT_MS = 60_000
TRANSACTION = 1
"""Key type of FindCoordinator."""
FIRST_VERSION_UP_TO = 4
"""EndTxn of producers of the first version of the protocol; the next one bumps the epoch."""
PARTITIONS_ADDED_SINCE = 12
"""Produce adds its partitions to the transaction by itself from this version on."""
CLIENTS_UP_TO = 3
"""AddPartitionsToTxn of clients; later versions are between servers."""
CONCURRENT_TRANSACTIONS = 51


def begin(side: Side, name: str) -> tuple[str, int, Any]:
    """Return a transactional id, its coordinator, and its producer."""
    whole = f"{side.prefix}.{name}"
    at = side.coordinator(whole, TRANSACTION)
    request = InitProducerIdRequest(whole, TIMEOUT_MS)
    producer = side.retry(request, lambda answer: answer.error_code, version=4, to=at)
    assert producer.error_code == 0, producer
    return whole, at, producer


def add_request(
    name: str, producer: Any, *rows: tuple[str, list[int]], epoch: int = 0
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch + epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(*row) for row in rows],
    )


def ended(side: Side, label: str, request: EndTxnRequest, *, version: int, to: int) -> None:
    """Send an EndTxn, and retry it while the previous one is being completed, as clients do."""

    def is_done() -> bool:
        answer = side.quiet(request, version=version, to=to)
        if answer.error_code in {CONCURRENT_TRANSACTIONS, 14, 15, 16}:
            return False
        side.keep_answer(label, answer)
        return True

    side.settle(is_done, label)


def add_partitions(side: Side) -> None:
    topic = side.topic("added", 2)
    name, at, producer = begin(side, "adding")

    def ask(label: str, *rows: tuple[str, list[int]], to: int = at, **fields: Any) -> None:
        asked = fields.pop("name", name)
        for version in side.versions(24):
            if version <= CLIENTS_UP_TO:
                request = add_request(asked, producer, *rows, **fields)
                side.ask(f"{label} v{version}", request, version=version, to=to)

    unknown, coordinator = _unknown(side)
    ask("an unknown id", (topic, [0]), name=unknown, to=coordinator)
    ask("an unknown topic", (f"{side.prefix}.none", [0]))
    ask("a partition that is not there", (topic, [9]))
    ask("one good, one bad", (topic, [0]), (f"{side.prefix}.none", [0]))
    ask("an older epoch", (topic, [0]), epoch=-1)
    ask("a newer epoch", (topic, [0]), epoch=1)
    ask("an empty id", (topic, [0]), name="")
    ask("nothing")
    ask("not the coordinator", (topic, [0]), to=at % 3 + 1)
    ask("good", (topic, [0]))
    ask("the same and another", (topic, [0, 1]))


def verify_partitions(side: Side) -> None:
    """Verify partitions as servers do among each other (KIP-890)."""
    topic = side.topic("verified", 2)
    name, at, producer = begin(side, "verifying")
    version = side.versions(24)[-1]

    def ask(label: str, partitions: list[int], *, to: int = at, **fields: Any) -> None:
        fields = {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "verify_only": True,
        } | fields
        topics = [AddPartitionsToTxnTopic(topic, partitions)]
        row = AddPartitionsToTxnTransaction(**fields, topics=topics)
        side.ask(label, AddPartitionsToTxnRequest([row]), version=version, to=to)

    ask("none is open", [0])
    side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)
    ask("open", [0])
    ask("another partition", [1])
    ask("one that is in, one that is not", [0, 1])
    ask("another epoch", [0], producer_epoch=7)
    unknown, coordinator = _unknown(side)
    ask("an unknown id", [0], transactional_id=unknown, to=coordinator)


def add_offsets(side: Side) -> None:
    name, at, producer = begin(side, "offsets")

    def ask(label: str, *, to: int = at, epoch: int = 0, **fields: Any) -> None:
        fields = {"transactional_id": name, "group_id": f"{side.prefix}.g"} | fields
        fields.setdefault("producer_id", producer.producer_id)
        request = AddOffsetsToTxnRequest(**fields, producer_epoch=producer.producer_epoch + epoch)
        side.each(label, request, to=to)

    unknown, coordinator = _unknown(side)
    ask("an unknown id", transactional_id=unknown, to=coordinator)
    ask("another producer", producer_id=1 << 40)
    ask("an older epoch", epoch=-1)
    ask("a newer epoch", epoch=1)
    ask("an empty group", group_id="")
    ask("not the coordinator", to=at % 3 + 1)
    ask("good")
    ask("good, again")


def commit_offsets(side: Side) -> None:
    topic = side.topic("read")
    group = f"{side.prefix}.readers"
    name, at, producer = begin(side, "committing")
    coordinator = side.coordinator(group)
    side.quiet(
        AddOffsetsToTxnRequest(name, producer.producer_id, producer.producer_epoch, group),
        version=3,
        to=at,
    )

    def ask(
        label: str, *, to: int = coordinator, row: tuple[str, int] = (topic, 0), **fields: Any
    ) -> None:
        offset = TxnOffsetCommitRequestPartition(row[1], 5, committed_metadata="m")
        fields = {
            "transactional_id": name,
            "group_id": group,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "topics": [TxnOffsetCommitRequestTopic(row[0], partitions=[offset])],
        } | fields
        for version in side.versions(28):
            if version < 5:  # later versions add the group by themselves
                side.ask(
                    f"{label} v{version}", TxnOffsetCommitRequest(**fields), version=version, to=to
                )

    ask("a member that is not there", member_id="nobody", generation_id_or_member_epoch=3)
    ask("a generation without a member", generation_id_or_member_epoch=3)
    ask("an unknown topic", row=(f"{side.prefix}.none", 0))
    ask("no group", group_id="")
    ask("nothing", topics=[])
    ask("not the coordinator", to=coordinator % 3 + 1)
    ask("good")
    ask("an older epoch", producer_epoch=producer.producer_epoch - 1)


def end(side: Side) -> None:
    topic = side.topic("ended")
    for version in side.versions(26):
        if version > FIRST_VERSION_UP_TO:
            continue
        name, at, producer = begin(side, f"ending-{version}")

        def request(
            *, commits: bool = True, epoch: int = 0, name: str = name, producer: Any = producer
        ) -> EndTxnRequest:
            newer = producer.producer_epoch + epoch
            return EndTxnRequest(name, producer.producer_id, newer, commits)

        def ask(
            label: str, message: EndTxnRequest, *, version: int = version, to: int = at
        ) -> None:
            side.ask(f"{label} v{version}", message, version=version, to=to)

        ask("none is open", request())
        unknown, coordinator = _unknown(side)
        ask("an unknown id", request(name=unknown), to=coordinator)
        ask("not the coordinator", request(), to=at % 3 + 1)
        side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)
        ask("an older epoch", request(epoch=-1))
        ask("a newer epoch", request(epoch=1))
        ended(side, f"commit v{version}", request(), version=version, to=at)
        ended(side, f"commit, again v{version}", request(), version=version, to=at)
        ended(side, f"abort behind it v{version}", request(commits=False), version=version, to=at)
        side.settle(
            lambda name=name, at=at: _state(side, name, at) == "CompleteCommit", "it is complete"
        )
        _describe(side, f"complete v{version}", name, to=at)


def produce_beside_a_transaction(side: Side) -> None:
    """Produce a transactional producer's batches outside of a transaction and after its timeout."""
    topic = side.topic("beside")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    name, at, producer = begin(side, "beside")
    version = max(v for v in side.versions(0) if v < PARTITIONS_ADDED_SINCE)

    def ask(label: str, sequence: int, *, is_transactional: bool) -> None:
        records = batch(
            [b"v"],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        rows = [PartitionProduceData(0, records)]
        request = ProduceRequest(
            name if is_transactional else None,
            -1,
            10_000,
            [TopicProduceData(topic, topic_id, rows)],
        )
        side.ask(label, request, version=version, to=leader)

    ask("before it", 0, is_transactional=False)
    side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)
    ask("the first of it", 1, is_transactional=True)
    ask("beside it", 2, is_transactional=False)
    ask("the second of it", 2, is_transactional=True)
    ask("beside it, after a gap", 5, is_transactional=False)
    request = EndTxnRequest(name, producer.producer_id, producer.producer_epoch, True)
    ended(side, "commit", request, version=FIRST_VERSION_UP_TO, to=at)
    side.settle(lambda: _state(side, name, at) == "CompleteCommit", "it is complete")
    ask("behind it", 3, is_transactional=False)


def begin_after_a_time_out(side: Side) -> None:
    """The producer names its previous epoch, as clients do that may continue (KIP-588)."""
    topic = side.topic("late")
    name = f"{side.prefix}.late"
    at = side.coordinator(name, TRANSACTION)
    request = InitProducerIdRequest(name, 1_000)
    producer = side.retry(request, lambda answer: answer.error_code, version=4, to=at)
    side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)
    side.settle(lambda: _state(side, name, at) == "CompleteAbort", "it is aborted")

    def ask(label: str, *, epoch: int) -> None:
        request = InitProducerIdRequest(name, TIMEOUT_MS, producer.producer_id, epoch)
        answer = side.quiet(request, version=4, to=at)
        side.keep(label, [answer.error_code, answer.producer_epoch])

    ask("the epoch that it had", epoch=producer.producer_epoch)
    ask("again", epoch=producer.producer_epoch)
    ask("the next one", epoch=producer.producer_epoch + 1)
    ask("an epoch before", epoch=producer.producer_epoch - 1)


def end_with_a_new_epoch(side: Side) -> None:
    """Send EndTxn of the second version of the protocol (KIP-890)."""
    topic = side.topic("ended")
    version = side.versions(26)[-1]
    name, at, producer = begin(side, "ending")
    request = EndTxnRequest(name, producer.producer_id, producer.producer_epoch, False)
    ended(side, "abort of nothing", request, version=version, to=at)
    producer = side.retry(InitProducerIdRequest(name, TIMEOUT_MS), _retried, version=4, to=at)
    side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)
    request = EndTxnRequest(name, producer.producer_id, producer.producer_epoch, True)
    ended(side, "commit", request, version=version, to=at)
    ended(side, "commit, again", request, version=version, to=at)
    request = EndTxnRequest(name, producer.producer_id, producer.producer_epoch, False)
    ended(side, "abort behind it", request, version=version, to=at)
    side.settle(lambda: _state(side, name, at) == "CompleteCommit", "it is complete")
    _describe(side, "complete", name, to=at)


def _retried(answer: Any) -> int:
    """Return the code mapped to one that the side retries."""
    return 14 if answer.error_code == CONCURRENT_TRANSACTIONS else int(answer.error_code)


def _state(side: Side, name: str, to: int) -> str:
    answer = side.quiet(DescribeTransactionsRequest([name]), to=to)
    return str(answer.transaction_states[0].transaction_state)


def _describe(side: Side, label: str, *names: str, to: int) -> None:
    for version in side.versions(65):
        request = DescribeTransactionsRequest(list(names))
        answer = side.quiet(request, version=version, to=to)
        for state in answer.transaction_states:
            for topic in state.topics:
                topic.partitions.sort()  # a set in Kafka
        side.keep_answer(f"{label} v{version}", answer)


def _unknown(side: Side) -> tuple[str, int]:
    """Return an unused transactional id, and its coordinator."""
    name = f"{side.prefix}.none"
    return name, side.coordinator(name, TRANSACTION)


def describe_transactions(side: Side) -> None:
    topic = side.topic("described", 2)
    name, at, producer = begin(side, "described")
    _describe(side, "without a transaction", name, to=at)
    side.quiet(add_request(name, producer, (topic, [0, 1])), version=3, to=at)
    _describe(side, "open", name, to=at)
    _describe(side, "twice", name, name, to=at)
    _describe(side, "not the coordinator", name, to=at % 3 + 1)
    _describe(side, "an empty id", "", to=at)
    _describe(side, "nothing", to=at)
    unknown, coordinator = _unknown(side)
    _describe(side, "unknown", unknown, to=coordinator)


def list_transactions(side: Side) -> None:
    topic = side.topic("listed")
    name, at, producer = begin(side, "listed")
    side.quiet(add_request(name, producer, (topic, [0])), version=3, to=at)

    def ask(label: str, *states: str, **fields: Any) -> None:
        for version in side.versions(66):
            request = ListTransactionsRequest(list(states), **fields)
            try:
                answer = side.quiet(request, version=version, to=at)
            except Exception as error:
                if type(error).__name__ == "UnsupportedField":
                    continue
                raise
            answer.transaction_states = [
                row
                for row in answer.transaction_states
                if row.transactional_id.startswith(side.prefix)
            ]
            side.keep_answer(f"{label} v{version}", answer)

    ask("all")
    ask("open ones", "Ongoing")
    ask("others", "Empty", "CompleteCommit")
    ask("no such state", "Asleep", "Ongoing")
    ask("in small letters", "ongoing")
    ask("of its producer", producer_id_filters=[producer.producer_id])
    ask("of another producer", producer_id_filters=[1 << 40])
    ask("open for long", duration_filter=600_000)
    ask("open at all", duration_filter=0)
    ask("a pattern", transactional_id_pattern=".*listed")
    ask("a pattern that nothing matches", transactional_id_pattern="listed")
    ask("no pattern", transactional_id_pattern="")
    ask("a broken pattern", transactional_id_pattern="(")


def write_markers(side: Side) -> None:
    """Send the markers that `kafka-transactions abort` sends."""
    topic = side.topic("marked", 2)
    leader = side.leader(topic)

    def ask(label: str, *rows: tuple[str, list[int]], to: int = leader, **fields: Any) -> None:
        fields = {"producer_id": 4_000_000, "producer_epoch": 0, "coordinator_epoch": 0} | fields
        marker = WritableTxnMarker(**fields, topics=[WritableTxnMarkerTopic(*row) for row in rows])
        side.each(label, WriteTxnMarkersRequest([marker]), to=to)

    ask("an unknown topic", (f"{side.prefix}.none", [0]))
    ask("a partition that is not there", (topic, [9]))
    ask("not the leader", (topic, [0]), to=side.other(topic))
    ask("nothing")
    side.each("no marker", WriteTxnMarkersRequest([]), to=leader)


def init_transactional(side: Side) -> None:
    """Send InitProducerId with a transactional id."""
    name = f"{side.prefix}.begun"
    at = side.coordinator(name, TRANSACTION)

    def ask(label: str, *, to: int = at, **fields: Any) -> None:
        fields = {"transactional_id": name, "transaction_timeout_ms": TIMEOUT_MS} | fields
        for version in side.versions(22):
            if version > 5:
                continue
            side.ask(f"{label} v{version}", InitProducerIdRequest(**fields), version=version, to=to)

    begin(side, "begun")
    ask("the next epoch")
    ask("too long", transaction_timeout_ms=1_000_000_000)
    ask("no time", transaction_timeout_ms=0)
    ask("negative time", transaction_timeout_ms=-1)
    ask("not the coordinator", to=at % 3 + 1)
    for version in (3, 4, 5):
        producer = side.retry(
            InitProducerIdRequest(name, TIMEOUT_MS), _retried, version=version, to=at
        )
        for label, epoch in (("its own epoch", 0), ("asked again", 0), ("an epoch to come", 9)):
            request = InitProducerIdRequest(
                name, TIMEOUT_MS, producer.producer_id, producer.producer_epoch + epoch
            )
            side.ask(f"{label} v{version}", request, version=version, to=at)
        request = InitProducerIdRequest(name, TIMEOUT_MS, 1 << 40, 0)
        side.ask(f"another producer v{version}", request, version=version, to=at)


SCENARIOS = (
    add_partitions,
    verify_partitions,
    add_offsets,
    commit_offsets,
    end,
    produce_beside_a_transaction,
    begin_after_a_time_out,
    end_with_a_new_epoch,
    describe_transactions,
    list_transactions,
    write_markers,
    init_transactional,
)
