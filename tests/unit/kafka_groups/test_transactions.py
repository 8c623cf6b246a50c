"""Transactions as clients see them: responses by version, late responses, markers, failover."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kafka_groups.cluster import COORDINATORS, Call, Cluster
from tests.unit.kafka_groups.consumer import Consumer
from vdl.errors import ErrorCode
from vdl.kafka.transactions import led_transactions
from vdl.kafka.transactions.led_transactions import CHECK_NS, RETRY_NS
from vdl.kafka.transactions.transaction_coordinator import LATE_NS
from vdl.kafka.wire import add_offsets_to_txn as add_offsets_wire
from vdl.kafka.wire import add_partitions_to_txn as add_wire
from vdl.kafka.wire import describe_transactions as describe_wire
from vdl.kafka.wire import end_txn as end_wire
from vdl.kafka.wire import init_producer_id as init_wire
from vdl.kafka.wire import list_transactions as list_wire
from vdl.kafka.wire import offset_fetch as fetch_wire
from vdl.kafka.wire import txn_offset_commit as commit_wire
from vdl.kafka.wire import write_txn_markers as markers_wire
from vdl.logstream.group.state_group import NOT_APPENDED
from vdl.patterns import Pattern
from vdl.state import commands, pending_offsets
from vdl.state.transactions import TransactionalId, TransactionState

INIT, ADD, ADD_OFFSETS, END, MARKERS, COMMIT, DESCRIBE, LIST, FETCH = (
    22,
    24,
    25,
    26,
    27,
    28,
    65,
    66,
    9,
)
X, GROUP = "x", "group"
MS = 1_000_000
NONE = ErrorCode.NONE


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.create_topic("t")
    return made


def known(cluster: Cluster, name: str = X) -> TransactionalId:
    return cluster.machine(name).transactions.ids[name]


def init(cluster: Cluster, version: int = 5, name: str = X, **fields: Any) -> Call:
    fields = {"transaction_timeout_ms": 60_000} | fields
    request = init_wire.InitProducerIdRequest(transactional_id=name, **fields)
    return cluster.call(INIT, version, request)


def add(
    cluster: Cluster,
    *partitions: int,
    version: int = 3,
    topic: str = "t",
    epoch: int = -1,
    name: str = X,
) -> list[int]:
    """Add partitions of a topic; return the error of each."""
    who = known(cluster, name)
    request = add_wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch if epoch < 0 else epoch,
        v3_and_below_topics=[add_wire.AddPartitionsToTxnTopic(topic, list(partitions))],
    )
    (answered,) = cluster.call(ADD, version, request).response.results_by_topic_v3_and_below
    return [one.partition_error_code for one in answered.results_by_partition]


def end(
    cluster: Cluster,
    commits: bool = True,
    *,
    version: int = 5,
    epoch: int = -1,
    name: str = X,
) -> Call:
    who = known(cluster, name)
    request = end_wire.EndTxnRequest(
        name, who.producer_id, who.epoch if epoch < 0 else epoch, commits
    )
    return cluster.call(END, version, request)


def commit_offsets(
    cluster: Cluster,
    offset: int,
    *,
    version: int = 5,
    epoch: int = -1,
    topic: str = "t",
    member: tuple[str, int] = ("", -1),
) -> int:
    who = known(cluster)
    by_id = version >= 6
    request = commit_wire.TxnOffsetCommitRequest(
        transactional_id=X,
        group_id=GROUP,
        producer_id=who.producer_id,
        producer_epoch=who.epoch if epoch < 0 else epoch,
        member_id=member[0],
        generation_id_or_member_epoch=member[1],
        topics=[
            commit_wire.TxnOffsetCommitRequestTopic(
                name="" if by_id else topic,
                topic_id=topic.encode().ljust(16) if by_id else bytes(16),
                partitions=[commit_wire.TxnOffsetCommitRequestPartition(0, offset)],
            )
        ],
    )
    (answered,) = cluster.call(COMMIT, version, request).response.topics
    return int(answered.partitions[0].error_code)


def position(cluster: Cluster, *, version: int = 9, stable: bool = True) -> tuple[int, int]:
    """Return (error, offset) of partition 0."""
    if version >= 8:
        topics = [fetch_wire.OffsetFetchRequestTopics("t", partition_indexes=[0])]
        group = fetch_wire.OffsetFetchRequestGroup(GROUP, topics=topics)
        request = fetch_wire.OffsetFetchRequest(groups=[group], require_stable=stable)
        (found,) = cluster.call(FETCH, version, request).response.groups
    else:
        topic = fetch_wire.OffsetFetchRequestTopic("t", [0])
        request = fetch_wire.OffsetFetchRequest(GROUP, [topic], require_stable=stable)
        found = cluster.call(FETCH, version, request).response
    partition = found.topics[0].partitions[0]
    return partition.error_code, partition.committed_offset


def partition_groups(cluster: Cluster) -> list[int]:
    return list(cluster.servers[1].catalog.topics["t"].partitions)


# --- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_producer_gets_an_id_and_each_instance_the_next_epoch(
    cluster: Cluster, version: int
) -> None:
    first = init(cluster, version).response
    again = init(cluster, version).response
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
    assert init(cluster, version, "y").response.producer_id != first.producer_id


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_beyond_what_the_server_allows_is_refused(
    cluster: Cluster, timeout_ms: int
) -> None:
    response = init(cluster, transaction_timeout_ms=timeout_ms).response
    assert response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert response.producer_epoch == -1


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
def test_producer_with_an_old_epoch_is_fenced_in_its_own_words(
    cluster: Cluster, version: int, code: ErrorCode
) -> None:
    """KIP-588."""
    producer_id = init(cluster).response.producer_id
    init(cluster)
    init(cluster)
    fenced = init(cluster, version, producer_id=producer_id, producer_epoch=0).response
    assert (fenced.error_code, fenced.producer_id) == (code, -1)


def test_new_instance_is_answered_when_the_open_transaction_is_aborted(cluster: Cluster) -> None:
    """A late response, because clients only poll after an immediate CONCURRENT_TRANSACTIONS."""
    init(cluster)
    assert add(cluster, 0) == [0]
    cluster.silent = []
    call = init(cluster)
    assert not call.done
    assert known(cluster).state is TransactionState.PREPARE_ABORT
    cluster.answer_partitions()
    cluster.advance(1)
    assert (call.response.error_code, call.response.producer_epoch) == (0, 2)
    assert [(group, marker.commit) for group, marker in cluster.markers] == [
        (partition_groups(cluster)[0], False)
    ]


def test_wait_for_a_transaction_to_be_complete_ends(cluster: Cluster) -> None:
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    call = init(cluster)
    cluster.advance(LATE_NS // MS - 1)
    assert not call.done
    cluster.advance(2)
    assert call.response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_request_that_may_not_wait_is_answered_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of repeated proposals, which would amplify overload."""
    monkeypatch.setattr(led_transactions, "WAITERS_MAX", 1)
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    waits = init(cluster)
    assert init(cluster).response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert not waits.done
    cluster.answer_partitions()
    cluster.advance(1)
    assert waits.response.error_code == NONE


