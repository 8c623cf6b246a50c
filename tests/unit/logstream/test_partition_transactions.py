"""Transactions in a partition's log, over three real hosts: verification, markers, stability.

The coordinator is a list of queries here, which a test answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raft.errors import DropReason, ProposalDropped
from rpc.hello import PROTOCOL_VERSION, VERSION_OF_SHORT_SNAPSHOTS
from tests.unit.logstream.conftest import Cluster
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group import transactions
from vdl.logstream.group.appends import Appended
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.snapshots import decode_snapshot
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.membership import open_replica
from vdl.records.batch import (
    BatchFields,
    Record,
    build_batch,
    read_header,
    split_batches,
)
from vdl.records.markers import read_marker
from vdl.state.aborted import AbortedTransactions
from vdl.state.partition import EndTransactionMarker, PartitionState, encode_command


class Asked(list[Callable[[ErrorCode], None]]):
    """Queries to the coordinator so far; each is answered with an error code."""

    def verify(self, done: Callable[[ErrorCode], None]) -> None:
        self.append(done)


def send(
    cluster: Any,
    stream: LogStream,
    asked: Asked,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    ms: int = 1_000,
) -> list[Appended]:
    """Append one record of a transaction. The returned list receives the result."""
    fates: list[Appended] = []
    fields = BatchFields(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    batch = build_batch([Record(value=b"v", timestamp=1_000)], fields)
    stream.append(
        memoryview(batch),
        read_header(batch),
        deadline_ns=cluster.deadline(ms),
        done=fates.append,
        verify=asked.verify,
    )
    return fates


def sent(cluster: Any, stream: LogStream, **fields: Any) -> Appended:
    """Append one record with a coordinator that confirms the transaction. Return the result."""
    asked = Asked()
    fates = send(cluster, stream, asked, **fields)
    for done in asked:
        done(ErrorCode.NONE)
    cluster.run(20)
    (fate,) = fates
    return fate


def end(
    cluster: Any,
    stream: LogStream,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    coordinator_epoch: int = 1,
    commit: bool = True,
    version: int = 1,
    number: int = 0,
) -> list[ErrorCode]:
    errors: list[ErrorCode] = []
    stream.transactions.end(
        EndTransactionMarker(producer_id, epoch, coordinator_epoch, commit, version, number),
        deadline_ns=cluster.deadline(),
        done=errors.append,
    )
    return errors


def ended(cluster: Any, stream: LogStream, **fields: Any) -> ErrorCode:
    errors = end(cluster, stream, **fields)
    cluster.run(20)
    (error,) = errors
    return error


def stable(stream: LogStream) -> int:
    """Return the last stable offset; reads do not go beyond it."""
    offset = stream.last_stable_offset
    if offset > stream.log_start_offset:
        found = stream.read(stream.log_start_offset, 1 << 20, stable=True)
        assert found.end_offset == offset
    return offset


def led(cluster: Any) -> LogStream:
    stream: LogStream = cluster.leader(cluster.create_topic())
    return stream


def codes(fates: list[list[Appended]]) -> list[ErrorCode | None]:
    return [fate[0].error if fate else None for fate in fates]


@pytest.mark.parametrize("ends_by", ["answer", "deadline"])
def test_batch_does_not_overtake_one_that_was_refused_for_what_the_coordinator_said(
    cluster: Any, ends_by: str
) -> None:
    """They are in flight together, and the producer may begin here at any number.

    Its id is older than the replica. If the second one were appended, the first would be out of
    order.
    """
    stream = cluster.leader(cluster.create_topic())
    stream.state.producers.ids_given_out(8)
    asked = Asked()
    sent_back = sent(cluster, stream, sequence=70)
    first = send(cluster, stream, asked, sequence=70, ms=200)
    if ends_by == "answer":
        asked[0](ErrorCode.NOT_ENOUGH_REPLICAS)
    cluster.run(500)
    assert [fate.error for fate in first] == [
        ErrorCode.NOT_ENOUGH_REPLICAS if ends_by == "answer" else ErrorCode.REQUEST_TIMED_OUT
    ]
    overtaking = sent(cluster, stream, sequence=71)
    assert sent_back.error is overtaking.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert sent(cluster, stream, sequence=70).base_offset == 0
    assert sent(cluster, stream, sequence=71).base_offset == 1


def test_batch_that_was_refused_does_not_stand_in_the_way_of_the_next_transaction(
    cluster: Any,
) -> None:
    """Its transaction or its epoch is over: it does not come again."""
    stream = cluster.leader(cluster.create_topic())
    stream.state.producers.ids_given_out(8)

    def refuse(epoch: int) -> None:
        asked = Asked()
        for _ in range(2):
            send(cluster, stream, asked, sequence=70, epoch=epoch)
        asked[0](ErrorCode.CONCURRENT_TRANSACTIONS)

    refuse(0)
    assert ended(cluster, stream) is ErrorCode.NONE
    refuse(1)
    assert sent(cluster, stream, sequence=80).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert sent(cluster, stream, sequence=80).base_offset >= 0
    assert ended(cluster, stream, epoch=0) is ErrorCode.NONE


def test_first_batch_of_a_transaction_waits_for_the_coordinator(cluster: Any) -> None:
    """KIP-890: a batch whose transaction the coordinator does not know is not appended.

    Its later batches need no query.
    """
    stream, asked = led(cluster), Asked()
    first = send(cluster, stream, asked)
    cluster.run(50)
    assert (len(asked), first, stream.end_offset) == (1, [], 0)
    asked.pop()(ErrorCode.NONE)
    second = send(cluster, stream, asked, sequence=1)
    cluster.run(20)
    assert codes([first, second]) == [ErrorCode.NONE, ErrorCode.NONE]
    assert asked == []


def test_later_batches_of_a_producer_wait_behind_the_question(cluster: Any) -> None:
    """In order, while other producers go on."""
    stream, asked, other = led(cluster), Asked(), Asked()
    waiting = [send(cluster, stream, asked, sequence=n) for n in range(3)]
    assert sent(cluster, stream, producer_id=8).base_offset == 0
    plain = cluster.append(stream)
    cluster.run(20)
    assert codes([plain]) == [ErrorCode.NONE]
    assert codes(waiting) == [None] * 3
    assert (len(asked), other) == (1, [])
    asked.pop()(ErrorCode.NONE)
    cluster.run(20)
    assert [fate[0].base_offset for fate in waiting] == [2, 3, 4]


def test_batches_behind_a_refused_one_are_refused_with_it(cluster: Any) -> None:
    """They would leave a gap; the producer sends all of them again, in order."""
    stream, asked = led(cluster), Asked()
    waiting = [send(cluster, stream, asked, sequence=n) for n in range(2)]
    asked.pop()(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert codes(waiting) == [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
    waiting = [send(cluster, stream, asked, sequence=n) for n in range(2)]
    asked.pop()(ErrorCode.NONE)
    cluster.run(20)
    assert codes(waiting) == [ErrorCode.NONE] * 2


def test_too_many_batches_behind_questions_are_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients retry by themselves, and request no metadata."""
    limit = 4
    monkeypatch.setattr(transactions, "BEHIND_MAX", limit)
    stream, asked = led(cluster), Asked()
    waiting = [send(cluster, stream, asked, sequence=n) for n in range(limit + 2)]
    assert codes(waiting) == [None] * (limit + 1) + [ErrorCode.NOT_ENOUGH_REPLICAS]
    asked.pop()(ErrorCode.NONE)
    cluster.run(20)
    assert codes(waiting[: limit + 1]) == [ErrorCode.NONE] * (limit + 1)
    waiting = [send(cluster, stream, asked, producer_id=8, sequence=n) for n in range(limit + 1)]
    assert codes(waiting) == [None] * (limit + 1)


