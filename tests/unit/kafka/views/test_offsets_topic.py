"""`__consumer_offsets`: committed offsets of groups, as a log that monitors read."""

from __future__ import annotations

from typing import Any

import pytest

from segments.api import NotInMemory, OffsetOutOfRange, Slices
from tests.unit.kafka.fake_coordinator import FakeCoordinator
from tests.unit.kafka.fake_host import WALL_MS, World, batch
from tests.unit.kafka.views.coordinator_records import read_record
from vdl.errors import ErrorCode
from vdl.kafka.host import at_once
from vdl.kafka.views import coordinator_view, group_records
from vdl.kafka.views.coordinator_view import OFFSETS_PER_ENTRY, RECORDS_PER_READ, CoordinatorView
from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_ID, commit_log
from vdl.kafka.wire.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from vdl.kafka.wire.create_topics import CreatableTopic, CreateTopicsRequest
from vdl.kafka.wire.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from vdl.kafka.wire.delete_topics import DeleteTopicsRequest, DeleteTopicState
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import crc_matches, iter_records, read_header
from vdl.state import commands
from vdl.state.changed_parts import Part, PartKind
from vdl.state.modern.member import ClassicSide, ModernMember

CommitLog = CoordinatorView[Any, Any]
Read = tuple[str, str, int, int]
"""Group, topic, partition, committed offset."""
Told = tuple[str, dict[str, Any], Any]
"""(record type, key, value); the value is None for a tombstone."""


class Reader:
    """Consumer of one view: takes batches as a client does."""

    def __init__(self, log: CommitLog, position: int = 0) -> None:
        self.log = log
        self.position = position

    def poll(self, bytes_max: int = 1 << 20) -> list[Read]:
        """Return the committed offsets from the position to the end."""
        return positions(self.poll_all(bytes_max))

    def poll_all(self, bytes_max: int = 1 << 20) -> list[Told]:
        """Return all records from the position to the end."""
        found: list[Told] = []
        while self.position < self.log.high_watermark:
            found += self.poll_once(bytes_max)
        return found

    def poll_once(self, bytes_max: int) -> list[Told]:
        try:
            slices = self.log.read(self.position, bytes_max)
        except NotInMemory:
            cold: list[Any] = []
            self.log.read_cold(self.position, bytes_max, cold.append)
            (slices,) = cold
        assert isinstance(slices, Slices)
        assert slices.end_offset > self.position, "a reader always moves on"
        found: list[Told] = []
        for buffer in slices.buffers:
            header = read_header(buffer)
            assert crc_matches(buffer)
            assert header.base_offset + header.last_offset_delta + 1 > self.position
            for record in iter_records(buffer):
                assert record.offset >= header.base_offset
                if record.offset >= self.position:
                    assert record.key is not None
                    found.append(read_record(record.key, record.value))
            self.position = header.base_offset + header.last_offset_delta + 1
        assert self.position == slices.end_offset
        return found


def positions(told: list[Told]) -> list[Read]:
    """Return the committed offsets among the records, without tombstones."""
    found: list[Read] = []
    for kind, names, value in told:
        if kind == "offset" and value is not None:
            assert (value["epoch"], value["metadata"]) == (4, "m")
            assert value["committed"] >= WALL_MS
            found.append((names["group"], names["topic"], names["partition"], value["offset"]))
    return found


