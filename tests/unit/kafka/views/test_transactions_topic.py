"""`__transaction_state`: states of transactional ids, as a log that Kafka's tools read."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

import pytest

from ids import GroupId
from segments.api import NotInMemory, Slices
from tests.unit.kafka.fake_coordinator import FakeCoordinator
from tests.unit.kafka.fake_host import WALL_MS, World, batch
from vdl.errors import ErrorCode
from vdl.kafka.host import at_once
from vdl.kafka.views import transactions_topic
from vdl.kafka.views.coordinator_view import OFFSETS_PER_ENTRY, CoordinatorView
from vdl.kafka.views.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TRANSACTIONS_TOPIC_ID,
    Seen,
    state_value,
    transaction_log,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import iter_records
from vdl.state import commands
from vdl.state.transactions import TransactionalId, TransactionState

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)


class State(NamedTuple):
    """Contents of a record."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: int
    partitions: dict[str, list[int]] | None


class Transactional(FakeCoordinator):
    """Coordinator of transactional ids, with the requests of its producers."""

    def begin(self, name: str, producer_id: int = 1_000) -> None:
        assert self.apply(commands.InitTransactions(name, 60_000, producer_id)).error == 0

    def add(self, name: str, *participants: int, producer_id: int = 1_000, epoch: int = 0) -> None:
        groups = [GroupId(participant) for participant in participants]
        command = commands.AddToTransaction(name, producer_id, epoch, groups, version=2)
        assert self.apply(command).error == 0

    def end(self, name: str, *, producer_id: int = 1_000, commits: bool = True) -> None:
        command = commands.EndTransaction(name, producer_id, 0, commits, version=2)
        assert self.apply(command).error == 0

    def complete(self, *names: str) -> None:
        known = [self.machine.transactions.ids[name] for name in names]
        rows = [(one.transactional_id, one.producer_id, one.number) for one in known]
        assert self.apply(commands.CompleteTransactions(rows)).error == 0


def decoded(key: bytes | None, value: bytes | None) -> State:
    """Decode a record by Kafka's schemas: TransactionLogKey v0, TransactionLogValue v1."""
    assert key is not None
    assert value is not None
    version, length = Struct(">hh").unpack_from(key)
    assert (version, 4 + length) == (0, len(key))
    version, producer_id, epoch, timeout_ms, state = Struct(">hqhib").unpack_from(value)
    assert (version, timeout_ms) == (1, 60_000)
    at = 17
    topics = value[at]
    at += 1
    partitions: dict[str, list[int]] | None = {} if topics else None
    for _ in range(topics - 1):
        size = value[at] - 1
        topic = value[at + 1 : at + 1 + size].decode()
        at += 1 + size
        count = value[at] - 1
        assert partitions is not None
        partitions[topic] = list(Struct(f">{count}i").unpack_from(value, at + 1))
        at += 1 + 4 * count
        assert value[at] == 0, "tagged fields of the topic"
        at += 1
    changed_ms, started_ms = Struct(">qq").unpack_from(value, at)
    assert changed_ms == WALL_MS
    assert started_ms == (WALL_MS if state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT) else -1)
    # The version of the protocol, two bytes under tag 2, and nothing else.
    assert value[at + 16 : at + 20] == b"\1\2\2\0", value[at + 16 :]
    assert len(value) == at + 21
    return State(key[4:].decode(), producer_id, epoch, state, partitions)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def coordinator() -> Transactional:
    return Transactional()


def view(world: World, coordinator: Transactional) -> CoordinatorView[str, Seen]:
    gaps = LoopGaps(world.clock, limit_ns=1 << 40)
    log = transaction_log(
        coordinator,  # type: ignore[arg-type]
        GroupId(1),
        world.clock,
        gaps,
        at_once,
        lambda: world.host.catalog,  # type: ignore[arg-type, return-value]
    )
    world.context.views[TRANSACTIONS_TOPIC, GroupId(1)] = log
    return log


def read(log: CoordinatorView[str, Seen], offset: int = 0) -> list[State]:
    """Return all states from an offset on."""
    found: list[State] = []
    while offset < log.high_watermark:
        try:
            slices = log.read(offset, 1 << 20)  # type: ignore[arg-type]
        except NotInMemory:
            cold: list[Any] = []
            log.read_cold(offset, 1 << 20, cold.append)  # type: ignore[arg-type]
            (slices,) = cold
        assert isinstance(slices, Slices)
        for buffer in slices.buffers:
            found += [
                decoded(record.key, record.value)
                for record in iter_records(buffer)
                if record.offset >= offset and record.value is not None
            ]
        assert slices.end_offset > offset, "a reader always moves on"
        offset = slices.end_offset
    return found


def test_every_state_of_a_transaction_is_read(world: World, coordinator: Transactional) -> None:
    """The reader keeps up with the writer.

    States include the transaction's partitions, also those of groups' offsets.
    """
    (stream,) = world.topic()
    log = view(world, coordinator)
    position = 0
    seen: list[State] = []

    def look() -> None:
        nonlocal position
        seen.extend(read(log, position))
        position = log.high_watermark

    look()
    coordinator.begin("a")
    look()
    coordinator.add("a", stream.group_id)
    look()
    coordinator.add("a", stream.group_id, 3)
    look()
    coordinator.end("a")
    look()
    coordinator.complete("a")
    look()
    both = {"__consumer_offsets": [2], "t": [0]}
    assert seen == [
        State("a", 1_000, 0, EMPTY, None),
        State("a", 1_000, 0, ONGOING, {"t": [0]}),
        State("a", 1_000, 0, ONGOING, both),
        State("a", 1_000, 1, PREPARE_COMMIT, both),
        State("a", 1_000, 1, COMPLETE_COMMIT, {}),
    ]


