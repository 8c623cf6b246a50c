"""ShareFetch and ShareAcknowledge on the leader of a partition (KIP-932)."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from segments.api import StorageError
from tests.unit.kafka.fake_host import WALL_MS, Client, FakeStream, World, batch, fill
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.security.principal import Principal
from vdl.kafka.wire import share_acknowledge, share_fetch
from vdl.kafka.wire.share_acknowledge import AcknowledgePartition, AcknowledgeTopic
from vdl.kafka.wire.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
)
from vdl.logstream.group.state_group import UNKNOWN, Outcome, OutcomeKind
from vdl.records.batch import iter_records, read_header, split_batches
from vdl.state import commands
from vdl.state.aborted import AbortedRange
from vdl.state.acls import AclOperation, AclPattern, AclPermission, AclResource
from vdl.state.commands import AclBinding, AclFilter
from vdl.state.coordinator import Coordinator
from vdl.state.resource_configs import ResourceType

SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79
GROUP = "g"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Share:
    """World with a share group that subscribes to one topic."""

    def __init__(
        self, partitions: int = 1, *, options: KafkaOptions | None = None, **configs: str
    ) -> None:
        self.world = World(options)
        self.streams = self.world.topic("t", partitions=partitions)
        self.topic = self.world.host.catalog.topics["t"]
        catalog = self.world.host.catalog
        catalog.features.levels["share.version"] = 1
        self.configure(**{"share.auto.offset.reset": "earliest", **configs})
        topic = commands.ShareTopic("t", self.topic.topic_id, list(self.topic.partitions))
        self.coordinator = self.world.host.coordinator = Coordinator()
        self.coordinator.apply(
            commands.JoinShareGroup(GROUP, "a", "", "c", "h", ["t"], [topic], 10), WALL_MS, 1
        )

    def configure(self, **configs: str) -> None:
        change = commands.ConfigChange(GROUP, set=configs)
        self.world.host.apply(commands.AlterResourceConfigs([(ResourceType.GROUP, change)]))

    @property
    def stream(self) -> FakeStream:
        return self.streams[0]

    def state(self, index: int = 0) -> Any:
        return self.coordinator.share.states.get(GROUP, self.topic.topic_id, index)


class Member:
    """Group member that keeps its session's epoch."""

    def __init__(self, share: Share, name: str = "a", client: Client | None = None) -> None:
        self.share = share
        self.name = name
        self.client = client or share.world.client()
        self.epoch = 0
        self.reads: list[int] = []

    def send(
        self,
        reads: list[int] | None = None,
        acks: dict[int, list[tuple[int, int, list[int]]]] | None = None,
        *,
        version: int = 2,
        epoch: int | None = None,
        **fields: Any,
    ) -> None:
        topic_id = self.share.topic.topic_id
        acks = acks or {}
        indexes = sorted({*(reads or []), *acks})
        request = ShareFetchRequest(
            GROUP,
            self.name,
            self.epoch if epoch is None else epoch,
            **{
                "max_wait_ms": 100,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": 500,
                "batch_size": 500,
                **fields,
            },
            topics=[
                FetchTopic(
                    topic_id,
                    [
                        FetchPartition(
                            index,
                            acknowledgement_batches=[
                                AcknowledgementBatch(*one) for one in acks.get(index, [])
                            ],
                        )
                        for index in indexes
                    ],
                )
            ],
        )
        self.client.request(SHARE_FETCH, version, request)
        if epoch is None:
            self.epoch += 1

    def fetch(self, *args: Any, run_ms: int = 200, **fields: Any) -> share_fetch.ShareFetchResponse:
        self.send(*args, **fields)
        self.share.world.run(run_ms)
        (answer,) = self.client.answers()
        return answer

    def acknowledge(
        self,
        acks: dict[int, list[tuple[int, int, list[int]]]],
        *,
        epoch: int | None = None,
        version: int = 2,
        **fields: Any,
    ) -> share_acknowledge.ShareAcknowledgeResponse:
        request = share_acknowledge.ShareAcknowledgeRequest(
            GROUP,
            self.name,
            self.epoch if epoch is None else epoch,
            topics=[
                AcknowledgeTopic(
                    self.share.topic.topic_id,
                    [
                        AcknowledgePartition(
                            index, [share_acknowledge.AcknowledgementBatch(*one) for one in some]
                        )
                        for index, some in acks.items()
                    ],
                )
            ],
            **fields,
        )
        self.client.request(SHARE_ACKNOWLEDGE, version, request)
        if epoch is None:
            self.epoch += 1
        self.share.world.run(200)
        (answer,) = self.client.answers()
        return answer