def gone(told: list[Told]) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys of tombstones."""
    return [(kind, names) for kind, names, value in told if value is None]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def coordinator() -> FakeCoordinator:
    return FakeCoordinator()


def view(world: World, coordinator: FakeCoordinator) -> CommitLog:
    gaps = LoopGaps(world.clock, limit_ns=1 << 40)
    log = commit_log(coordinator, 1, world.clock, gaps, at_once)  # type: ignore[arg-type]
    world.context.views[OFFSETS_TOPIC, 1] = log
    return log


def test_commits_are_read_in_their_order(world: World, coordinator: FakeCoordinator) -> None:
    """First the state at the first read, then each commit.

    The end advances over unused offsets too.
    """
    coordinator.commit("a", 10, 0, 1)
    coordinator.commit("b", 20, 0)
    log = view(world, coordinator)
    reader = Reader(log)
    assert reader.poll() == [("a", "t", 0, 10), ("a", "t", 1, 10), ("b", "t", 0, 20)]
    coordinator.commit("b", 21, 0)
    coordinator.apply(commands.ExpireMembers("b", []))
    coordinator.commit("a", 11, 1, 0)
    assert reader.poll() == [("b", "t", 0, 21), ("a", "t", 1, 11), ("a", "t", 0, 11)]
    coordinator.apply(commands.ExpireMembers("b", []))
    assert reader.poll() == []
    assert (
        reader.position
        == log.high_watermark
        == (coordinator.group.applied + 1) * (OFFSETS_PER_ENTRY)
    )


def test_what_has_no_offset_left_is_read_when_it_changes(
    world: World, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has more records than one entry has offsets.

    None gets an offset of the next entry.
    """
    monkeypatch.setattr(coordinator_view, "OFFSETS_PER_ENTRY", 8)
    for group in ("a", "b", "c"):
        coordinator.commit(group, 10, 0, 1)
    reader = Reader(view(world, coordinator))
    assert {group for group, *_ in reader.poll()} == {"a", "b"}
    coordinator.commit("c", 11, 0)
    coordinator.commit("a", 12, 1)
    assert reader.poll() == [("c", "t", 0, 11), ("a", "t", 1, 12)]


def test_position_that_is_committed_again_is_found_at_the_later_commit_alone(
    world: World, coordinator: FakeCoordinator
) -> None:
    """A reader far behind reads each key once, as after compaction."""
    log = view(world, coordinator)
    behind = Reader(log)
    behind.poll()
    for offset in range(50):
        coordinator.commit("a", offset, 0, 1)
        coordinator.commit("b", offset, 0)
    coordinator.commit("a", 99, 1)
    assert behind.poll() == [("a", "t", 0, 49), ("b", "t", 0, 49), ("a", "t", 1, 99)]
    assert Reader(log).poll() == [("a", "t", 0, 49), ("b", "t", 0, 49), ("a", "t", 1, 99)]


def test_positions_of_a_transaction_are_found_when_it_has_committed(
    world: World, coordinator: FakeCoordinator
) -> None:
    """They appear at the entry that ends the transaction; those of an aborted one never do.

    If one entry has several groups, all of it is sent once more.
    """

    def pend(group: str, producer: int, offset: int) -> None:
        offsets = [commands.OffsetCommit("t", bytes(16), 0, offset, 4, "m")]
        command = commands.CommitTransactionOffsets(group, -1, "", None, producer, 0, 1, offsets)
        assert coordinator.apply(command).error is ErrorCode.NONE

    coordinator.commit("a", 1, 0)
    reader = Reader(view(world, coordinator))
    assert reader.poll() == [("a", "t", 0, 1)]
    pend("a", 7, 5)
    pend("a", 8, 6)
    assert reader.poll() == []
    coordinator.apply(commands.EndTransactionOffsets(8, 0, 1, False))
    assert reader.poll() == []
    coordinator.apply(commands.EndTransactionOffsets(7, 0, 1, True))
    assert reader.poll() == [("a", "t", 0, 5)]
    pend("a", 9, 7)
    pend("b", 9, 8)
    coordinator.apply(commands.EndTransactionOffsets(9, 0, 1, True))
    assert sorted(reader.poll()) == [("a", "t", 0, 7), ("b", "t", 0, 8)]