def test_producers_that_begin_together_may_have_five_batches_on_their_way(cluster: Any) -> None:
    """The number of producers does not matter: only one query of each is in flight."""
    stream, asked = led(cluster), Asked()
    count = cluster.options.held_appends_max
    waiting = [
        send(cluster, stream, asked, producer_id=producer_id, sequence=n)
        for n in range(5)
        for producer_id in range(count)
    ]
    assert codes(waiting) == [None] * 5 * count
    assert len(asked) == count
    for answer in asked:
        answer(ErrorCode.NONE)
    cluster.run(20)
    assert codes(waiting) == [ErrorCode.NONE] * 5 * count


def test_question_without_an_answer_ends_with_the_batchs_deadline(cluster: Any) -> None:
    """The batches behind it end, too; an answer that comes later appends nothing."""
    stream, asked = led(cluster), Asked()
    waiting = [
        send(cluster, stream, asked, ms=300),
        send(cluster, stream, asked, sequence=1, ms=9_000),
    ]
    cluster.run(1_000)
    assert codes(waiting) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    asked.pop()(ErrorCode.NONE)
    cluster.run(20)
    assert stream.end_offset == 0
    assert not stream.busy


def test_producers_that_wait_are_not_looked_at_for_each_other(cluster: Any) -> None:
    """Holding a batch costs the same for any number of held ones.

    So do expiry checks until one of them is late.
    """
    stream, asked = led(cluster), Asked()
    for producer_id in range(cluster.options.held_appends_max - 1):
        send(cluster, stream, asked, producer_id=producer_id, ms=9_000)
    verifying = stream.transactions.verifying = Looked(stream.transactions.verifying)
    waiting = send(cluster, stream, asked, producer_id=1, sequence=1, ms=300)
    for _ in range(3):
        stream.expire(cluster.time.now_ns)
    assert verifying.looks == 0
    cluster.run(1_000)
    assert verifying.looks == 1
    assert codes([waiting]) == [ErrorCode.REQUEST_TIMED_OUT]
    assert list(verifying) == [0]