def test_ids_that_change_together_are_found_together(
    world: World, coordinator: Transactional
) -> None:
    """A reader far behind finds each id once, at its last entry."""
    (stream,) = world.topic()
    log = view(world, coordinator)
    assert read(log) == []
    for n, name in enumerate("abc"):
        coordinator.begin(name, n)
        coordinator.add(name, stream.group_id, producer_id=n)
        coordinator.end(name, producer_id=n, commits=n != 1)
    coordinator.complete("a", "b")
    assert read(log) == [
        State("c", 2, 1, PREPARE_COMMIT, {"t": [0]}),
        State("a", 0, 1, COMPLETE_COMMIT, {}),
        State("b", 1, 1, COMPLETE_ABORT, {}),
    ]
    rows = [(one.transactional_id, one.producer_id, one.number) for one in _open(coordinator)]
    assert coordinator.apply(commands.AbortTransactions(rows)).error == 0
    assert len(read(log)) == 3, "what was decided stands"


def _open(coordinator: Transactional) -> list[TransactionalId]:
    return [
        one
        for one in coordinator.machine.transactions.ids.values()
        if one.state is TransactionState.PREPARE_COMMIT
    ]


def test_what_was_there_before_is_read_in_batches(
    world: World, coordinator: Transactional, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that changed since are found later."""
    monkeypatch.setattr(transactions_topic, "IDS_PER_BATCH", 7)
    for n in range(30):
        coordinator.begin(f"id-{n}", n)
    log = view(world, coordinator)
    assert [state.producer_id for state in read(log)] == list(range(30))
    coordinator.begin("id-3", 99)
    assert [state.producer_id for state in read(log)] == [*range(3), *range(4, 30), 3]
    behind = OFFSETS_PER_ENTRY * coordinator.group.applied
    assert [state.producer_id for state in read(log, behind)] == [3]


def test_transactional_id_that_expires_has_a_tombstone(
    world: World, coordinator: Transactional
) -> None:
    for name in ("a", "b"):
        coordinator.begin(name)
    log = view(world, coordinator)
    read(log)
    coordinator.apply(commands.ExpireTransactionalIds(5, WALL_MS + 10, 1))
    slices = log.read(OFFSETS_PER_ENTRY * coordinator.group.applied, 1 << 20)  # type: ignore[arg-type]
    (record,) = [one for buffer in slices.buffers for one in iter_records(buffer)]
    assert (record.key, record.value) == (b"\0\0\0\1a", None)
    assert [state.transactional_id for state in read(log)] == ["b"]


def test_producer_ids_that_follow_each_other_are_told() -> None:
    """They are tagged fields, in the order of their tags."""
    known = TransactionalId(
        "a", 7, 3, 1, TransactionState.PREPARE_COMMIT, 5,
        previous_producer_id=6, next_producer_id=8, version=2,
    )  # fmt: skip
    value = state_value(known, {})
    tags = value[17 + 1 + 16 :]
    ids = [Struct(">q").pack(n) for n in (6, 8)]
    assert tags == b"\3" + b"\0\x08" + ids[0] + b"\1\x08" + ids[1] + b"\2\2\0\2"


def test_clients_read_it_and_change_nothing_of_it(world: World, coordinator: Transactional) -> None:
    """It is internal in Metadata, fetched by name and by id, and cannot be written to."""
    coordinator.begin("a")
    view(world, coordinator)
    client = world.client()
    asked = MetadataRequest([MetadataRequestTopic(bytes(16), TRANSACTIONS_TOPIC)])
    (topic,) = client.ask(3, 12, asked).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.NONE, True)
    assert topic.topic_id == TRANSACTIONS_TOPIC_ID
    for version, topic_id in ((12, bytes(16)), (13, TRANSACTIONS_TOPIC_ID)):
        poll = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=10, max_bytes=1 << 20,
            topics=[FetchTopic(TRANSACTIONS_TOPIC, topic_id, [poll])],
        )  # fmt: skip
        (partition,) = client.ask(1, version, request).responses[0].partitions
        (record,) = iter_records(memoryview(bytes(partition.records)))
        assert decoded(record.key, record.value).transactional_id == "a"
    data = [PartitionProduceData(0, memoryview(batch()))]
    produce = ProduceRequest(None, -1, 100, [TopicProduceData(TRANSACTIONS_TOPIC, bytes(16), data)])
    (written,) = client.ask(0, 9, produce).responses
    assert written.partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    deleted = DeleteTopicsRequest([DeleteTopicState(name=TRANSACTIONS_TOPIC)], [], 100)
    (result,) = client.ask(20, 6, deleted).responses
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_two_views_of_one_coordinator_are_told_apart(
    world: World, coordinator: Transactional
) -> None:
    """Both views receive requests for the same partition in one turn."""
    from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC, commit_log

    coordinator.begin("a")
    coordinator.commit("g", 5, 0)
    view(world, coordinator)
    gaps = LoopGaps(world.clock, limit_ns=1 << 40)
    commits = commit_log(coordinator, 1, world.clock, gaps, at_once)  # type: ignore[arg-type]
    world.context.views[OFFSETS_TOPIC, GroupId(1)] = commits
    client = world.client()
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        poll = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic, bytes(16), [poll])]
        client.request(1, 12, FetchRequest(max_wait_ms=10, max_bytes=1 << 20, topics=topics))
    world.run(1)
    keys = []
    for answer in client.answers():
        (partition,) = answer.responses[0].partitions
        keys.append(next(iter(iter_records(memoryview(bytes(partition.records))))).key)
    assert [key[:2] for key in keys if key is not None] == [b"\0\1", b"\0\0"]