def only(answer: share_fetch.ShareFetchResponse) -> PartitionData:
    assert answer.error_code == ErrorCode.NONE
    ((partition,),) = [topic.partitions for topic in answer.responses]
    return partition


def acquired(answer: share_fetch.ShareFetchResponse) -> list[tuple[int, int, int]]:
    """Return (first, last, delivery count) of all acquired records."""
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def offsets(data: PartitionData) -> list[int]:
    """Return the offsets of the records in a response."""
    return [
        record.offset
        for part in split_batches(memoryview(bytes(data.records or b"")))
        for record in iter_records(part)
    ]


def test_records_are_given_out_with_their_batches_and_durably_counted() -> None:
    share = Share()
    fill(share.stream, 3)
    member = Member(share)
    data = only(member.fetch([0]))
    assert data.error_code == data.acknowledge_error_code == ErrorCode.NONE
    assert offsets(data) == [0, 1, 2]
    assert [(one.first_offset, one.last_offset, one.delivery_count) for one in
            data.acquired_records] == [(0, 2, 1)]  # fmt: skip
    assert share.state().listed() == [(0, 2, 1, 1)]
    assert acquired(member.fetch()) == []


def test_the_answer_waits_until_the_delivery_is_durable() -> None:
    share = Share()
    fill(share.stream, 3)
    member = Member(share)
    assert acquired(member.fetch([0])) == [(0, 2, 1)]
    fill(share.stream, 1)
    share.world.host.command_outcome = UNKNOWN
    assert acquired(member.fetch()) == []
    share.world.host.command_outcome = Outcome(OutcomeKind.APPLIED)
    # The state is claimed again: all locks end, and durable delivery counts are kept.
    assert acquired(member.fetch()) == [(0, 2, 2), (3, 3, 1)]


def test_acknowledgements_count_before_the_fetch_that_brings_them() -> None:
    share = Share()
    fill(share.stream, 4)
    member = Member(share)
    member.fetch([0])
    answer = member.fetch(acks={0: [(0, 1, [ACCEPT]), (2, 3, [RELEASE, REJECT])]})
    assert acquired(answer) == [(2, 2, 2)]
    assert only(answer).acknowledge_error_code == ErrorCode.NONE
    assert share.state().start_offset == 2
    answer = member.fetch(acks={0: [(2, 2, [ACCEPT])]})
    assert acquired(answer) == []
    assert share.state().start_offset == 4


@pytest.mark.parametrize("how", ["at once", "after a wait", "errors", "nothing", "acknowledge"])
def test_what_a_fetch_held_is_free_without_a_collection_of_garbage(how: str) -> None:
    """The collector looks for cycles among old objects only every ten minutes.

    Until then acquired records would stay in memory.
    """
    share = Share()
    member = Member(share)

    def ask() -> None:
        if how == "after a wait":
            member.send([0])
            share.world.run(50)
        if how in ("at once", "after a wait", "acknowledge"):
            first = share.stream.high_watermark
            fill(share.stream, 3)
            share.world.run(50)
        if how == "after a wait":
            assert member.client.answers()
        elif how == "errors":
            member.fetch([7])
        else:
            member.fetch([0])
        if how == "acknowledge":
            member.acknowledge({0: [(first, first + 2, [ACCEPT])]})

    ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            ask()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_acknowledgements_by_themselves() -> None:
    share = Share()
    fill(share.stream, 4)
    member = Member(share)
    member.fetch([0])
    answer = member.acknowledge({0: [(0, 3, [ACCEPT])]})
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.NONE]
    assert share.state().start_offset == 4
    again = member.acknowledge({0: [(0, 3, [ACCEPT])]})
    assert [p.error_code for t in again.responses for p in t.partitions] == [
        ErrorCode.INVALID_RECORD_STATE
    ]