class Looked(dict[int, Any]):
    """A dict that counts iterations over all of it."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_answer_from_before_a_marker_is_asked_for_again(cluster: Any) -> None:
    """The coordinator confirmed, then aborted: its marker may overtake the confirmation.

    Nothing may be appended behind the marker, because no other marker follows.
    """
    stream, asked = led(cluster), Asked()
    fates = send(cluster, stream, asked)
    late = asked.pop()
    assert ended(cluster, stream, commit=False) is ErrorCode.NONE
    late(ErrorCode.NONE)
    cluster.run(20)
    assert (fates, stream.end_offset) == ([], 0)
    asked.pop()(ErrorCode.INVALID_TXN_STATE)
    assert codes([fates]) == [ErrorCode.INVALID_TXN_STATE]
    assert stable(stream) == stream.high_watermark == 0


def test_verified_batch_without_room_is_not_appended_behind_a_marker(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verified batch is not appended yet: if a marker overtakes it, it must be verified again."""
    stream, asked = led(cluster), Asked()
    group = stream.group
    propose = type(group).propose

    def full(*_: object) -> None:
        raise ProposalDropped(DropReason.UNCOMMITTED_LIMIT)

    monkeypatch.setattr(type(group), "propose", full)
    fates = send(cluster, stream, asked, ms=10_000)
    asked.pop()(ErrorCode.NONE)
    assert stream.held
    assert ended(cluster, stream) is ErrorCode.NONE
    monkeypatch.setattr(type(group), "propose", propose)
    stream.room_available()
    cluster.run(20)
    assert fates == []
    asked.pop()(ErrorCode.INVALID_TXN_STATE)
    assert codes([fates]) == [ErrorCode.INVALID_TXN_STATE]


def test_batch_sent_again_is_known_though_its_transaction_is_over(cluster: Any) -> None:
    """Its answer was lost: it gets the same answer again, without a query."""
    stream = led(cluster)
    first = sent(cluster, stream)
    assert ended(cluster, stream) is ErrorCode.NONE
    asked = Asked()
    again = send(cluster, stream, asked)
    cluster.run(20)
    assert (again[0].base_offset, asked) == (first.base_offset, [])


def test_plain_batch_within_a_transaction_is_refused(cluster: Any) -> None:
    """As in Kafka: all batches of a producer with an open transaction belong to it."""
    stream = led(cluster)
    sent(cluster, stream)
    plain = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 1}
    assert codes([cluster.append(stream, **plain)]) == [ErrorCode.INVALID_TXN_STATE]
    ended(cluster, stream)
    fates = cluster.append(stream, **plain)
    cluster.run(20)
    assert codes([fates]) == [ErrorCode.NONE]


def test_plain_batch_of_a_newer_epoch_does_not_fence_the_marker(cluster: Any) -> None:
    """Any client may use the producer's id.

    The transaction would stay open for ever: its coordinator takes a newer epoch for proof that it
    has ended.
    """
    stream = led(cluster)
    sent(cluster, stream)
    forged = {"producer_id": 7, "producer_epoch": 5, "base_sequence": 0}
    assert codes([cluster.append(stream, **forged)]) == [ErrorCode.INVALID_TXN_STATE]
    cluster.run(20)
    assert ended(cluster, stream, epoch=1, version=2) is ErrorCode.NONE
    assert stable(stream) == stream.end_offset == 2