# --- adding --------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none(cluster: Cluster) -> None:
    init(cluster)
    not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
    assert add(cluster, 0, 9) == [not_tried, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert add(cluster, 0, topic="__consumer_offsets") == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert known(cluster).participants == []
    assert add(cluster, 0, 1) == [0, 0]
    assert known(cluster).participants == sorted(partition_groups(cluster)[:2])


@pytest.mark.parametrize("version", range(4))
def test_replaced_producer_is_fenced_in_the_words_of_its_version(
    cluster: Cluster, version: int
) -> None:
    init(cluster)
    init(cluster)
    old = ErrorCode.INVALID_PRODUCER_EPOCH
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else old
    assert add(cluster, 0, version=version, epoch=0) == [code]
    assert end(cluster, version=version, epoch=0).response.error_code == code
    who = known(cluster)
    request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, 0, GROUP)
    assert cluster.call(ADD_OFFSETS, version, request).response.error_code == code


def test_brokers_question_is_answered_for_each_transaction(cluster: Cluster) -> None:
    """KIP-890: v4 and v5."""
    init(cluster)
    who = known(cluster)

    def ask(verify_only: bool, index: int = 0) -> int:
        request = add_wire.AddPartitionsToTxnRequest(
            transactions=[
                add_wire.AddPartitionsToTxnTransaction(
                    X, who.producer_id, who.epoch, verify_only,
                    [add_wire.AddPartitionsToTxnTopic("t", [index])],
                )
            ]
        )  # fmt: skip
        (result,) = cluster.call(ADD, 5, request).response.results_by_transaction
        assert result.transactional_id == X
        return int(result.topic_results[0].results_by_partition[0].partition_error_code)

    assert ask(True) == ErrorCode.TRANSACTION_ABORTABLE
    assert ask(False) == 0
    assert (ask(True), ask(True, 1)) == (0, ErrorCode.TRANSACTION_ABORTABLE)


# --- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_every_participant_is_told_how_the_transaction_ended(
    cluster: Cluster, version: int, commits: bool
) -> None:
    """KIP-890: with v5 under the next epoch, which the producer then uses."""
    init(cluster)
    add(cluster, 0, 2)
    response = end(cluster, commits, version=version).response
    epoch = 1 if version >= 5 else 0
    assert response.error_code == 0
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (known(cluster).producer_id, 1)
    cluster.advance(1)
    groups = partition_groups(cluster)
    assert sorted(cluster.markers)[0][0] == groups[0]
    assert {group for group, _ in cluster.markers} == {groups[0], groups[2]}
    for _, marker in cluster.markers:
        assert (marker.commit, marker.producer_epoch) == (commits, epoch)
        assert marker.transaction_version == 1 + epoch
    done = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    assert known(cluster).state is done
    cluster.assert_replicas_equal()


