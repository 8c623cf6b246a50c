"""A coordinator's memory is shared among principals where clients are authorized."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpc.hello import VERSION_OF_MANY_POSITIONS
from tests.unit.kafka_groups.client import GROUP, join, sync
from tests.unit.kafka_groups.cluster import Call, Cluster
from tests.unit.kafka_groups.consumer import heartbeat
from vdl.errors import ErrorCode
from vdl.kafka.groups import led_coordinator
from vdl.kafka.room_shares import TIMES_OF_FREE_IN_USE
from vdl.kafka.transactions.led_transactions import LedTransactions
from vdl.kafka.wire import add_partitions_to_txn as add_wire
from vdl.kafka.wire import delete_groups as delete_wire
from vdl.kafka.wire import init_producer_id as init_wire
from vdl.kafka.wire import offset_commit as commit_wire
from vdl.state import commands
from vdl.state.coordinator import COORDINATOR_BYTES_MAX, TRANSACTIONS_BYTES_MAX
from vdl.state.offsets import OFFSET_BYTES
from vdl.state.transactions import IDLE_MS_MIN

COMMIT, INIT, ADD, DELETE_GROUPS = 8, 22, 24, 42
POSITIONS = 40
SHARE = COORDINATOR_BYTES_MAX * 3 // 4
OLDER = VERSION_OF_MANY_POSITIONS - 1
"""Beside a server of this version offsets have no bound of their own."""
SMALL_BYTES_MAX, SMALL_MAX = 1 << 20, 10_000


def secured(
    *,
    authorizer: bool = True,
    version: int = OLDER,
    partitions: int = POSITIONS,
    **options: int,
) -> Cluster:
    """`version`: protocol version of another server with a replica."""
    cluster = Cluster(1, authorizer=authorizer, **options)
    cluster.create_topic("t", partitions=partitions)
    cluster.speak(version, 2)
    for state_group in cluster.servers[1].state_groups.values():
        state_group.group.members.append(2 << 16 | 1)  # type: ignore[attr-defined]
    return cluster


def names(cluster: Cluster, prefix: str) -> Iterator[str]:
    """Yield ids of groups that have the same coordinator as `GROUP`."""
    server = cluster.servers[1]
    for number in range(100_000):
        name = f"{prefix}{number}"
        if server.coordinator_group(name) == server.coordinator_group(GROUP):
            yield name


def send_commit(
    cluster: Cluster, group: str, user: str, count: int = POSITIONS, text: int = 4_000
) -> Call:
    """Commit this number of offsets, with metadata of this number of characters each."""
    parts = [commit_wire.OffsetCommitRequestPartition(number, 1) for number in range(count)]
    for part in parts:
        part.committed_metadata = "m" * text
    topic = commit_wire.OffsetCommitRequestTopic("t", partitions=parts)
    request = commit_wire.OffsetCommitRequest(group_id=group, topics=[topic])
    return cluster.call(COMMIT, 9, request, user=user)


def error_of(call: Call) -> ErrorCode:
    (code,) = {part.error_code for topic in call.response.topics for part in topic.partitions}
    return ErrorCode(code)


def fill(cluster: Cluster, user: str, prefix: str) -> list[str]:
    """Commit in new groups until a commit is refused; return the groups that were created."""
    made = []
    for name in names(cluster, prefix):
        code = error_of(send_commit(cluster, name, user))
        if code is not ErrorCode.NONE:
            assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            break
        made.append(name)
    return made


def test_groups_of_one_user_leave_room_for_those_of_others() -> None:
    """Applies to commits, joins, assignments and members of the consumer protocol.

    Requests that do not grow the state are always accepted, and freed room is used again.
    """
    cluster = secured()
    machine = cluster.machine(GROUP)
    made = fill(cluster, "eve", "eve")
    assert SHARE - POSITIONS * 4_200 < machine.bytes_held <= SHARE
    assert error_of(send_commit(cluster, made[0], "eve")) is ErrorCode.NONE
    large = {"range": b"r" * POSITIONS * 4_000}
    refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fresh = names(cluster, "more")
    assert (
        join(
            cluster, group_id=next(fresh), version=3, protocols=large, user="eve"
        ).response.error_code
        == refused
    )
    topics = ["t" * 200 + f"{number}" for number in range(800)]
    said = {"rebalance_timeout_ms": 1_000, "topic_partitions": [], "subscribed_topic_names": topics}
    member = heartbeat(cluster, "m", 0, group_id=next(fresh), user="eve", **said)
    assert member.response.error_code == refused

    assert error_of(send_commit(cluster, next(names(cluster, "alice")), "alice")) is ErrorCode.NONE
    joined = join(cluster, version=3, protocols=large, user="alice")
    assert joined.response.error_code == ErrorCode.NONE
    member_id = joined.response.member_id
    synced = sync(cluster, member_id, 1, {member_id: b"a" * 80_000}, user="alice")
    assert synced.response.error_code == ErrorCode.NONE
    member = heartbeat(cluster, "m", 0, group_id=next(fresh), user="alice", **said)
    cluster.advance(2_000)
    assert member.response.error_code == ErrorCode.NONE

    cluster.call(DELETE_GROUPS, 2, delete_wire.DeleteGroupsRequest(made[:10]), user="eve")
    cluster.advance(1_000)
    assert error_of(send_commit(cluster, next(fresh), "eve")) is ErrorCode.NONE


def test_what_is_not_decided_counts() -> None:
    """Concurrent requests take no more than sequential ones."""
    cluster = secured()
    cluster.commits = False
    calls = [
        send_commit(cluster, name, "eve")
        for name, _ in zip(names(cluster, "eve"), range(40), strict=False)
    ]
    cluster.pump()
    codes = [error_of(call) for call in calls]
    assert codes.count(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) > 10
    assert cluster.machine(GROUP).bytes_held <= SHARE
    cluster.commits = True
    assert error_of(send_commit(cluster, GROUP, "alice")) is ErrorCode.NONE


def test_a_new_leader_takes_what_it_has_not_heard_of_for_not_free() -> None:
    """It does not know the owners of existing groups; a principal gets a part of the free room."""
    cluster = secured()
    made = fill(cluster, "eve", "eve")
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.elect(number, 1)
    more = fill(cluster, "eve", "more")
    assert len(more) < len(made)
    assert error_of(send_commit(cluster, GROUP, "alice", 10)) is ErrorCode.NONE


def test_where_clients_may_do_everything_nothing_is_shared_out() -> None:
    """One client may have all the room; the error is retriable."""
    cluster = secured(authorizer=False)
    fill(cluster, "eve", "eve")
    assert cluster.machine(GROUP).bytes_held > SHARE + POSITIONS * 4_200
    assert error_of(send_commit(cluster, GROUP, "alice")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give offsets small bounds, as soon as they take any memory."""
    monkeypatch.setattr(led_coordinator, "RAISED_FROM", 0)
    monkeypatch.setattr(led_coordinator, "POSITIONS_BYTES_MAX", SMALL_BYTES_MAX)
    monkeypatch.setattr(led_coordinator, "POSITIONS_MAX", SMALL_MAX)