@pytest.mark.parametrize("commit", [True, False])
def test_marker_takes_an_offset_and_ends_the_transaction(cluster: Any, commit: bool) -> None:
    """One entry: the control batch known to clients, and its effect on the stable part."""
    stream = led(cluster)
    sent(cluster, stream)
    cluster.append(stream)
    cluster.run(20)
    assert (stable(stream), stream.high_watermark) == (0, 2)
    end_of_it = {"commit": commit, "coordinator_epoch": 9, "number": 1}
    assert ended(cluster, stream, **end_of_it) is ErrorCode.NONE
    assert stable(stream) == stream.high_watermark == 3
    (batch,) = split_batches(memoryview(stream.read(2, 1 << 20).buffers[0]))
    marker = read_marker(batch)
    assert marker is not None
    assert (marker.producer_id, marker.coordinator_epoch, marker.commit) == (7, 9, commit)
    assert read_header(batch).base_offset == 2
    assert read_header(batch).leader_epoch == stream.term
    listed = [(one.producer_id, one.first_offset) for one in stream.aborted(0, 3)]
    assert listed == ([] if commit else [(7, 0)])
    (described,) = stream.producers()
    assert (described.coordinator_epoch, described.first_offset) == (9, -1)


def test_marker_sent_again_is_answered_and_appended_once(cluster: Any) -> None:
    """While the first is not committed, the retry waits for that."""
    stream = led(cluster)
    sent(cluster, stream)
    followers = [s for s in (1, 2, 3) if s != stream.leader_server]
    for server in followers:
        cluster.nodes[server].workers.hold()
    answers = [end(cluster, stream) for _ in range(3)]
    cluster.run(100)
    assert answers == [[], [], []]
    for server in followers:
        cluster.nodes[server].workers.release()
    cluster.run(50)
    assert answers == [[ErrorCode.NONE]] * 3
    assert ended(cluster, stream) is ErrorCode.NONE
    assert stream.high_watermark == 2


def test_marker_for_nothing_is_answered_only_by_who_leads(cluster: Any) -> None:
    """A deposed leader that does not know so would leave an open transaction hanging."""
    stream = led(cluster)
    for server in (1, 2, 3):
        if server != stream.leader_server:
            cluster.network.cut(stream.leader_server, server)
            cluster.network.cut(server, stream.leader_server)
    errors = end(cluster, stream)
    assert stream.is_leader
    cluster.run(5_000)
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_marker_that_found_nothing_does_not_end_the_next_transaction(cluster: Any) -> None:
    """A partition may be in a transaction that has written nothing to it.

    Under the first version the next transaction has the same epoch. The marker may come again, over
    a slow link, also from a deposed coordinator; and another leader may be there by then.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    died = stream.leader_server
    first = {"coordinator_epoch": 2, "commit": False, "number": 1}
    assert ended(cluster, stream, **first) is ErrorCode.NONE
    fate = sent(cluster, stream)
    for _ in range(2):
        assert ended(cluster, stream, **first) is ErrorCode.NONE
        assert ended(cluster, stream, **first | {"coordinator_epoch": 1}) is ErrorCode.NONE
        assert stable(stream) == fate.base_offset
        if stream.leader_server == died:
            cluster.nodes[died].crash()
            cluster.run(3_000)
            stream = cluster.leader(group_id)
    assert ended(cluster, stream, coordinator_epoch=2, number=2) is ErrorCode.NONE
    assert stable(stream) == stream.end_offset
    assert not stream.aborted(0, stream.end_offset)


def test_older_coordinator_and_older_epochs_are_fenced(cluster: Any) -> None:
    stream = led(cluster)
    sent(cluster, stream, epoch=3)
    newest = {"version": 2, "coordinator_epoch": 5}
    assert ended(cluster, stream, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ended(cluster, stream, epoch=3, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ended(cluster, stream, epoch=4, number=1, **newest) is ErrorCode.NONE
    assert sent(cluster, stream, epoch=4).error is ErrorCode.NONE
    fenced = ended(cluster, stream, epoch=5, version=2, coordinator_epoch=4, number=2)
    assert fenced is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert sent(cluster, stream, epoch=3, sequence=1).error is ErrorCode.INVALID_PRODUCER_EPOCH


MADE_UP = [(0, (1 << 31) - 1), ((1 << 15) - 1, 1), ((1 << 15) - 1, (1 << 31) - 1)]
"""(producer epoch, coordinator epoch) as a client may write them into a marker."""


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), MADE_UP)
@pytest.mark.parametrize("version", [1, 2])
def test_clients_marker_fences_neither_the_coordinator_nor_the_producer(
    cluster: Any, epoch: int, coordinator_epoch: int, version: int
) -> None:
    """KIP-664: it ends a hanging transaction, under the present epochs.

    Another leader reads the same from its log. The coordinator's own marker is still taken, and the
    producer goes on.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    sent(cluster, stream)
    forged = {"epoch": epoch, "coordinator_epoch": coordinator_epoch, "commit": False}
    assert ended(cluster, stream, version=1, **forged) is ErrorCode.NONE
    assert stable(stream) == stream.end_offset == 2
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    (described,) = stream.producers()
    assert (described.epoch, described.coordinator_epoch) == (0, -1)
    real = {"epoch": version - 1, "version": version, "coordinator_epoch": 3, "commit": False}
    assert ended(cluster, stream, number=1, **real) is ErrorCode.NONE
    sequence = 1 if version == 1 else 0
    assert sent(cluster, stream, epoch=version - 1, sequence=sequence).error is ErrorCode.NONE