@pytest.mark.parametrize("version", [4, 5])
def test_end_asked_again_is_answered_as_before(cluster: Cluster, version: int) -> None:
    """While participants are being notified, the response waits until all have answered."""
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    first = end(cluster, version=version).response
    again = end(cluster, version=version, epoch=0)
    assert not again.done
    cluster.answer_partitions()
    cluster.advance(1)
    assert again.response == first
    other = end(cluster, False, version=version, epoch=0).response
    assert other.error_code == ErrorCode.INVALID_TXN_STATE


def test_next_transaction_begins_when_the_last_one_is_complete(cluster: Cluster) -> None:
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    end(cluster)
    cluster.commits = False
    who = known(cluster)
    request = add_wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=X,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[add_wire.AddPartitionsToTxnTopic("t", [1])],
    )
    call = cluster.call(ADD, 3, request)
    cluster.commits = True
    cluster.advance(1)
    assert not call.done
    cluster.answer_partitions()
    cluster.advance(1)
    (topic,) = call.response.results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == 0
    assert known(cluster).number == 2


@pytest.mark.parametrize("kind", ["refused", "unreachable"])
def test_participant_is_told_until_it_has_answered(cluster: Cluster, kind: str) -> None:
    """For any duration; the transaction is not complete before."""
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    end(cluster)
    for _ in range(4):
        waiting, cluster.silent = cluster.silent, []
        assert len(waiting) == 1
        if kind == "unreachable":
            waiting[0](NOT_APPENDED)
        else:
            cluster.silent = waiting
            cluster.verdict = ErrorCode.TRANSACTION_COORDINATOR_FENCED
            cluster.answer_partitions()
            cluster.silent = []
        cluster.advance(RETRY_NS // MS + 1)
    assert known(cluster).state is TransactionState.PREPARE_COMMIT
    cluster.verdict = NONE
    cluster.answer_partitions()
    cluster.advance(1)
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT


def test_deleted_partition_has_nothing_to_end(cluster: Cluster) -> None:
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    end(cluster)
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    cluster.answer_partitions(NOT_APPENDED)
    cluster.advance(1)
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT


def names_beside(cluster: Cluster, count: int) -> list[str]:
    """Return ids of the coordinator that has the id X."""
    server = cluster.servers[1]
    every = (f"{X}-{n}" for n in range(10 * count))
    mine = (name for name in every if server.coordinator_group(name) == server.coordinator_group(X))
    return list(itertools.islice(mine, count))


def complete_one(cluster: Cluster) -> None:
    """Commit a transaction on a partition that can be reached, which must be complete at once."""
    add(cluster, 1)
    end(cluster)
    cluster.advance(20)
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT


def test_many_transactions_on_an_unreachable_partition_delay_no_other(cluster: Cluster) -> None:
    """From the first attempt on.

    When the partition is back, all of them are completed within a second.
    """
    cluster.unreachable.add(partition_groups(cluster)[0])
    names = names_beside(cluster, 1_100)
    for name in (X, *names):
        init(cluster, name=name)
    for name in names:
        add(cluster, 0, name=name)
        end(cluster, name=name)
    for _ in range(5):
        complete_one(cluster)
        cluster.advance(1_500)
    assert len(cluster.unsent) <= 1, "one at a time shows whether the partition is back"
    assert {known(cluster, name).state for name in names} == {TransactionState.PREPARE_COMMIT}
    cluster.reach_all()
    cluster.advance(1_000)
    assert {known(cluster, name).state for name in names} == {TransactionState.COMPLETE_COMMIT}
    cluster.assert_replicas_equal()


def test_many_unreachable_partitions_delay_no_other_after_one_attempt(cluster: Cluster) -> None:
    cluster.create_topic("wide", partitions=1_200)
    cluster.unreachable.update(cluster.servers[1].catalog.topics["wide"].partitions)
    (name,) = names_beside(cluster, 1)
    init(cluster)
    init(cluster, name=name)
    add(cluster, *range(1_200), topic="wide", name=name)
    end(cluster, name=name)
    for _ in range(8):
        cluster.advance(3_500 + 10)
        complete_one(cluster)
    assert len(cluster.unsent) <= 500
    cluster.reach_all()
    cluster.advance(1_000)
    assert known(cluster, name).state is TransactionState.COMPLETE_COMMIT
    cluster.assert_replicas_equal()


def test_partition_that_was_deleted_before_the_end_is_not_asked(cluster: Cluster) -> None:
    """It has no leader that could answer, so an attempt would only end at its deadline."""
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    cluster.apply_catalog(commands.DeleteTopics(["t"]))
    end(cluster)
    cluster.advance(1)
    assert cluster.markers == []
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("keep", [True, False])
def test_next_leader_goes_on_with_what_was_decided(cluster: Cluster, keep: bool) -> None:
    """Covers a leader that dies at any step.

    The next one notifies all participants of a decided outcome, under its own coordinator epoch. An
    undecided transaction stays open.
    """
    init(cluster)
    add(cluster, 0, 1)
    number = cluster.servers[1].coordinator_group(X)
    cluster.silent = []
    cluster.commits = False
    call = end(cluster)
    cluster.elect(number, 2, keep=keep)
    assert call.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "its fate is open"
    cluster.commits = True
    cluster.advance(1)
    assert known(cluster).state is (
        TransactionState.PREPARE_COMMIT if keep else TransactionState.ONGOING
    )
    assert len(cluster.markers) == (2 if keep else 0)
    cluster.answer_partitions()
    cluster.advance(1)
    if keep:
        assert known(cluster).state is TransactionState.COMPLETE_COMMIT
        assert {marker.coordinator_epoch for _, marker in cluster.markers} == {2}
    cluster.elect(number, 3)
    cluster.advance(1)
    assert len(cluster.markers) == (2 if keep else 0), "nothing is left to be told"
    cluster.assert_replicas_equal()


def test_deposed_leader_completes_nothing(cluster: Cluster) -> None:
    """The participants' answers arrive too late."""
    init(cluster)
    add(cluster, 0)
    cluster.silent = []
    end(cluster)
    waiting, cluster.silent = cluster.silent, []
    cluster.elect(cluster.servers[1].coordinator_group(X), 2)
    cluster.advance(1)
    cluster.silent += waiting
    cluster.answer_partitions()
    cluster.advance(1)
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT


# --- time ----------------------------------------------------------------------------------------


def test_transaction_that_is_open_for_too_long_is_aborted(cluster: Cluster) -> None:
    init(cluster, transaction_timeout_ms=3_000)
    add(cluster, 0)
    cluster.advance(3_000 - 1)
    assert known(cluster).state is TransactionState.ONGOING
    cluster.advance(CHECK_NS // MS + 2)
    assert known(cluster).state is TransactionState.COMPLETE_ABORT
    assert [marker.commit for _, marker in cluster.markers] == [False]
    fenced = end(cluster, version=4, epoch=0).response
    assert fenced.error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("version", "error"), [(11, "NONE"), (10, "PRODUCER_FENCED")])
def test_producer_whose_transaction_timed_out_goes_on_where_all_servers_know_how(
    cluster: Cluster, version: int, error: str
) -> None:
    """KIP-588: it sends the epoch that it had.

    A server of an older version would stop at the command for it.
    """
    cluster.speak(version, 2)
    first = init(cluster, transaction_timeout_ms=3_000).response
    add(cluster, 0)
    cluster.advance(3_000 + CHECK_NS // MS + 2)
    assert known(cluster).state is TransactionState.COMPLETE_ABORT
    again = init(cluster, producer_id=first.producer_id, producer_epoch=0).response
    assert again.error_code == ErrorCode[error]
    assert again.producer_epoch == (1 if again.error_code == 0 else -1)


def test_transactions_are_counted_where_they_are_led(cluster: Cluster) -> None:
    def numbers(server: int = 1) -> list[float]:
        return list(cluster.servers[server].transactions.numbers().values())

    init(cluster, transaction_timeout_ms=3_000)
    assert numbers() == [1, 0, 0, 0]
    add(cluster, 0)
    assert (numbers(), numbers(2)) == ([1, 1, 0, 0], [0, 0, 0, 0])
    cluster.silent = []
    cluster.advance(4_000)
    assert numbers() == [1, 0, 1, 1]
    cluster.answer_partitions()
    cluster.advance(1)
    assert numbers() == [1, 0, 0, 1]
    cluster.elect(cluster.servers[1].coordinator_group(X), 2)
    assert (numbers(), numbers(2)) == ([0, 0, 0, 1], [1, 0, 0, 0])


def test_time_runs_for_each_transaction_anew(cluster: Cluster) -> None:
    """Holds also under the next leader."""
    init(cluster, transaction_timeout_ms=3_000)
    for _ in range(3):
        add(cluster, 0)
        cluster.advance(2_500)
        assert known(cluster).state is TransactionState.ONGOING
        end(cluster)
        cluster.advance(1)
    add(cluster, 0)
    cluster.advance(2_500)
    cluster.elect(cluster.servers[1].coordinator_group(X), 2)
    cluster.advance(2_500)
    assert known(cluster).state is TransactionState.ONGOING
    cluster.advance(1_500)
    assert known(cluster).state is TransactionState.COMPLETE_ABORT


def test_time_is_watched_once_for_each_id_whose_timeout_changes(cluster: Cluster) -> None:
    """A producer that alternates between two timeouts leaves nothing behind."""
    for _ in range(60):
        for timeout_ms in (9_000, 3_000):
            init(cluster, transaction_timeout_ms=timeout_ms)
            add(cluster, 0)
            cluster.advance(400)
            end(cluster)
            cluster.advance(1)
    led = cluster.servers[1].transactions.find(X)
    assert isinstance(led, led_transactions.LedTransactions)
    assert len(led._due) <= 9_000 // 802 + 2


DAYS_MS = 86_400_000


def leap(cluster: Cluster, ms: int) -> None:
    """Move all wall clocks, and with them the agreed time."""
    for server in cluster.servers.values():
        server.clock.wall_base_ms += ms


@pytest.mark.parametrize("days", [8, -8])
def test_wall_clocks_that_leap_end_no_open_transaction(days: int) -> None:
    """Its id is not forgotten either.

    That waits until the transaction is over, and for the whole expiration time from then on. The
    timeout of a transaction does not use a wall clock.
    """
    cluster = Cluster(transactional_id_check_ms=1_000)
    cluster.create_topic("t")
    init(cluster, transaction_timeout_ms=60_000)
    add(cluster, 0)
    cluster.advance(1_000)
    leap(cluster, days * DAYS_MS)
    cluster.advance(50_000)
    assert known(cluster).state is TransactionState.ONGOING
    assert end(cluster).response.error_code == NONE
    cluster.advance(5_000)
    assert known(cluster).state is TransactionState.COMPLETE_COMMIT
    add(cluster, 0)
    leap(cluster, days * DAYS_MS)
    cluster.advance(59_000)
    assert known(cluster).state is TransactionState.ONGOING
    cluster.advance(3_000)
    assert known(cluster).state is TransactionState.COMPLETE_ABORT
    cluster.assert_replicas_equal()


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_shortest_and_longest_timeout_are_kept(cluster: Cluster, timeout_ms: int) -> None:
    """The shortest includes the time until the next check; a later request gets an error."""
    assert init(cluster, transaction_timeout_ms=timeout_ms).response.error_code == NONE
    for _ in range(3):
        add(cluster, 0)
        late_ms = CHECK_NS // MS + 2
        cluster.advance(max(0, timeout_ms - 1))
        assert known(cluster).state is TransactionState.ONGOING
        cluster.advance(late_ms)
        assert known(cluster).state is TransactionState.COMPLETE_ABORT
    assert end(cluster, version=4, epoch=0).response.error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("step", ["init", "add", "offsets", "commit", "abort"])
def test_client_that_dies_at_any_step_leaves_nothing_for_ever(cluster: Cluster, step: str) -> None:
    """The client never returns.

    What it began is aborted in time, what it decided stays, and then its id is forgotten.
    """
    init(cluster, transaction_timeout_ms=3_000)
    steps: dict[str, Callable[[], object]] = {
        "add": lambda: add(cluster, 0, 1),
        "offsets": lambda: commit_offsets(cluster, 5),
        "commit": lambda: end(cluster),
        "abort": lambda: end(cluster, False),
    }
    for name, take in steps.items():
        if step == "init" or (step, name) == ("abort", "commit"):
            continue
        take()
        if name == step:
            break
    cluster.advance(10_000)
    state = known(cluster).state
    ended = (
        TransactionState.COMPLETE_COMMIT if step == "commit" else TransactionState.COMPLETE_ABORT
    )
    assert state is (TransactionState.EMPTY if step == "init" else ended)
    assert len(cluster.markers) == (0 if step == "init" else 2)
    assert not cluster.machine(GROUP).pending.is_unstable(GROUP, "t", 0)
    leap(cluster, 8 * DAYS_MS)
    cluster.advance(4_000_000)
    assert X not in cluster.machine(X).transactions.ids


def test_zombie_that_aborts_is_given_nothing_that_its_successor_has(cluster: Cluster) -> None:
    """KIP-890: the abort of a fenced producer returns the epoch after its own.

    With it the producer may continue after a timeout. A new instance gets a later epoch, and from
    then on the zombie is refused.
    """
    init(cluster)
    add(cluster, 0)
    zombie = known(cluster).epoch
    cluster.silent = []
    successor = init(cluster)
    late = end(cluster, False, epoch=zombie)
    cluster.answer_partitions()
    cluster.advance(1)
    epochs = [late.response.producer_epoch, successor.response.producer_epoch]
    assert successor.response.error_code == NONE
    assert late.response.error_code != NONE or epochs[0] < epochs[1]
    for epoch in (zombie, zombie + 1):
        assert add(cluster, 0, epoch=epoch) == [ErrorCode.PRODUCER_FENCED]
    assert known(cluster).epoch == epochs[1]
    assert add(cluster, 0) == [NONE]


def test_ids_that_nobody_uses_are_forgotten() -> None:
    cluster = Cluster(transactional_id_expiration_ms=60_000, transactional_id_check_ms=10_000)
    init(cluster)
    cluster.advance(55_000)
    assert known(cluster).epoch == 0
    cluster.advance(20_000)
    assert X not in cluster.machine(X).transactions.ids
    assert init(cluster).response.producer_epoch == 0


# --- offsets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("commits", [True, False])
def test_offsets_stand_when_the_transaction_commits(
    cluster: Cluster, version: int, commits: bool
) -> None:
    """KIP-447: until then a fetch of stable offsets gets a retriable error."""
    init(cluster)
    if version < 5:
        who = known(cluster)
        request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, who.epoch, GROUP)
        assert cluster.call(ADD_OFFSETS, 3, request).response.error_code == 0
    assert commit_offsets(cluster, 7, version=version) == 0
    number = cluster.servers[1].coordinator_group(GROUP)
    assert known(cluster).participants == [number]
    assert number <= COORDINATORS
    for fetch in (7, 8, 9):
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert position(cluster, version=fetch) == (unstable, -1)
        assert position(cluster, version=fetch, stable=False) == (0, -1)
    assert end(cluster, commits).response.error_code == 0
    cluster.advance(1)
    assert position(cluster) == (0, 7 if commits else -1)
    cluster.assert_replicas_equal()


@pytest.mark.parametrize("version", [2, 3, 5])
def test_producer_that_names_no_member_commits_in_a_group_of_consumers(
    cluster: Cluster, version: int
) -> None:
    """Older clients have no member field, and newer ones may leave it empty.

    They are accepted as in a classic group and as in Kafka. A client that names a member must send
    its epoch.
    """
    Consumer(cluster, "one", "t").join()
    init(cluster)
    if version < 5:
        who = known(cluster)
        request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, who.epoch, GROUP)
        assert cluster.call(ADD_OFFSETS, 3, request).response.error_code == 0
    assert commit_offsets(cluster, 7, version=version) == 0
    assert end(cluster).response.error_code == 0
    cluster.advance(1)
    assert position(cluster) == (0, 7)
    if version >= 3:
        add(cluster, 0)
        who = known(cluster)
        request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, who.epoch, GROUP)
        assert cluster.call(ADD_OFFSETS, 3, request).response.error_code == 0
        wrong = ErrorCode.ILLEGAL_GENERATION
        assert commit_offsets(cluster, 8, version=version, member=("one", 9)) == wrong
        wrong = ErrorCode.UNKNOWN_MEMBER_ID
        assert commit_offsets(cluster, 8, version=version, member=("two", 1)) == wrong
    cluster.assert_replicas_equal()