def test_positions_have_a_bound_of_their_own_once_all_replicas_know_that() -> None:
    """The bound is set before offsets take all the room.

    A server of an older version could not apply it. Beside one the error is retriable until that
    server is upgraded.
    """
    cluster = secured(authorizer=False)
    made = fill(cluster, "eve", "eve")
    machine = cluster.machine(GROUP)
    assert machine.positions_bound is None
    late = names(cluster, "late")
    assert error_of(send_commit(cluster, next(late), "a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.speak(VERSION_OF_MANY_POSITIONS, 2)
    send_commit(cluster, made[0], "eve")
    bound = machine.positions_bound
    assert bound is not None
    assert (bound.bytes_max, bound.count_max) == (64 << 20, 1_000_000)
    for _ in range(40):
        assert error_of(send_commit(cluster, next(late), "a")) is ErrorCode.NONE
    assert machine.bytes_held > 2 * COORDINATOR_BYTES_MAX


@pytest.mark.parametrize("authorizer", [False, True])
def test_one_commit_that_takes_more_than_there_is_has_room_when_it_comes_again(
    authorizer: bool,
) -> None:
    """Other commits may never have taken half of the common bound."""
    cluster = secured(
        authorizer=authorizer,
        version=VERSION_OF_MANY_POSITIONS,
        partitions=200,
        offset_metadata_max_bytes=30_000,
        message_max_bytes=7 << 20,
    )

    def commit() -> ErrorCode:
        return error_of(send_commit(cluster, GROUP, "eve", 200, 30_000))

    assert commit() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.pump()
    assert commit() is ErrorCode.NONE


@pytest.mark.usefixtures("small_bounds")
def test_positions_of_one_user_leave_room_for_those_of_others() -> None:
    """Covers bytes and number. State that is not an offset has room of its own."""
    cluster = secured(version=VERSION_OF_MANY_POSITIONS)
    machine = cluster.machine(GROUP)
    send_commit(cluster, GROUP, "alice", 1, 0)
    assert machine.positions_bound is not None
    fill(cluster, "eve", "eve")
    share = OFFSET_BYTES * SMALL_MAX * 3 // 4
    assert share - POSITIONS * 4_200 < machine.offsets.bytes <= share
    assert error_of(send_commit(cluster, GROUP, "alice", 20)) is ErrorCode.NONE
    refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert error_of(send_commit(cluster, next(names(cluster, "more")), "eve")) is refused
    large = {"range": b"r" * POSITIONS * 4_000}
    joined = join(cluster, version=3, protocols=large, user="eve")
    assert joined.response.error_code == ErrorCode.NONE


def test_groups_that_commits_make_count_where_positions_have_a_bound_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit that is refused for its group takes nothing of the offsets' room."""
    monkeypatch.setattr(led_coordinator, "RAISED_FROM", 0)
    cluster = secured(version=VERSION_OF_MANY_POSITIONS)
    machine = cluster.machine(GROUP)
    send_commit(cluster, GROUP, "alice", 1, 0)
    made = 0
    for name in names(cluster, "e" * 30_000):
        if error_of(send_commit(cluster, name, "eve", 1, 0)) is not ErrorCode.NONE:
            break
        made += 1
    assert SHARE - 40_000 < machine.shared_bytes <= SHARE
    assert made > 10
    assert error_of(send_commit(cluster, GROUP, "alice", 10)) is ErrorCode.NONE


def commit_in_transaction(cluster: Cluster, group: str, user: str, producer: int) -> ErrorCode:
    """Commit offsets in a transaction, which ends if they were accepted; return the error."""
    led = cluster.servers[1].groups.find(group)
    assert isinstance(led, led_coordinator.LedCoordinator)
    offsets = [
        commands.OffsetCommit("t", b"i" * 16, number, 1, -1, "m" * 4_000)
        for number in range(POSITIONS)
    ]
    commit = commands.CommitTransactionOffsets(group, -1, "", None, producer, 0, 1, offsets)
    errors = []
    if not led.propose_for(user, commit, lambda outcome: errors.append(outcome.result.error)):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.pump()
    cluster.advance(1_000)
    led.propose_for("", commands.EndTransactionOffsets(producer, 0, 1, True), lambda _: None)
    cluster.pump()
    return ErrorCode(errors[0])


@pytest.mark.usefixtures("small_bounds")
def test_positions_that_transactions_commit_count_as_others_do() -> None:
    """They count for their sender, also when all are recounted before a transaction ends."""
    cluster = secured(version=VERSION_OF_MANY_POSITIONS)
    machine = cluster.machine(GROUP)
    send_commit(cluster, GROUP, "alice", 1, 0)
    assert machine.positions_bound is not None
    made = []
    for producer, name in enumerate(names(cluster, "eve"), 1):
        if commit_in_transaction(cluster, name, "eve", producer) is not ErrorCode.NONE:
            break
        made.append(name)
    share = OFFSET_BYTES * SMALL_MAX * 3 // 4
    assert share - POSITIONS * 4_200 < machine.offsets.bytes <= share
    assert error_of(send_commit(cluster, GROUP, "alice", 20)) is ErrorCode.NONE


def test_only_commits_that_are_refused_give_positions_a_bound_of_their_own() -> None:
    """Members do not need it."""
    cluster = secured(version=VERSION_OF_MANY_POSITIONS)
    large = {"range": b"r" * POSITIONS * 4_000}
    for name in names(cluster, "eve"):
        joined = join(cluster, group_id=name, version=3, protocols=large, user="eve")
        if joined.response.error_code != ErrorCode.NONE:
            break
    cluster.advance(1_000)
    assert cluster.machine(GROUP).positions_bound is None


@pytest.mark.usefixtures("small_bounds")
def test_operators_see_how_full_a_coordinator_is() -> None:
    """Shown before anything is refused: the fullest coordinator, by its nearest bound."""
    cluster = secured(version=VERSION_OF_MANY_POSITIONS, authorizer=False)
    groups, machine = cluster.servers[1].groups, cluster.machine(GROUP)
    assert set(groups.numbers().values()) == {0}
    send_commit(cluster, GROUP, "alice", 1, 0)
    assert machine.positions_bound is not None
    fill(cluster, "eve", "eve")
    seen = groups.numbers()
    assert seen["coordinator_offsets"] == len(machine.offsets)
    assert seen["coordinator_bytes"] == machine.bytes_held
    assert seen["coordinator_room_used_ratio"] == machine.offsets.bytes / SMALL_BYTES_MAX > 0.8


class Told:
    """Log that keeps its events for tests to read."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []

    def note(self, event: str, **fields: object) -> None:
        pass

    def info(self, event: str, **fields: object) -> None:
        self.seen.append({"event": event, **fields})

    warning = error = info


@pytest.mark.usefixtures("small_bounds")
@pytest.mark.parametrize("awaits_servers", [False, True])
def test_log_is_told_that_a_coordinator_is_full(awaits_servers: bool) -> None:
    """The log line appears once a minute and has the reason.

    The reason is a server that is unreachable or of an older version.
    """
    version = OLDER if awaits_servers else VERSION_OF_MANY_POSITIONS
    cluster = secured(version=version, authorizer=False)
    log = Told()
    led = cluster.servers[1].groups.find(GROUP)
    assert isinstance(led, led_coordinator.LedCoordinator)
    led._log = log
    fill(cluster, "eve", "eve")
    fill(cluster, "eve", "more")
    assert [one["event"] for one in log.seen] == ["coordinator_full"]
    assert log.seen[0]["awaits_servers"] is awaits_servers
    cluster.advance(60_000)
    fill(cluster, "eve", "late")
    assert len(log.seen) == 2


def begin_transactions(cluster: Cluster, user: str, prefix: str) -> list[str]:
    """Begin to use new transactional ids until one is refused; return those that were created."""
    made = []
    for name in names(cluster, prefix):
        request = init_wire.InitProducerIdRequest(name, 60_000)
        response = cluster.call(INIT, 4, request, user=user).response
        if response.error_code:
            assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            break
        made.append(name)
    return made


def add_partitions(cluster: Cluster, name: str, user: str) -> int:
    known = cluster.machine(name).transactions.ids[name]
    topic = add_wire.AddPartitionsToTxnTopic("t", list(range(POSITIONS)))
    request = add_wire.AddPartitionsToTxnRequest(
        [], name, known.producer_id, known.epoch, v3_and_below_topics=[topic]
    )
    (answered,) = cluster.call(ADD, 3, request, user=user).response.results_by_topic_v3_and_below
    return int(answered.results_by_partition[0].partition_error_code)


def test_transactional_ids_of_one_user_leave_room_for_those_of_others() -> None:
    """Ids are kept for days, so that without shares one user could keep all others from beginning
    a transaction. What groups take of the common room is not free."""
    cluster = secured()
    cluster.machine(GROUP)
    transactions = cluster.machine(GROUP).transactions
    long = "e" * 20_000
    made = begin_transactions(cluster, "eve", long)
    share = TRANSACTIONS_BYTES_MAX * 3 // 4
    assert share - 21_000 < transactions.bytes <= share
    assert add_partitions(cluster, made[0], "eve") == ErrorCode.NONE
    assert begin_transactions(cluster, "alice", "alice" + long)
    assert transactions.bytes < TRANSACTIONS_BYTES_MAX - 21_000
    request = init_wire.InitProducerIdRequest(made[1], 60_000)
    again = cluster.call(INIT, 4, request, user="eve").response
    assert again.error_code == ErrorCode.NONE
    cluster.advance(IDLE_MS_MIN + 1_000)  # other ids may be forgotten then
    assert begin_transactions(cluster, "eve", "later" + long)


def test_user_with_a_whole_share_of_the_ids_can_use_those_it_has() -> None:
    """It gets no new ids. Its open transactions leave others room to begin."""
    cluster = secured()
    transactions = cluster.machine(GROUP).transactions
    long = "e" * 3_000
    made = begin_transactions(cluster, "eve", long)
    assert transactions.bytes > TRANSACTIONS_BYTES_MAX * 3 // 4 - 4_000
    assert {add_partitions(cluster, name, "eve") for name in made} == {ErrorCode.NONE}
    assert not begin_transactions(cluster, "eve", "later" + long)
    led = cluster.servers[1].transactions.find(made[0])
    assert isinstance(led, LedTransactions)
    added = 0
    while led.shares.begin("eve", made[0], 6_000, TIMES_OF_FREE_IN_USE) is not None:
        added += 6_000
    assert transactions.bytes + added > TRANSACTIONS_BYTES_MAX * 7 // 8
    alice = begin_transactions(cluster, "alice", "alice")
    assert add_partitions(cluster, alice[0], "alice") == ErrorCode.NONE


def test_ids_that_have_just_become_idle_are_free_for_new_ones() -> None:
    """The ids that are idle are counted again before a refusal."""
    cluster = secured()
    cluster.machine(GROUP)
    long = "e" * 3_000
    made = begin_transactions(cluster, "eve", long)
    cluster.advance(IDLE_MS_MIN - 20_000)
    assert not begin_transactions(cluster, "eve", "early" + long)
    cluster.advance(21_000)
    assert len(begin_transactions(cluster, "eve", "later" + long)) > len(made) * 3 // 4