@pytest.mark.parametrize(("epoch", "coordinator_epoch"), MADE_UP)
def test_clients_marker_notes_nothing_where_nothing_is_open(
    cluster: Any, epoch: int, coordinator_epoch: int
) -> None:
    """It notes nothing for a producer that has written here, nor for another; nor by version 2."""
    stream = led(cluster)
    sent(cluster, stream)
    assert ended(cluster, stream, coordinator_epoch=3, number=1) is ErrorCode.NONE
    before = list(stream.producers())
    for producer_id in (7, 8):
        for version in (0, 1, 2):
            forged = {"epoch": epoch, "coordinator_epoch": max(coordinator_epoch, 3)}
            fate = ended(cluster, stream, producer_id=producer_id, version=version, **forged)
            assert fate is ErrorCode.NONE
    assert list(stream.producers()) == before
    assert stream.end_offset == 2


def test_clients_marker_of_older_epochs_ends_nothing(cluster: Any) -> None:
    """Descriptions of producers have the present epochs: older ones belong to something else."""
    stream = led(cluster)
    sent(cluster, stream, epoch=3)
    assert ended(cluster, stream, epoch=4, version=2, number=1, coordinator_epoch=5) is (
        ErrorCode.NONE
    )
    sent(cluster, stream, epoch=4)
    fenced = ended(cluster, stream, epoch=4, coordinator_epoch=4)
    assert fenced is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    older = ended(cluster, stream, epoch=3, coordinator_epoch=5)
    assert older is ErrorCode.INVALID_PRODUCER_EPOCH
    assert stable(stream) == 2
    (described,) = stream.producers()
    as_described = {"epoch": described.epoch, "coordinator_epoch": described.coordinator_epoch}
    assert ended(cluster, stream, commit=False, **as_described) is ErrorCode.NONE
    assert stable(stream) == stream.end_offset == 4


def test_marker_arrives_as_a_command_of_another_group(cluster: Any) -> None:
    """From a server that does not lead, and repeated: each is answered."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    sent(cluster, stream)
    (other, *_) = [s for s in (1, 2, 3) if s != stream.leader_server]
    outcomes: list[Outcome] = []
    command = encode_command(EndTransactionMarker(7, 0, 1, True, 1))
    for _ in range(2):
        cluster.nodes[other].host.command_group(
            group_id, command, deadline_ns=cluster.deadline(), done=outcomes.append
        )
        cluster.run(50)
    assert [one.kind for one in outcomes] == [OutcomeKind.APPLIED] * 2
    assert [one.result.error for one in outcomes] == [ErrorCode.NONE] * 2
    assert stable(stream) == 2


def test_open_transaction_and_aborted_list_survive_a_failover(cluster: Any) -> None:
    """The last stable offset then moves neither back nor past open transactions."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    sent(cluster, stream, producer_id=8)
    ended(cluster, stream, producer_id=8, commit=False)
    sent(cluster, stream)
    cluster.append(stream)
    cluster.run(20)
    before = stable(stream)
    cluster.nodes[stream.leader_server].crash()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    assert (stable(stream), stream.high_watermark) == (before, 4)
    assert [one.producer_id for one in stream.aborted(0, before)] == [8]
    assert sent(cluster, stream, sequence=1).error is ErrorCode.NONE
    assert ended(cluster, stream) is ErrorCode.NONE
    assert stable(stream) == 6