def test_producer_that_names_no_member_commits_though_members_go(cluster: Cluster) -> None:
    """A member at the time of the proposal may be gone when it is applied."""
    one = Consumer(cluster, "one", "t")
    one.join()
    init(cluster)
    who = known(cluster)
    request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, who.epoch, GROUP)
    assert cluster.call(ADD_OFFSETS, 3, request).response.error_code == 0
    cluster.commits = False
    one.send_leave()
    topic = commit_wire.TxnOffsetCommitRequestTopic(
        "t", partitions=[commit_wire.TxnOffsetCommitRequestPartition(0, 7)]
    )
    asked = cluster.call(
        COMMIT,
        3,
        commit_wire.TxnOffsetCommitRequest(X, GROUP, who.producer_id, who.epoch, topics=[topic]),
    )
    # The transaction is found open before the member's leave is applied.
    for state_group in cluster.servers[1].state_groups.values():
        state_group.group.reads.answer(True)  # type: ignore[attr-defined]
    assert cluster.machine(GROUP).consumer.groups[GROUP].members
    cluster.pump()
    assert asked.response.topics[0].partitions[0].error_code == 0
    assert not cluster.machine(GROUP).consumer.groups[GROUP].members


def test_transaction_is_verified_again_if_its_end_may_be_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer may be known again by an earlier end that came twice.

    The offset would become part of the producer's next transaction.
    """
    monkeypatch.setattr(pending_offsets, "ENDED_MAX", 2)
    init(cluster)
    who = known(cluster)
    request = add_offsets_wire.AddOffsetsToTxnRequest(X, who.producer_id, who.epoch, GROUP)
    assert cluster.call(ADD_OFFSETS, 3, request).response.error_code == 0
    server, held = cluster.servers[1], list[Callable[[], None]]()
    ask, number = server.command_group, server.coordinator_group(GROUP)

    def hold(group_id: int, data: bytes, *, deadline_ns: int, done: Callable[..., None]) -> None:
        def answered(outcome: Any) -> None:
            held.append(lambda: done(outcome))

        ask(group_id, data, deadline_ns=deadline_ns, done=answered)

    with monkeypatch.context() as slow:
        slow.setattr(server, "command_group", hold)
        topic = commit_wire.TxnOffsetCommitRequestTopic(
            "t", partitions=[commit_wire.TxnOffsetCommitRequestPartition(0, 7)]
        )
        commit = commit_wire.TxnOffsetCommitRequest(
            X, GROUP, who.producer_id, who.epoch, topics=[topic]
        )
        late = cluster.call(COMMIT, 3, commit)
    assert end(cluster, version=4).response.error_code == 0
    cluster.advance(1_000)
    for producer_id, of in ((801, 1), (802, 1), (who.producer_id, 0)):
        again = commands.EndTransactionOffsets(producer_id, who.epoch, of, True)
        ask(number, commands.encode_command(again), deadline_ns=1 << 62, done=lambda _: None)
        cluster.pump()
    for answer in held:
        answer()
    cluster.pump()
    assert late.response.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
    assert not cluster.machine(GROUP).pending.holds(GROUP)


def test_offsets_outside_of_a_transaction_are_refused(cluster: Cluster) -> None:
    """No transaction would end them: KIP-890, with the error of the version."""
    init(cluster)
    assert commit_offsets(cluster, 7, version=4) == ErrorCode.TRANSACTION_ABORTABLE
    assert commit_offsets(cluster, 7, version=3) == ErrorCode.INVALID_TXN_STATE
    init(cluster)
    assert commit_offsets(cluster, 7, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit_offsets(cluster, 7, topic="u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit_offsets(cluster, 7, topic="u", version=6) == ErrorCode.UNKNOWN_TOPIC_ID
    assert position(cluster) == (0, -1)


def test_offsets_are_refused_by_whoever_does_not_coordinate_the_group(cluster: Cluster) -> None:
    init(cluster)
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    if cluster.servers[1].coordinator_group(X) == cluster.servers[1].coordinator_group(GROUP):
        pytest.skip("one coordinator has both")
    assert commit_offsets(cluster, 7) == ErrorCode.NOT_COORDINATOR


# --- administration ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 5])
def test_offsets_of_a_transaction_leave_nothing_for_the_collector_of_garbage(
    cluster: Cluster, version: int
) -> None:
    """The collector looks at old objects every ten minutes.

    A producer may commit a thousand times a second.
    """
    init(cluster)
    assert commit_offsets(cluster, 1) == 0  # adds the group to the transaction, too
    gc.collect()
    gc.disable()
    try:
        for offset in range(2, 5):
            assert commit_offsets(cluster, offset, version=version) == 0
        assert gc.collect() == 0
    finally:
        gc.enable()


def describe(cluster: Cluster, name: str, *, server: int = 1) -> Any:
    request = describe_wire.DescribeTransactionsRequest([name])
    (found,) = cluster.call(DESCRIBE, 0, request, server=server).response.transaction_states
    return found


def test_transaction_is_described_by_its_coordinator(cluster: Cluster) -> None:
    init(cluster)
    found = describe(cluster, X)
    assert (found.error_code, found.transaction_state, found.topics) == (0, "Empty", [])
    assert found.transaction_start_time_ms == -1
    add(cluster, 0, 2)
    assert commit_offsets(cluster, 1) == 0
    found = describe(cluster, X)
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    number = cluster.servers[1].coordinator_group(GROUP)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [
        ("__consumer_offsets", [number - 1]), ("t", [0, 2]),
    ]  # fmt: skip
    assert describe(cluster, "y").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(cluster, "").error_code == ErrorCode.INVALID_REQUEST
    assert describe(cluster, X, server=2).error_code == ErrorCode.NOT_COORDINATOR


def test_transaction_is_described_as_often_as_it_is_named_up_to_a_bound(cluster: Cluster) -> None:
    """As in Kafka, but a request of a million names gets no response of gigabytes."""
    init(cluster)
    add(cluster, 0, 2)
    request = describe_wire.DescribeTransactionsRequest([X] * 100 + ["y"])
    states = cluster.call(DESCRIBE, 0, request).response.transaction_states
    assert [len(state.topics) for state in states] == [1] * 11 + [0] * 90
    refused = [ErrorCode.INVALID_REQUEST] * 89
    assert [s.error_code for s in states[11:]] == [*refused, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]


def test_transactions_are_listed_by_what_is_asked_for(cluster: Cluster) -> None:
    for name in ("x", "y1", "y2"):
        init(cluster, name=name)
    add(cluster, 0)
    cluster.advance(5_000)

    def names(version: int = 2, **filters: Any) -> list[str]:
        response = cluster.call(
            LIST, version, list_wire.ListTransactionsRequest(**filters)
        ).response
        assert response.error_code == 0
        return sorted(state.transactional_id for state in response.transaction_states)

    assert names(0) == ["x", "y1", "y2"]
    assert names(state_filters=["Ongoing"]) == ["x"]
    assert names(state_filters=["Empty"]) == ["y1", "y2"]
    assert names(producer_id_filters=[known(cluster, "y1").producer_id]) == ["y1"]
    assert names(duration_filter=4_000) == ["x"]
    assert names(duration_filter=9_000) == []
    assert names(transactional_id_pattern="y.*") == ["y1", "y2"]
    request = list_wire.ListTransactionsRequest(state_filters=["Nowhere"])
    response = cluster.call(LIST, 0, request).response
    assert (response.unknown_state_filters, response.transaction_states) == (["Nowhere"], [])
    request = list_wire.ListTransactionsRequest(transactional_id_pattern="(")
    refused = cluster.call(LIST, 2, request).response
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def listed(call: Call) -> list[str]:
    return [state.transactional_id for state in call.response.transaction_states]


def by_pattern(cluster: Cluster, pattern: str, user: str = "") -> Call:
    request = list_wire.ListTransactionsRequest(transactional_id_pattern=pattern)
    return cluster.call(LIST, 2, request, user=user)


def test_pattern_is_matched_off_the_loop_and_compiled_once(cluster: Cluster) -> None:
    """A pattern over its budget is refused like an invalid one."""
    for name in ("x", "y1", "y2"):
        init(cluster, name=name)
    work = cluster.servers[1].pattern_work
    cluster.computing = []
    call = by_pattern(cluster, "y.*")
    assert not call.done
    assert (work.compiles, work.matches) == (0, 0)
    while not call.done:
        cluster.compute_one()
    assert sorted(listed(call)) == ["y1", "y2"]
    again = by_pattern(cluster, "y.*")
    while not again.done:
        cluster.compute_one()
    assert sorted(listed(again)) == ["y1", "y2"]
    assert (work.compiles, work.matches) == (1, 6)
    cluster.computing = None
    for _ in range(2):
        refused = by_pattern(cluster, r"\pL{0,1000}").response
        assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert work.compiles == 2


def test_pattern_is_not_matched_with_ids_that_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the response nor the work reveals if an id has a prefix.

    A pattern that is expensive after `payments-` costs the same whether or not such an id exists.
    """
    cluster = Cluster(3, authorizer=True)
    ids, describe = 5, 8
    cluster.apply_catalog(
        commands.CreateAcls([commands.AclBinding(ids, "mine-", 4, "User:eve", "*", describe, 3)])
    )
    for name in ("mine-1", "payments-eu", "payments-us"):
        init(cluster, name=name)
    matched: list[str] = []
    matches = Pattern.matches

    def counted(pattern: Pattern, text: str) -> bool:
        matched.append(text)
        return matches(pattern, text)

    monkeypatch.setattr(Pattern, "matches", counted)
    for pattern in ("payments-.{0,100}", "payroll-.{0,100}", ".*", "payments-eu"):
        found = listed(by_pattern(cluster, pattern, user="eve"))
        assert found == (["mine-1"] if pattern == ".*" else [])
        assert matched == ["mine-1"]
        matched.clear()