def test_another_members_records_are_not_acknowledged() -> None:
    share = Share()
    fill(share.stream, 2)
    Member(share).fetch([0])
    other = Member(share, "b")
    assert acquired(other.fetch([0])) == []
    answer = other.fetch(acks={0: [(0, 1, [ACCEPT])]})
    assert only(answer).acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
    assert share.state().start_offset == 0


def test_a_fetch_waits_for_records_and_is_woken_by_what_is_given_back() -> None:
    share = Share()
    first, second = Member(share), Member(share, "b")
    first.send([0], max_wait_ms=5_000)
    share.world.run(100)
    assert first.client.answers() == []
    fill(share.stream, 2)
    share.world.run(50)
    assert acquired(first.client.answers()[0]) == [(0, 1, 1)]
    second.send([0], max_wait_ms=5_000)
    share.world.run(100)
    assert second.client.answers() == []
    first.acknowledge({0: [(0, 1, [RELEASE])]})
    assert acquired(second.client.answers()[0]) == [(0, 1, 2)]


def test_members_that_wait_for_the_log_are_not_woken_by_acknowledgements() -> None:
    """Otherwise a thousand members of a partition would check for data after each one."""
    share = Share()
    fill(share.stream, 4)
    members = [Member(share, f"m{number}") for number in range(20)]
    members[0].fetch([0])
    for member in members[1:]:
        member.send([0], max_wait_ms=60_000)
    share.world.run(50)
    (live,) = share.world.context.share_partitions.lives()
    waiting = dict(live.waiters)
    assert len(waiting) == 19
    members[0].acknowledge({0: [(0, 1, [ACCEPT]), (3, 3, [ACCEPT])]})
    assert live.waiters == waiting, "nothing is there for them"
    members[0].acknowledge({0: [(2, 2, [RELEASE])]})
    share.world.run(50)
    found = [acquired(answer) for member in members[1:] for answer in member.client.answers()]
    assert found == [[(2, 2, 2)]]
    assert len(live.waiters) == 18


def test_locks_end_by_themselves() -> None:
    share = Share(**{"share.record.lock.duration.ms": "15000"})
    fill(share.stream, 2)
    first, second = Member(share), Member(share, "b")
    first.fetch([0])
    assert acquired(second.fetch([0], max_wait_ms=20_000, run_ms=14_000 + 2_000)) == [(0, 1, 2)]
    answer = first.fetch(acks={0: [(0, 1, [ACCEPT])]})
    assert only(answer).acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE


def test_a_lock_is_renewed_by_a_request_that_fetches_nothing() -> None:
    share = Share(**{"share.record.lock.duration.ms": "15000"})
    fill(share.stream, 2)
    member = Member(share)
    member.fetch([0])
    share.world.run(10_000)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    renew = {0: [(0, 1, [RENEW])]}
    assert member.fetch(acks=renew, is_renew_ack=True, epoch=1).error_code == (
        ErrorCode.INVALID_REQUEST
    )
    answer = member.fetch(acks=renew, is_renew_ack=True, **nothing)
    assert only(answer).acknowledge_error_code == ErrorCode.NONE
    share.world.run(10_000)
    assert only(member.fetch(acks={0: [(0, 1, [ACCEPT])]})).acknowledge_error_code == 0