def test_what_is_stable_does_not_wait_for_applying(cluster: Any) -> None:
    """Unapplied committed entries may open a transaction: the leader knows, others wait."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    committed = type(stream).committed
    seen: list[tuple[int, int, bool]] = []

    def looked(one: LogStream, commit: int) -> None:
        committed(one, commit)
        seen.append((one.last_stable_offset, one.high_watermark, one.serving))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogStream, "committed", looked)
        cluster.append(stream)
        cluster.run(200)
        assert (1, 1, True) in seen
        seen.clear()
        assert sent(cluster, stream).base_offset == 1
        cluster.run(200)
    assert seen
    assert all(offset <= 1 for offset, _, _ in seen)
    streams = [node.host.stream(group_id) for node in cluster.nodes.values()]
    assert [one.last_stable_offset for one in streams] == [1, 1, 1]


def test_long_poll_for_stable_records_is_woken_by_the_marker(cluster: Any) -> None:
    stream = led(cluster)
    sent(cluster, stream)
    woken: list[str] = []
    stream.wait_for(NEVER, lambda: woken.append("stable"), stable_offset=0)
    stream.wait_for(1, lambda: woken.append("committed"))
    cluster.append(stream)
    cluster.run(20)
    assert woken == ["committed"]
    ended(cluster, stream)
    assert woken == ["committed", "stable"]


def test_deleting_records_under_an_open_transaction_leaves_nothing_stable(cluster: Any) -> None:
    """KIP-107: the log begins there, and the remaining records wait for the marker."""
    stream = led(cluster)
    sent(cluster, stream)
    cluster.append(stream)
    cluster.append(stream)
    cluster.run(20)
    done: list[ErrorCode] = []
    stream.delete_records(2, deadline_ns=cluster.deadline(), done=done.append)
    cluster.run(20)
    assert done == [ErrorCode.NONE]
    assert stable(stream) == stream.log_start_offset == 2
    ended(cluster, stream, commit=False)
    assert stable(stream) == 4
    assert [one.first_offset for one in stream.aborted(2, 4)] == [0]
    stream.delete_records(4, deadline_ns=cluster.deadline(), done=done.append)
    cluster.run(20)
    assert stream.aborted(4, 5) == []


def replicas(cluster: Any, group_id: int) -> list[LogStream]:
    return [node.host.stream(group_id) for node in cluster.nodes.values() if not node.clock.stopped]


def test_replica_that_begins_with_a_snapshot_knows_what_is_open(cluster: Any) -> None:
    """The snapshot is taken at the log's start, with a later state.

    Transactions aborted since are listed, and open ones begin at the same offsets.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    sent(cluster, stream, producer_id=8)
    ended(cluster, stream, producer_id=8, commit=False)
    for _ in range(20):
        cluster.append(stream)
    cluster.run(20)
    begin = stream.high_watermark
    done: list[ErrorCode] = []
    stream.delete_records(begin, deadline_ns=cluster.deadline(), done=done.append)
    cluster.run(20)
    sent(cluster, stream, producer_id=9)
    ended(cluster, stream, producer_id=9, commit=False)
    sent(cluster, stream)
    cluster.append(stream)
    for node in cluster.nodes.values():
        node.store.checkpoint()
    cluster.run(15_000)
    stream = cluster.leader(group_id)
    assert stream.group.log.first_index > 1, "the log was cut"
    new = cluster.nodes[stream.leader_server % 3 + 1]
    new.wipe()
    cluster.run(1_000)
    new.start()
    cluster.run(10_000)
    found = new.host.stream(group_id)
    assert found.group.log.first_index > 1
    assert found.items() == stream.items()
    assert (stable(found), found.high_watermark) == (begin + 2, begin + 4)
    assert [one.producer_id for one in found.aborted(begin, begin + 2)] == [9]
    assert ended(cluster, stream) is ErrorCode.NONE
    cluster.run(200)
    assert [stable(one) for one in replicas(cluster, group_id)] == [begin + 5] * 3