def test_patterns_of_one_client_that_wait_are_bounded(cluster: Cluster) -> None:
    """Further ones get a retriable error; those of other clients do not."""
    cluster.computing = []
    calls = [by_pattern(cluster, f"x{number}", user="eve") for number in range(110)]
    refused = [call.response.error_code for call in calls if call.done]
    assert refused == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 9
    other = by_pattern(cluster, "y", user="alice")
    for _ in range(4):  # in turns: its check, and its match
        assert not other.done
        cluster.compute_one()
    assert other.done


@pytest.mark.parametrize("version", [1, 2])
def test_administrator_may_abort_what_hangs_and_not_commit(cluster: Cluster, version: int) -> None:
    """KIP-664: the partition's leader decides, on any server."""

    def write(commits: bool, topic: str = "t", index: int = 0) -> int:
        marker = markers_wire.WritableTxnMarker(
            7, 3, commits, [markers_wire.WritableTxnMarkerTopic(topic, [index])], 5
        )
        request = markers_wire.WriteTxnMarkersRequest([marker])
        (result,) = cluster.call(MARKERS, version, request).response.markers
        return int(result.topics[0].partitions[0].error_code)

    assert write(True) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert write(False, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write(False, "t", 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.markers == []
    assert write(False) == 0
    ((group, marker),) = cluster.markers
    assert group == partition_groups(cluster)[0]
    assert (marker.producer_id, marker.producer_epoch, marker.commit) == (7, 3, False)
    cluster.verdict = ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(False) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_first_init_of_an_id_is_one_command(cluster: Cluster) -> None:
    """It allocates the producer id too; a later one needs none."""
    assert init(cluster).response.error_code == NONE
    number = cluster.servers[1].coordinator_group(X)
    assert len(cluster.logs[number].committed) == 1
    assert (known(cluster).producer_id, known(cluster).epoch) == (0, 0)
    assert init(cluster).response.producer_epoch == 1
    assert len(cluster.logs[number].committed) == 2
    assert cluster.servers[1].catalog.next_producer_id == 1


def test_init_on_a_full_disk_takes_no_producer_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog accepts writes on a full disk, but for more important commands."""
    number = cluster.servers[1].coordinator_group(X)
    group = cluster.servers[1].state_groups[number].group
    monkeypatch.setattr(group, "store", FullStore())
    assert init(cluster).response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.servers[1].catalog.next_producer_id == 0


class FullStore:
    """Disk without room."""

    accepts_appends = False