@pytest.mark.parametrize(
    ("configs", "fields", "code"),
    [
        ({}, {"is_renew_ack": False}, ErrorCode.INVALID_REQUEST),
        ({"share.renew.acknowledge.enable": "false"}, {"is_renew_ack": True},
         ErrorCode.INVALID_RECORD_STATE),
    ],
)  # fmt: skip
def test_a_lock_is_not_renewed(
    configs: dict[str, str], fields: dict[str, Any], code: ErrorCode
) -> None:
    share = Share(**configs)
    fill(share.stream, 2)
    member = Member(share)
    member.fetch([0])
    answer = member.acknowledge({0: [(0, 1, [RENEW])]}, **fields)
    assert [p.error_code for t in answer.responses for p in t.partitions] == [code]


def test_session_epochs_are_checked() -> None:
    share = Share()
    fill(share.stream, 2)
    member = Member(share)
    assert member.fetch([0], epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.fetch([0], epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.fetch([0], acks={0: [(0, 0, [1])]}).error_code == ErrorCode.INVALID_REQUEST
    member.epoch = 0
    assert member.fetch([0]).error_code == ErrorCode.NONE
    assert member.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge({}, epoch=0).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge({}, epoch=9).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch().error_code == ErrorCode.NONE


@pytest.mark.parametrize("ends", ["final fetch", "final acknowledge", "connection"])
def test_the_end_of_a_session_frees_what_its_member_held(ends: str) -> None:
    share = Share()
    fill(share.stream, 4)
    member, other = Member(share), Member(share, "b")
    member.fetch([0])
    match ends:
        case "final fetch":
            answer = member.fetch(acks={0: [(0, 1, [ACCEPT])]}, epoch=-1, max_wait_ms=0)
            assert only(answer).acknowledge_error_code == ErrorCode.NONE
        case "final acknowledge":
            member.acknowledge({0: [(0, 1, [ACCEPT])]}, epoch=-1)
        case _:
            member.acknowledge({0: [(0, 1, [ACCEPT])]})
            member.client.session.connection_lost()
    assert acquired(other.fetch([0])) == [(2, 3, 2)]
    assert len(share.world.context.share_sessions) == 1


def test_a_client_that_hangs_up_while_the_delivery_is_written_was_given_nothing() -> None:
    share = Share()
    fill(share.stream, 4)
    member, other = Member(share), Member(share, "b")
    other.fetch([0], max_records=0)
    member.send([0])
    share.world.run(1.5)
    member.client.session.connection_lost()
    share.world.run(50)
    assert acquired(other.fetch())[0][:2] == (0, 3)


def test_a_new_leader_gives_out_what_the_old_one_had_given() -> None:
    share = Share()
    fill(share.stream, 4)
    member = Member(share)
    member.fetch([0])
    member.acknowledge({0: [(1, 1, [ACCEPT])]})
    share.stream.lose_leadership()
    answer = only(member.fetch())
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    share.stream.is_leader = True
    share.stream.start_serving()
    assert acquired(member.fetch()) == [(0, 0, 2), (2, 3, 2)]
    answer = member.fetch(acks={0: [(1, 1, [ACCEPT])]})
    assert only(answer).acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize("is_applied", [True, False])
def test_acknowledgement_under_way_when_the_leadership_ends_is_told_its_fate(
    is_applied: bool,
) -> None:
    """The coordinator may still apply it.

    A member that receives a failure would wait for records that are not delivered again.
    """
    share = Share()
    fill(share.stream, 4)
    member = Member(share)
    member.fetch([0])
    request = share_acknowledge.ShareAcknowledgeRequest(
        GROUP,
        "a",
        member.epoch,
        topics=[
            AcknowledgeTopic(
                share.topic.topic_id,
                [AcknowledgePartition(0, [share_acknowledge.AcknowledgementBatch(0, 3, [ACCEPT])])],
            )
        ],
    )
    share.world.host.command_outcome = UNKNOWN if not is_applied else Outcome(OutcomeKind.APPLIED)
    written = len(share.world.host.commands)
    member.client.request(SHARE_ACKNOWLEDGE, 2, request)
    while len(share.world.host.commands) == written:
        share.world.run(0.1)
    share.stream.lose_leadership()
    share.world.run(50)
    (answer,) = member.client.answers()
    ((told,),) = [topic.partitions for topic in answer.responses]
    if is_applied:
        assert share.state().start_offset == 4
        assert told.error_code == ErrorCode.NONE
    else:
        assert told.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_what_was_not_sent_to_the_coordinator_failed_when_the_leadership_ends() -> None:
    share = Share()
    fill(share.stream, 2)
    fill(share.stream, 2)
    member = Member(share)
    member.fetch([0], max_records=2)
    share.world.host.command_outcome = UNKNOWN
    member.send(acks={0: [(0, 1, [ACCEPT])]})
    share.stream.lose_leadership()
    share.world.run(50)
    (answer,) = member.client.answers()
    assert only(answer).acknowledge_error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("how", ["forgets", "opens anew"])
def test_member_that_reads_a_partition_no_more_keeps_what_it_holds(how: str) -> None:
    """Holds also while no other member reads it: acknowledgements count until its locks end."""
    share = Share(partitions=2, **{"share.record.lock.duration.ms": "15000"})
    fill(share.streams[0], 4)
    member = Member(share)
    assert acquired(member.fetch([0, 1])) == [(0, 3, 1)]
    if how == "forgets":
        forgotten = [ForgottenTopic(share.topic.topic_id, [0])]
        answer = member.fetch(
            forgotten_topics_data=forgotten, acks={0: [(0, 1, [ACCEPT])]}, max_wait_ms=0
        )
        assert only(answer).acknowledge_error_code == ErrorCode.NONE
        member.fetch(forgotten_topics_data=forgotten, max_wait_ms=0)
    else:
        member.epoch = 0
        member.fetch([1])
        answer = member.acknowledge({0: [(0, 1, [ACCEPT])]})
        assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.NONE]
    answer = member.acknowledge({0: [(2, 2, [ACCEPT])]})
    assert [p.error_code for t in answer.responses for p in t.partitions] == [ErrorCode.NONE]
    share.world.run(16_000)
    assert len(share.world.context.share_partitions) == 1, "its memory is free when its locks ended"
    assert acquired(Member(share, "b").fetch([0])) == [(3, 3, 2)]


@pytest.mark.parametrize("how", ["offsets set", "group deleted"])
def test_session_that_is_left_from_before_does_not_keep_a_group_from_beginning_anew(
    how: str,
) -> None:
    """The session of a vanished member lasts until its connection ends.

    Meanwhile its group is empty for the coordinator and may be deleted, or have its offsets set,
    though nothing is written to this partition.
    """
    share = Share()
    fill(share.stream, 3)
    gone = Member(share)
    gone.fetch([0])
    gone.acknowledge({0: [(0, 2, [ACCEPT])]})
    assert share.state().start_offset == 3
    topic = commands.ShareTopic("t", share.topic.topic_id, list(share.topic.partitions))
    join = commands.JoinShareGroup(GROUP, "b", "", "c", "h", ["t"], [topic], 10)
    share.coordinator.apply(commands.LeaveShareGroup(GROUP, ["a"], []), WALL_MS, 2)
    if how == "offsets set":
        offsets_set = [(share.topic.topic_id, 0, share.topic.partitions[0], 0)]
        share.coordinator.apply(commands.AlterShareOffsets(GROUP, offsets_set), WALL_MS, 3)
    else:
        share.coordinator.share.drop(GROUP)
    share.coordinator.apply(join, WALL_MS, 4)
    other = Member(share, "b")
    answers = [acquired(other.fetch([0])) for _ in range(3)]
    assert [(0, 2, 1)] in answers


def test_a_record_is_not_delivered_beyond_the_limit() -> None:
    share = Share(**{"share.delivery.count.limit": "2"})
    fill(share.stream, 1)
    member = Member(share)
    assert acquired(member.fetch([0])) == [(0, 0, 1)]
    assert acquired(member.fetch(acks={0: [(0, 0, [RELEASE])]})) == [(0, 0, 2)]
    fill(share.stream, 1)
    assert acquired(member.fetch(acks={0: [(0, 0, [RELEASE])]})) == [(1, 1, 1)]
    assert share.state().start_offset == 1


def test_records_in_flight_have_a_bound() -> None:
    share = Share(**{"share.partition.max.record.locks": "100"})
    fill(share.stream, 70)
    fill(share.stream, 70)
    member = Member(share)
    assert acquired(member.fetch([0])) == [(0, 99, 1)]
    assert acquired(member.fetch()) == []
    assert acquired(member.fetch(acks={0: [(0, 9, [ACCEPT])]})) == [(100, 109, 1)]


def test_modes_of_acquiring() -> None:
    share = Share()
    fill(share.stream, 10)
    fill(share.stream, 10)
    member = Member(share)
    assert acquired(member.fetch([0], max_records=3, share_acquire_mode=1)) == [(0, 2, 1)]
    assert acquired(member.fetch(max_records=3)) == [(3, 9, 1)]
    assert member.fetch(share_acquire_mode=2).error_code == ErrorCode.INVALID_REQUEST


def test_control_batches_are_nobodys() -> None:
    share = Share()
    fill(share.stream, 1)
    control = memoryview(batch(1, is_control=True))
    share.stream.append(control, read_header(control), deadline_ns=0, done=lambda _: None)
    fill(share.stream, 1)
    member = Member(share)
    answer = member.fetch([0])
    assert acquired(answer) == [(0, 0, 1), (2, 2, 1)]
    assert offsets(only(answer)) == [0, 2]
    member.acknowledge({0: [(0, 0, [ACCEPT]), (2, 2, [ACCEPT])]})
    assert share.state().start_offset == 3


def put(stream: FakeStream, **fields: Any) -> None:
    """Append one record of a producer's transaction, or a marker."""
    data = memoryview(batch(1, **fields))
    stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None, verify=approve)
    stream.commit()