def test_what_is_deleted_or_expires_has_a_tombstone(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Covers several groups in one entry. A view that begins later has nothing of them."""
    coordinator.commit("old", 1, 0)
    log = view(world, coordinator)
    reader = Reader(log)
    reader.poll()
    coordinator.commit("new", 2, 0, 1)
    coordinator.commit("late", 3, 0)
    coordinator.apply(commands.DeleteOffsets("new", [("t", 0)]))
    coordinator.apply(commands.DeleteGroups(["old", "late", "unknown"]))
    told = reader.poll_all()
    assert positions(told) == [("new", "t", 1, 2)]
    assert sorted(gone(told), key=repr) == [
        ("classic", {"group": "late"}),
        ("classic", {"group": "old"}),
        ("offset", {"group": "late", "topic": "t", "partition": 0}),
        ("offset", {"group": "new", "topic": "t", "partition": 0}),
        ("offset", {"group": "old", "topic": "t", "partition": 0}),
    ]
    coordinator.apply(commands.ExpireOffsets(1, [], WALL_MS + 10))
    assert gone(reader.poll_all()) == [
        ("offset", {"group": "new", "topic": "t", "partition": 1}),
        ("classic", {"group": "new"}),
    ]
    coordinator.led_again()
    assert Reader(log).poll_all() == []


def join(group: str, member: str, *, instance_id: str | None = None) -> commands.JoinGroup:
    return commands.JoinGroup(
        group_id=group,
        member_id="",
        new_member_id=member,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[commands.Protocol("range", b"subscribes")],
        known_member_id_required=False,
        hold_first_rebalance=False,
        members_max=100,
    )


def test_owners_of_a_classic_group_are_told_when_they_have_their_partitions(
    world: World, coordinator: FakeCoordinator
) -> None:
    """GroupMetadata: none during a rebalance; empty when the last member has left."""
    reader = Reader(view(world, coordinator))
    coordinator.apply(join("g", "one", instance_id="i"))
    assert reader.poll_all() == []
    coordinator.apply(commands.SyncGroup("g", 1, "one", "i", None, None, [("one", b"has")]))
    ((kind, names, value),) = reader.poll_all()
    assert (kind, names) == ("classic", {"group": "g"})
    assert (value["protocolType"], value["generation"]) == ("consumer", 1)
    assert (value["protocol"], value["leader"], value["changed"]) == ("range", "one", WALL_MS)
    assert value["members"] == [
        {
            "memberId": "one",
            "groupInstanceId": "i",
            "clientId": "client",
            "clientHost": "/10.0.0.1",
            "rebalanceTimeout": 60_000,
            "sessionTimeout": 10_000,
            "subscription": b"subscribes",
            "assignment": b"has",
        }
    ]
    again = Reader(reader.log)
    assert [told[2] for told in again.poll_all()] == [value], "as it stands"
    coordinator.apply(commands.LeaveGroup("g", [commands.LeavingMember("one", "i")]))
    ((_, _, value),) = reader.poll_all()
    assert (value["generation"], value["leader"], value["members"]) == (2, None, [])


def beat(group: str, member: str, epoch: int, **fields: Any) -> commands.ConsumerHeartbeat:
    return commands.ConsumerHeartbeat(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        instance_id=None,
        rack_id="r",
        client_id="client",
        client_host="/10.0.0.1",
        rebalance_timeout_ms=60_000,
        assignor="uniform",
        members_max=100,
        **fields,
    )


def test_groups_of_the_newer_protocol_are_told_part_by_part(
    world: World, coordinator: FakeCoordinator
) -> None:
    """KIP-848: epochs, members, targets, current assignments and patterns.

    Tombstones are written when a member leaves and when the group is deleted.
    """
    topic_id = bytes(range(16))
    reader = Reader(view(world, coordinator))
    coordinator.apply(beat("g", "one", 0, topics=["t"], pattern="t.*", owned=None))
    assert {kind: value for kind, _, value in reader.poll_all()} == {
        "group": {"epoch": 1},
        "target-epoch": {"epoch": 0},
        "member": {
            "instanceId": None,
            "rackId": "r",
            "clientId": "client",
            "clientHost": "/10.0.0.1",
            "topics": ["t"],
            "regex": "t.*",
            "rebalanceTimeout": 60_000,
            "assignor": "uniform",
            "classic": None,
        },
        "assignment": {"epoch": 0, "previous": 0, "state": 0, "assigned": [], "revoking": []},
    }
    coordinator.apply(
        commands.AssignTargets(
            "g",
            1,
            1,
            [commands.SubscribedTopic("t", topic_id, 2, 9)],
            [commands.ResolvedPattern("t.*", ["t"])],
            [("one", ((topic_id, (0, 1)),))],
        )
    )
    told = {kind: value for kind, _, value in reader.poll_all()}
    has = [{"topicId": topic_id, "partitions": [0, 1]}]
    assert told["target-epoch"] == {"epoch": 1}
    assert told["target"] == {"partitions": has}
    assert told["pattern"] == {"topics": ["t"], "version": 0, "timestamp": WALL_MS}
    coordinator.apply(beat("g", "one", 0, topics=["t"], pattern="t.*", owned=None))
    told = {kind: value for kind, _, value in reader.poll_all()}
    assert told["assignment"] == {
        "epoch": 1, "previous": 0, "state": 0, "assigned": has, "revoking": [],
    }  # fmt: skip
    standing = {kind for kind, _, _ in Reader(reader.log).poll_all()}
    assert standing == {"group", "member", "target-epoch", "target", "assignment", "pattern"}
    coordinator.apply(commands.LeaveConsumerGroup("g", "one", None, False))
    assert sorted(gone(reader.poll_all()), key=repr) == [
        ("assignment", {"group": "g", "member": "one"}),
        ("member", {"group": "g", "member": "one"}),
        ("pattern", {"group": "g", "pattern": "t.*"}),
        ("target", {"group": "g", "member": "one"}),
    ]
    coordinator.apply(commands.DeleteGroups(["g"]))
    assert sorted(gone(reader.poll_all()), key=repr) == [
        ("group", {"group": "g"}),
        ("target-epoch", {"group": "g"}),
    ]


def test_classic_member_of_a_newer_group_says_so() -> None:
    """KIP-848: with the fields that it would need in a classic group."""
    classic = ClassicSide(9_000, [commands.Protocol("range", b"subscribes")])
    member = ModernMember("one", "i", None, "c", "h", 7, ("t",), None, None, classic=classic)
    key = group_records.key(Part(PartKind.MEMBER, "g", "one"))
    _, _, value = read_record(key, group_records.member_value(member))
    assert (value["instanceId"], value["assignor"]) == ("i", None)
    assert value["classic"] == {
        "sessionTimeout": 9_000,
        "protocols": [{"name": "range", "metadata": b"subscribes"}],
    }


def test_what_changes_is_noted_only_while_somebody_reads(
    world: World, coordinator: FakeCoordinator
) -> None:
    log = view(world, coordinator)
    coordinator.commit("a", 1, 0)
    assert coordinator.machine.changed.take() == []
    Reader(log).poll()
    coordinator.led_again()
    coordinator.commit("a", 2, 0)
    assert coordinator.machine.changed.take() == []


def test_reader_that_goes_on_under_a_new_leader_misses_nothing(
    world: World, coordinator: FakeCoordinator
) -> None:
    """It may read the same state again; its position stays valid in the continued log."""
    log = view(world, coordinator)
    reader = Reader(log)
    coordinator.commit("a", 1, 0)
    assert reader.poll() == [("a", "t", 0, 1)]
    coordinator.commit("a", 2, 0)
    before = log.high_watermark
    term = log.term
    coordinator.led_again()
    assert log.end_offset_for_epoch(term) == (term, log.high_watermark)
    coordinator.commit("b", 3, 0)
    assert reader.poll() == [("a", "t", 0, 2), ("b", "t", 0, 3)]
    assert reader.position > before


def test_view_of_many_positions_is_read_in_pieces(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Entries are never split, and no read returns many more records than it should."""
    for number in range(30):
        coordinator.commit(f"g{number}", number, *range(300))
    log = view(world, coordinator)
    reader = Reader(log)
    pieces: list[int] = []
    while reader.position < log.high_watermark:
        pieces.append(len(reader.poll_once(1 << 30)))
    assert sum(pieces) == 9_000
    assert max(pieces) <= RECORDS_PER_READ + 300
    assert len(Reader(log).poll_once(1)) == 300
    with pytest.raises(NotInMemory):
        log.read(0, 1 << 30)
    with pytest.raises(OffsetOutOfRange):
        log.read(log.high_watermark + 1, 1)


def test_time_finds_the_first_commit_at_or_after(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Holds also if the offset committed by that entry has been committed again since."""
    log = view(world, coordinator)
    Reader(log).poll()
    for n in range(4):
        coordinator.commit("ab"[n % 2], n, 0, now_ms=WALL_MS + 100 * n)
    found: list[Any] = []
    last = coordinator.group.applied
    for timestamp in (0, WALL_MS + 150, WALL_MS + 250, WALL_MS + 301):
        log.offset_for_time(timestamp, found.append)
    log.offset_of_largest_time(found.append)
    entries = [one.offset // OFFSETS_PER_ENTRY if one.offset >= 0 else -1 for one in found]
    assert entries == [last - 1, last - 1, last, -1, last]
    assert found[-1].timestamp == WALL_MS + 300


def test_view_forgets_groups_that_have_come_and_gone(
    world: World, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is bounded by the existing groups; readers miss nothing."""
    monkeypatch.setattr(coordinator_view, "FORGOTTEN_MAX", 20)
    log = view(world, coordinator)
    reader, behind = Reader(log), Reader(log)
    found = reader.poll() + behind.poll()
    for number in range(100):
        coordinator.commit(f"g{number}", number, 0)
        found += reader.poll()
        if number % 10:
            coordinator.apply(commands.DeleteGroups([f"g{number}"]))
        assert len(log._order) <= 2 * 22 + 20
    assert {one[3] for one in found} == set(range(100))
    assert {one[3] for one in behind.poll()} == set(range(0, 100, 10))


def test_long_polls_that_are_given_up_are_forgotten(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Holds also if nothing is committed."""
    log = view(world, coordinator)
    for _ in range(1_000):
        log.wait_for(log.high_watermark, lambda: None).cancel()
    assert len(log._waits) <= 20


def test_long_poll_hears_of_a_commit(world: World, coordinator: FakeCoordinator) -> None:
    """It is notified once, and also when the leader is deposed."""
    log = view(world, coordinator)
    heard: list[str] = []
    log.wait_for(log.high_watermark, lambda: heard.append("commit"))
    log.wait_for(log.high_watermark, lambda: heard.append("cancelled")).cancel()
    world.run(5)
    assert heard == []
    coordinator.commit("a", 1, 0)
    world.run(5)
    assert heard == ["commit"]
    log.wait_for(log.high_watermark, lambda: heard.append("leader"))
    coordinator.led_again()
    world.run(5)
    assert heard == ["commit", "leader"]


def fetch(topic_id: bytes, offset: int) -> FetchRequest:
    poll = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(OFFSETS_TOPIC, topic_id, [poll])
    return FetchRequest(max_wait_ms=10, max_bytes=1 << 20, topics=[topic])


def test_consumers_fetch_and_list_it_like_any_topic(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Covers names and ids. A partition led by another server is reported as such."""
    coordinator.commit("a", 5, 0)
    log = view(world, coordinator)
    client = world.client()
    for version, topic_id in ((12, bytes(16)), (13, OFFSETS_TOPIC_ID)):
        answer = client.ask(1, version, fetch(topic_id, 0))
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == ErrorCode.NONE
        assert partition.high_watermark == log.high_watermark
        (record,) = iter_records(memoryview(bytes(partition.records)))
        assert record.key is not None
        assert positions([read_record(record.key, record.value)]) == [("a", "t", 0, 5)]
    ends: list[int] = []
    for timestamp in (-2, -1):
        asked = [ListOffsetsPartition(p, timestamp=timestamp) for p in (0, 1, 8)]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(OFFSETS_TOPIC, asked)])
        found = client.ask(2, 7, request).topics[0].partitions
        assert [one.error_code for one in found] == [
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        ends.append(found[0].offset)
    assert ends == [0, log.high_watermark]


def test_clients_change_nothing_of_it(world: World, coordinator: FakeCoordinator) -> None:
    """They can neither write, delete, create, nor add partitions."""
    view(world, coordinator)
    client = world.client()
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    data = [PartitionProduceData(0, memoryview(batch()))]
    produce = ProduceRequest(None, -1, 100, [TopicProduceData(OFFSETS_TOPIC, bytes(16), data)])
    (topic,) = client.ask(0, 9, produce).responses
    assert topic.partition_responses[0].error_code == refused
    records = DeleteRecordsTopic(OFFSETS_TOPIC, [DeleteRecordsPartition(0, -1)])
    (topic,) = client.ask(21, 2, DeleteRecordsRequest([records], 100)).topics
    assert topic.partitions[0].error_code == refused
    growth = CreatePartitionsTopic(OFFSETS_TOPIC, 50, None)
    (result,) = client.ask(37, 3, CreatePartitionsRequest([growth], 100)).results
    assert result.error_code == refused
    for named in (
        DeleteTopicState(name=OFFSETS_TOPIC),
        DeleteTopicState(name=None, topic_id=OFFSETS_TOPIC_ID),
    ):
        (deleted,) = client.ask(20, 6, DeleteTopicsRequest([named], [], 100)).responses
        assert deleted.error_code == refused
    new = CreateTopicsRequest([CreatableTopic(OFFSETS_TOPIC, 1, 1)], 100)
    (created,) = client.ask(19, 7, new).topics
    assert created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert world.host.catalog.topics == {}


def test_names_that_kafkas_records_have_no_room_for_are_left_out(
    world: World, coordinator: FakeCoordinator
) -> None:
    """Other keys of the group are present."""
    coordinator.commit("g" * 40_000, 1, 0)
    coordinator.commit("a", 1, 0)
    assert Reader(view(world, coordinator)).poll() == [("a", "t", 0, 1)]