def test_snapshot_has_the_list_for_servers_that_take_it_from_there(cluster: Any) -> None:
    """A server of an older version does not build the list from the entries.

    Nor does it receive a snapshot that was kept for others.
    """
    stream = led(cluster)
    sent(cluster, stream, producer_id=8)
    for _ in range(5):
        cluster.append(stream)
    cluster.run(20)
    done: list[ErrorCode] = []
    stream.delete_records(3, deadline_ns=cluster.deadline(), done=done.append)
    ended(cluster, stream, producer_id=8, commit=False)
    for node in cluster.nodes.values():
        node.store.checkpoint()
    cluster.run(15_000)
    stream = cluster.leader(stream.group_id)
    assert stream.group.log.first_index > 1, "the log was cut"
    alive = cluster.nodes[stream.leader_server].host.state.alive
    other = next(iter(alive))
    hello = alive[other]
    for version, has_list in ((PROTOCOL_VERSION, False), (VERSION_OF_SHORT_SNAPSHOTS - 1, True)):
        cluster.run(1_000)
        alive[other] = replace(hello, version=version)
        snapshot = stream.group.snapshot_for(1)
        state = PartitionState()
        state.load(decode_snapshot(snapshot.data).items)
        assert [one.producer_id for one in state.aborted] == ([8] if has_list else [])
        assert state.lists_all == has_list


@pytest.mark.parametrize("is_short", [True, False])
def test_replica_that_does_not_list_all_yet_gives_no_snapshot(cluster: Any, is_short: bool) -> None:
    """Replicas that take the list from it get none, nor do those that build it themselves."""
    stream = led(cluster)
    assert stream.snapshot_items(0, is_short=is_short) is not None
    state = PartitionState()
    state.load(stream.state.snapshot_items(0))
    stream.state = state
    assert stream.snapshot_items(0, is_short=is_short) is None