def approve(done: Any) -> None:
    done(ErrorCode.NONE)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_of_open_and_aborted_transactions(level: str) -> None:
    share = Share(**{"share.isolation.level": level})
    put(share.stream, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    put(share.stream, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    fill(share.stream, 1)
    put(share.stream, producer_id=7, producer_epoch=0, is_transactional=True, is_control=True)
    put(share.stream, producer_id=7, producer_epoch=0, base_sequence=1, is_transactional=True)
    share.stream.aborted_ranges = [AbortedRange(7, 0, 3, 4)]
    share.stream.open_offset = 4
    member = Member(share)
    if level == "read_uncommitted":
        assert acquired(member.fetch([0])) == [(0, 2, 1), (4, 4, 1)]
        return
    assert acquired(member.fetch([0])) == [(1, 2, 1)]
    assert acquired(member.fetch()) == []
    member.send([0], max_wait_ms=5_000)
    share.world.run(50)
    share.stream.end_open()
    share.world.run(50)
    assert acquired(member.client.answers()[0]) == [(4, 4, 1)]
    assert share.state().start_offset == 1


def test_aborted_records_that_compaction_takes_during_a_read_are_not_given_out() -> None:
    """Compaction also removes the transaction from the aborted list, so the data is read again."""
    share = Share(**{"share.isolation.level": "read_committed"})
    put(share.stream, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    put(share.stream, producer_id=7, producer_epoch=0, is_transactional=True, is_control=True)
    fill(share.stream, 1)
    member = Member(share)
    assert acquired(member.fetch([0], max_records=0)) == []
    share.stream.aborted_ranges = [AbortedRange(7, 0, 1, 2)]
    share.stream.on_disk_below = 3
    member.send(max_wait_ms=5_000)
    for _ in range(50):
        if not share.stream.cold_reads:
            share.world.run(1)
    assert share.stream.cold_reads == 1
    share.stream.aborted_ranges = []
    share.stream.aborted_age += 1
    del share.stream.batches[:2]
    share.world.run(50)
    assert acquired(member.client.answers()[0]) == [(2, 2, 1)]


@pytest.mark.parametrize(("reset", "first"), [("latest", 5), ("earliest", 0)])
def test_where_a_group_begins(reset: str, first: int) -> None:
    share = Share(**{"share.auto.offset.reset": reset})
    fill(share.stream, 5)
    member = Member(share)
    answer = member.fetch([0])
    assert acquired(answer) == ([(0, 4, 1)] if first == 0 else [])
    assert share.state().start_offset == first
    fill(share.stream, 1)
    assert acquired(member.fetch()) == [(5, 5, 1)]


def test_a_group_may_begin_some_time_ago() -> None:
    share = Share(**{"share.auto.offset.reset": "by_duration:PT1H"})
    for age_ms in (7_200_000, 1_800_000):
        data = memoryview(batch(1, timestamp=WALL_MS - age_ms))
        share.stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    share.stream.commit()
    assert acquired(Member(share).fetch([0])) == [(1, 1, 1)]


def test_deleted_records_are_nobodys() -> None:
    share = Share()
    fill(share.stream, 5)
    member = Member(share)
    member.fetch([0])
    share.stream.log_start_offset = 3
    fill(share.stream, 1)
    assert acquired(member.fetch()) == [(5, 5, 1)]
    assert share.state().start_offset == 3


def test_partitions_that_are_not_here_are_answered_by_themselves() -> None:
    share = Share(partitions=2)
    fill(share.streams[1], 1)
    share.streams[0].lose_leadership()
    member = Member(share)
    member.fetch([0, 1, 7])
    answer = member.fetch()
    errors = {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}
    assert errors == {
        0: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        1: ErrorCode.NONE,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_leader_that_is_not_known_is_not_named() -> None:
    """franz-go takes any id from 0 on for the new leader, and looks for it for ever."""
    share = Share(partitions=2)
    share.streams[0].lose_leadership()
    share.world.host.leaders.clear()
    member = Member(share)
    member.fetch([0, 1, 7])
    leaders = [p.current_leader for t in member.fetch().responses for p in t.partitions]
    assert {(one.leader_id, one.leader_epoch) for one in leaders} == {(-1, -1)}
    acknowledged = member.acknowledge({0: [(0, 0, [ACCEPT])], 7: [(0, 0, [ACCEPT])]})
    leaders = [p.current_leader for t in acknowledged.responses for p in t.partitions]
    assert {(one.leader_id, one.leader_epoch) for one in leaders} == {(-1, -1)}


def test_a_group_that_nobody_joined_is_given_nothing() -> None:
    share = Share()
    fill(share.stream, 1)
    share.coordinator.share.states.remove_group(GROUP)
    member = Member(share)
    sent = len(share.world.host.commands)
    assert only(member.fetch([0])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert only(member.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(share.world.host.commands) == sent + 1, "it is not asked again at once"


def test_forgotten_partitions_are_not_read() -> None:
    share = Share(partitions=2)
    member = Member(share)
    member.fetch([0, 1])
    forgotten = [ForgottenTopic(share.topic.topic_id, [0])]
    member.fetch(forgotten_topics_data=forgotten)
    fill(share.streams[0], 1)
    assert acquired(member.fetch()) == []


def test_partition_that_is_forgotten_with_acknowledgements_of_it_is_not_read_on() -> None:
    """A member that loses a partition names it once more, to send its last acknowledgements."""
    share = Share(partitions=2)
    fill(share.streams[0], 2)
    member, other = Member(share), Member(share, "b")
    other.fetch([0], max_records=0)
    member.fetch([0, 1])
    forgotten = [ForgottenTopic(share.topic.topic_id, [0])]
    answer = member.fetch(acks={0: [(0, 1, [ACCEPT])]}, forgotten_topics_data=forgotten)
    assert only(answer).acknowledge_error_code == ErrorCode.NONE
    fill(share.streams[0], 1)
    assert acquired(member.fetch()) == []
    assert acquired(other.fetch()) == [(2, 2, 1)]


def test_partitions_are_served_in_turn() -> None:
    share = Share(partitions=2)
    for stream in share.streams:
        fill(stream, 5)
        fill(stream, 5)
    member = Member(share)
    served = []
    for _ in range(4):
        answer = member.fetch([0, 1], max_records=1)
        served += [p.partition_index for t in answer.responses for p in t.partitions]
    assert served == [0, 1, 0, 1]


def test_nothing_is_given_out_before_share_groups_are_finalised() -> None:
    share = Share()
    share.world.host.catalog.features.levels.clear()
    assert Member(share).fetch([0]).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_what_a_member_may_not_read_it_neither_gets_nor_acknowledges() -> None:
    """Holds also if the permission is removed during its session."""
    share = Share(options=KafkaOptions(authorizer=True, super_users=(Principal("root"),)))
    fill(share.stream, 3)
    fill(share.stream, 3)

    def binding(resource: AclResource, name: str) -> AclBinding:
        return AclBinding(
            resource,
            name,
            AclPattern.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )

    member = Member(share)
    member.client.session.info.principal = Principal("alice")
    assert member.fetch([0]).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    share.world.host.apply(commands.CreateAcls([binding(AclResource.GROUP, GROUP)]))
    member.epoch = 0
    assert only(member.fetch([0])).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    share.world.host.apply(commands.CreateAcls([binding(AclResource.TOPIC, "t")]))
    assert acquired(member.fetch(max_records=1)) == [(0, 2, 1)]
    of_topics = AclFilter(AclResource.TOPIC, None, AclPattern.ANY, None, None, 1, 1)
    share.world.host.apply(commands.DeleteAcls([of_topics]))
    data = only(member.fetch(acks={0: [(0, 2, [ACCEPT])]}))
    assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert data.acknowledge_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer = member.acknowledge({0: [(0, 2, [ACCEPT])]})
    assert [p.error_code for t in answer.responses for p in t.partitions] == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    ]
    assert share.state().start_offset == 0


def test_records_that_left_memory_are_read_from_disk() -> None:
    share = Share()
    fill(share.stream, 5)
    share.stream.on_disk_below = 5
    member = Member(share)
    assert acquired(member.fetch([0])) == [(0, 4, 1)]


@pytest.mark.parametrize("at_once", [(True, True), (True, False), (False, True)])
def test_several_partitions_are_read_from_disk(at_once: tuple[bool, bool]) -> None:
    """Covers a read that completes at once."""
    share = Share(partitions=2)
    for stream, is_at_once in zip(share.streams, at_once, strict=True):
        fill(stream, 5)
        stream.on_disk_below = 5
        stream.is_cold_read_at_once = is_at_once
    member = Member(share)
    member.fetch([0, 1], max_records=0)
    found = [acquired(member.fetch(max_wait_ms=0)) for _ in range(4)]
    assert sorted(filter(None, found)) == [[(0, 4, 1)], [(0, 4, 1)]]


def test_what_is_read_from_disk_is_not_put_off_by_errors_of_others() -> None:
    share = Share(partitions=2)
    for stream in share.streams:
        fill(stream, 5)
    member = Member(share)
    member.fetch([0, 1], max_records=0)
    share.streams[0].lose_leadership()
    share.streams[1].on_disk_below = 5
    member.fetch()
    answer = member.fetch()
    assert acquired(answer) == [(0, 4, 1)]
    share.streams[1].cold_error = StorageError("gone")
    share.streams[1].on_disk_below = 10
    fill(share.streams[1], 5)
    errors = {
        p.partition_index: p.error_code for t in member.fetch().responses for p in t.partitions
    }
    assert errors == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER, 1: ErrorCode.KAFKA_STORAGE_ERROR}