@pytest.mark.parametrize("on_loop_max", [0, 64])
def test_state_is_the_same_after_restarts_at_any_checkpoint(
    cluster: Any, on_loop_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint and the entries applied again after it give one state.

    A long list of aborted transactions is decoded in a thread.
    """
    monkeypatch.setattr(open_replica, "BLOCKS_ON_LOOP_MAX", on_loop_max)
    in_thread: list[bool] = []
    listed_in = PartitionState.listed_in

    def listed(items: Any) -> AbortedTransactions:
        in_thread.append(True)
        return listed_in(items)

    monkeypatch.setattr(PartitionState, "listed_in", listed)
    group_id = cluster.create_topic()
    for round_number in range(4):
        stream = cluster.leader(group_id)
        producer_id = 10 + round_number
        assert sent(cluster, stream, producer_id=producer_id).error is ErrorCode.NONE
        if round_number % 2:
            cluster.nodes[stream.leader_server].store.checkpoint()
        if round_number:
            ended(cluster, stream, producer_id=producer_id - 1, commit=round_number != 2)
        cluster.run(50)
        before = (stream.items(), stable(stream), stream.high_watermark)
        for server in (1, 2, 3):
            cluster.nodes[server].crash()
        cluster.run(100)
        for server in (1, 2, 3):
            cluster.nodes[server].start()
        cluster.run(4_000)
        stream = cluster.leader(group_id)
        assert (stream.items(), stable(stream), stream.high_watermark) == before
    assert [one.producer_id for one in stream.aborted(0, 100)] == [11]
    assert bool(in_thread) == (on_loop_max == 0)


def test_what_a_deposed_leader_appended_opens_and_ends_nothing(cluster: Any) -> None:
    """§5.3: neither its batch nor its marker was committed, and both are removed."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    assert sent(cluster, old).error is ErrorCode.NONE
    cluster.run(100)
    others = [server for server in (1, 2, 3) if server != old.leader_server]
    leader = old.leader_server
    for server in others:
        cluster.network.cut(leader, server)
        cluster.network.cut(server, leader)
    lost = end(cluster, old, commit=False)
    asked = Asked()
    batch = send(cluster, old, asked, producer_id=8)
    asked.pop()(ErrorCode.NONE)
    cluster.run(5_000)
    assert lost[0] is not ErrorCode.NONE
    assert batch[0].error is not ErrorCode.NONE
    stream = cluster.new_leader(group_id, old)
    assert (stable(stream), stream.high_watermark) == (0, 1)
    assert ended(cluster, stream, commit=True) is ErrorCode.NONE
    for server in others:
        cluster.network.heal(leader, server)
        cluster.network.heal(server, leader)
    cluster.run(4_000)
    for one in replicas(cluster, group_id):
        assert (stable(one), one.high_watermark) == (2, 2)
        assert one.items() == stream.items()
        assert one.aborted(0, 2) == []


def test_times_of_markers_are_nobodys(cluster: Any) -> None:
    """KIP-79, KIP-734: lookups find records; a marker, however late, is none."""
    stream = led(cluster)
    sent(cluster, stream)
    ended(cluster, stream)
    cluster.append(stream, timestamp=2_000)
    cluster.run(20)
    found: list[Any] = []
    stream.offset_for_time(1_001, found.append)
    cluster.run(20)
    stream.offset_for_time(2_001, found.append)
    cluster.run(20)
    stream.offset_of_largest_time(found.append)
    cluster.run(20)
    assert [(one.offset, one.timestamp) for one in found] == [(2, 2_000), (-1, -1), (2, 2_000)]


def test_number_of_open_transactions_is_bounded(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is remembered until it ends, by every replica and in every snapshot."""
    monkeypatch.setattr(transactions, "OPEN_TRANSACTIONS_MAX", 2)
    stream = led(cluster)
    for producer_id in (7, 8):
        assert sent(cluster, stream, producer_id=producer_id).error is ErrorCode.NONE
    assert sent(cluster, stream, producer_id=9).error is ErrorCode.CONCURRENT_TRANSACTIONS
    ended(cluster, stream)
    assert sent(cluster, stream, producer_id=9).error is ErrorCode.NONE
    for producer_id in (8, 9):
        ended(cluster, stream, producer_id=producer_id, commit=False)
    assert cluster.nodes[stream.leader_server].host.aborted_listed == 2
    assert sent(cluster, stream, producer_id=7, sequence=1).error is ErrorCode.NONE


def test_transactions_that_are_asked_about_count_as_open(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them may begin; one too many is refused before a query is sent."""
    monkeypatch.setattr(transactions, "OPEN_TRANSACTIONS_MAX", 3)
    stream, asked = led(cluster), Asked()
    fates = [send(cluster, stream, asked, producer_id=number) for number in range(4)]
    assert len(asked) == 3
    assert codes(fates) == [None] * 3 + [ErrorCode.CONCURRENT_TRANSACTIONS]
    for done in asked:
        done(ErrorCode.NONE)
    cluster.run(20)
    assert len(stream.state.producers.open) == 3


def test_batches_under_way_count_once_for_their_transaction(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy producer keeps no other from beginning."""
    monkeypatch.setattr(transactions, "OPEN_TRANSACTIONS_MAX", 3)
    stream, asked = led(cluster), Asked()
    sent(cluster, stream)
    for server in (1, 2, 3):
        if server != stream.leader_server:
            cluster.nodes[server].workers.hold()
    for number in range(5):
        send(cluster, stream, asked, sequence=1 + number)
    cluster.run(10)
    others = [send(cluster, stream, asked, producer_id=number) for number in (8, 9, 10)]
    assert codes(others) == [None, None, ErrorCode.CONCURRENT_TRANSACTIONS]


def test_marker_and_deletion_do_not_wait_until_producers_leave_room() -> None:
    """Records may use the uncommitted limit to the last byte, and on full disks for long."""
    cluster = Cluster(uncommitted_bytes_max=100_000)
    stream = led(cluster)
    assert sent(cluster, stream).error is ErrorCode.NONE
    node = stream.group.node
    first = cluster.append(stream, b"v" * 45_000)
    overhead = node.uncommitted_bytes - 45_000
    full = [first, *(cluster.append(stream, b"v" * size) for size in (54_990 - 2 * overhead, 9))]
    assert stream.held
    deleted: list[ErrorCode] = []
    stream.delete_records(1, deadline_ns=cluster.deadline(), done=deleted.append)
    assert ended(cluster, stream) is ErrorCode.NONE
    cluster.run(100)
    assert deleted == [ErrorCode.NONE]
    assert codes(full) == [ErrorCode.NONE] * 3
    # The third batch was appended when there was room again: behind the marker.
    assert [fate.base_offset for (fate,) in full] == [1, 2, 4]
