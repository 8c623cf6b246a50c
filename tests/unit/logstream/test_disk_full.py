"""A full disk: new records are refused, leaderships move to servers with room, deleting goes on."""

from typing import Any

import pytest

from ids import ServerId
from segments.memory import MemoryStore
from tests.unit.logstream.conftest import Cluster
from tests.unit.logstream.test_partition_transactions import Asked, ended, send, sent, stable
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.state_group import Outcome
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.commands import AllocateProducerIds, CompleteJoin


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Return the set of directories whose disk is full."""
    directories: set[bytes] = set()
    monkeypatch.setattr(
        MemoryStore,
        "accepts_appends",
        property(lambda store: store.directory_id not in directories),
    )
    return directories


def fill(cluster: Any, full: set[bytes], *servers: int) -> None:
    full |= {cluster.nodes[server].store.directory_id for server in servers}


def test_leader_with_a_full_disk_gives_way_to_one_that_has_room(
    cluster: Any, full: set[bytes]
) -> None:
    """Writes continue; the full server does not lead again before it has room."""
    group_id = cluster.create_topic()
    assert cluster.leader(group_id).leader_server == 1
    fill(cluster, full, 1)
    refused = cluster.append(cluster.leader(group_id))
    assert [fate.error for fate in refused] == [ErrorCode.KAFKA_STORAGE_ERROR]
    cluster.run(3_000)
    assert cluster.leader(group_id).leader_server != 1
    fates = [cluster.append(cluster.leader(group_id)) for _ in range(5)]
    cluster.run(3_000)
    assert {fate.error for (fate,) in fates} == {ErrorCode.NONE}
    assert cluster.leader(group_id).leader_server != 1
    # It refused the records; with room again it gets them, and its leadership.
    behind = cluster.nodes[1].host.stream(group_id)
    assert behind.high_watermark == 0
    full.clear()
    cluster.run(5_000)
    assert behind.high_watermark == 5
    assert cluster.leader(group_id).leader_server == 1


def test_full_disks_everywhere_keep_their_leaders_and_what_frees_them(
    cluster: Any, full: set[bytes]
) -> None:
    """No server has room: leaderships do not move, records are refused, deleting works."""
    group_id = cluster.create_topic()
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(10)
    fill(cluster, full, 1, 2, 3)
    cluster.run(3_000)
    leader = cluster.leader(group_id)
    term = leader.term
    cluster.run(3_000)
    assert cluster.leader(group_id).term == term
    refused = cluster.append(leader)
    assert [fate.error for fate in refused] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert leader.read(0, 1 << 20).end_offset == 5
    answers: list[ErrorCode] = []
    leader.delete_records(3, deadline_ns=cluster.deadline(), done=answers.append)
    cluster.run(1_000)
    assert answers == [ErrorCode.NONE]
    streams = [node.host.stream(group_id) for node in cluster.nodes.values()]
    assert {stream.log_start_offset for stream in streams} == {3}
    cluster.delete_topic()
    cluster.run(500)
    assert cluster.nodes[1].host.stream(group_id) is None


def test_leader_that_dies_while_all_disks_are_full_is_replaced(
    cluster: Any, full: set[bytes]
) -> None:
    """Votes can always be written; a new leader's first entry has no records."""
    group_id = cluster.create_topic()
    fill(cluster, full, 1, 2, 3)
    cluster.run(1_000)
    cluster.nodes[cluster.leader(group_id).leader_server].crash()
    cluster.run(3_000)
    assert cluster.leader(group_id).serving


def test_coordinators_refuse_commands_on_a_full_disk(cluster: Any, full: set[bytes]) -> None:
    """The command is certainly not appended: the client retries."""
    group = next(
        state_group
        for node in cluster.nodes.values()
        for state_group in node.host.coordinators
        if state_group.serving
    )
    fill(cluster, full, 1, 2, 3)
    outcomes: list[Outcome] = []
    group.propose(CompleteJoin("g", 1), deadline_ns=cluster.deadline(), done=outcomes.append)
    assert [outcome.kind.value for outcome in outcomes] == ["not appended"]


def test_commands_of_one_turn_share_the_room_of_a_full_disk(
    cluster: Any, full: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store counts them at the turn's end: until then each must include those before it."""
    catalog = next(
        node.host.state_group(CATALOG_GROUP)
        for node in cluster.nodes.values()
        if node.host.state_group(CATALOG_GROUP).serving
    )
    fill(cluster, full, 1, 2, 3)
    monkeypatch.setattr(MemoryStore, "entry_room", lambda store, *, is_essential: 400)
    accepted = [catalog.append(catalog.envelope(AllocateProducerIds(1))[1]) for _ in range(40)]
    assert accepted[0]
    assert not accepted[-1]
    assert accepted == sorted(accepted, reverse=True)
    cluster.run(1_000)
    assert catalog.append(catalog.envelope(AllocateProducerIds(1))[1])


def test_new_leader_serves_though_its_follower_missed_records_on_a_full_disk(
    cluster: Any, full: set[bytes]
) -> None:
    """The follower has to take entries of earlier terms.

    Otherwise nothing could be committed, read or deleted before the third server is back.
    """
    group_id = cluster.create_topic()
    fill(cluster, full, 3)
    for _ in range(30):
        cluster.append(cluster.leader(group_id), b"v" * 2_000)
        cluster.run(20)
    fill(cluster, full, 1, 2)
    cluster.run(1_000)
    assert cluster.nodes[3].host.stream(group_id).end_offset == 0
    cluster.nodes[cluster.leader(group_id).leader_server].crash()
    cluster.run(4_000)
    leader = cluster.leader(group_id)
    assert leader.high_watermark == 30
    asked: list[bool] = []
    leader.read_index(deadline_ns=cluster.deadline(), done=asked.append)
    cluster.run(500)
    assert asked == [True]
    refused = cluster.append(leader)
    assert [fate.error for fate in refused] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_full_disk_takes_no_more_than_it_has_room_for(
    cluster: Any, full: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that a new leader needs are refused before they take the space of votes.

    Elections and deletions go on, and the entries are taken when there is room again.
    """
    group_id = cluster.create_topic()
    fill(cluster, full, 3)
    for _ in range(30):
        cluster.append(cluster.leader(group_id), b"v" * 2_000)
        cluster.run(20)
    fill(cluster, full, 1, 2)
    room = {True: 5_000, False: 0}
    monkeypatch.setattr(
        MemoryStore, "entry_room", lambda store, *, is_essential: room[is_essential]
    )
    cluster.run(1_000)
    crashed = cluster.nodes[cluster.leader(group_id).leader_server]
    crashed.crash()
    cluster.run(4_000)
    behind = cluster.nodes[3].host.stream(group_id)
    assert behind.end_offset == 0
    terms = {
        n.host.stream(group_id).group.node.term for n in cluster.nodes.values() if n is not crashed
    }
    assert max(terms) > 1
    room[False] = 1 << 20
    cluster.run(4_000)
    assert behind.end_offset == 30
    assert cluster.leader(group_id).high_watermark == 30


@pytest.mark.parametrize("is_third_there", [True, False])
def test_leader_with_room_refuses_what_a_majority_has_no_room_for(
    cluster: Any, full: set[bytes], is_third_there: bool
) -> None:
    """Records would wait for other disks, and deletions behind them.

    As soon as a majority has room they are taken again.
    """
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    cluster.append(leader)
    cluster.run(1_000)
    here = leader.leader_server
    one, other = (server for server in cluster.nodes if server != here)
    if is_third_there:
        fill(cluster, full, other)
        cluster.run(1_000)
        (taken,) = [cluster.append(leader)]
        cluster.run(1_000)
        assert [fate.error for fate in taken] == [ErrorCode.NONE]
    else:
        cluster.nodes[other].crash()
    fill(cluster, full, one)
    cluster.run(1_000)
    assert cluster.leader(group_id) is leader
    refused = cluster.append(leader)
    assert [fate.error for fate in refused] == [ErrorCode.KAFKA_STORAGE_ERROR]
    full.discard(cluster.nodes[one].store.directory_id)
    cluster.run(1_000)
    taken = cluster.append(leader)
    cluster.run(1_000)
    assert [fate.error for fate in taken] == [ErrorCode.NONE]


def test_full_disks_of_others_than_its_servers_do_not_matter_to_a_group(
    cluster: Any, full: set[bytes]
) -> None:
    """It waits for servers that are down, as always."""
    leader = cluster.leader(cluster.create_topic())
    state = cluster.nodes[leader.leader_server].host.state
    state.full.add(ServerId(9))
    for server, node in cluster.nodes.items():
        if server != leader.leader_server:
            node.crash()
    assert leader.group.accepts_appends


def needed(cluster: Any, full: set[bytes]) -> tuple[LogStream, int]:
    """Return a leader with one record, and a full server without which it commits nothing."""
    leader = cluster.leader(cluster.create_topic())
    cluster.append(leader)
    cluster.run(1_000)
    there, down = (server for server in cluster.nodes if server != leader.leader_server)
    cluster.nodes[down].crash()
    fill(cluster, full, there)
    return leader, there


@pytest.mark.parametrize(
    ("records", "size"),
    [
        pytest.param(1, 2_000, id="one"),
        pytest.param(30, 2_000, id="more than is taken at one time"),
        pytest.param(3, 900_000, id="more than a message holds"),
    ],
)
def test_full_follower_takes_what_was_under_way_and_a_deletion_behind_it(
    cluster: Any, full: set[bytes], records: int, size: int
) -> None:
    leader, there = needed(cluster, full)
    fates = [cluster.append(leader, b"v" * size, ms=60_000) for _ in range(records)]
    cluster.run(100)
    assert leader.serving
    answers: list[ErrorCode] = []
    leader.delete_records(1, deadline_ns=cluster.deadline(10_000), done=answers.append)
    cluster.run(10_000)
    assert answers == [ErrorCode.NONE]
    assert [fate.error for (fate,) in fates] == [ErrorCode.NONE] * records
    assert cluster.nodes[there].host.stream(leader.group_id).log_start_offset == 1


def test_what_came_faster_than_a_leader_heard_of_full_disks_is_taken(
    cluster: Any, full: set[bytes]
) -> None:
    """At 40 MB a second. The leader learns of full disks with the first refusals."""
    leader = cluster.leader(cluster.create_topic())
    cluster.append(leader)
    cluster.run(1_000)
    fill(cluster, full, *(server for server in cluster.nodes if server != leader.leader_server))
    fates = []
    for _ in range(60):
        fates += cluster.append(leader, b"v" * 40_000, ms=60_000)
        cluster.run(1)
    assert len(fates) > 50
    assert {fate.error for fate in fates} == {ErrorCode.KAFKA_STORAGE_ERROR}
    answers: list[ErrorCode] = []
    leader.delete_records(1, deadline_ns=cluster.deadline(), done=answers.append)
    cluster.run(10_000)
    assert answers == [ErrorCode.NONE]


def test_transactions_end_behind_records_that_were_under_way(
    cluster: Any, full: set[bytes]
) -> None:
    leader = cluster.leader(cluster.create_topic())
    assert sent(cluster, leader, producer_id=7).error is ErrorCode.NONE
    there, down = (server for server in cluster.nodes if server != leader.leader_server)
    cluster.nodes[down].crash()
    fill(cluster, full, there)
    cluster.append(leader, ms=60_000)
    cluster.run(2_000)
    assert ended(cluster, leader, producer_id=7, number=1) is ErrorCode.NONE


def test_held_batches_are_refused_like_new_ones(full: set[bytes]) -> None:
    """Otherwise they would be appended behind a deletion, and the next one would wait for them."""
    cluster = Cluster(uncommitted_bytes_max=100_000)
    leader, _ = needed(cluster, full)
    fates = [cluster.append(leader, b"v" * 40_000, ms=20_000) for _ in range(5)]
    cluster.run(10_000)
    errors = [fate.error for (fate,) in fates]
    assert errors == [ErrorCode.NONE] * 2 + [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert leader.end_offset == leader.high_watermark == 3


@pytest.mark.parametrize("where", ["own", "others"])
def test_batch_sent_again_is_answered_though_there_is_no_room(
    cluster: Any, full: set[bytes], where: str
) -> None:
    """The producer would give up, and report that its record was not written."""
    leader = cluster.leader(cluster.create_topic())
    fields = {"producer_id": 5, "producer_epoch": 0}
    cluster.append(leader, base_sequence=0, **fields)
    cluster.run(500)
    here = leader.leader_server
    others = [server for server in cluster.nodes if server != here]
    fill(cluster, full, *([here] if where == "own" else others))
    if where == "others":
        cluster.run(1_000)
    again = cluster.append(leader, base_sequence=0, **fields)
    assert [fate.error for fate in again] == [ErrorCode.NONE]
    new = cluster.append(leader, base_sequence=1, **fields)
    assert [fate.error for fate in new] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_compaction_is_decided_while_others_are_full(cluster: Any, full: set[bytes]) -> None:
    """Compaction frees space, too."""
    leader = cluster.leader(cluster.create_topic())
    for _ in range(5):
        cluster.append(leader)
        cluster.run(20)
    fill(cluster, full, *(server for server in cluster.nodes if server != leader.leader_server))
    cluster.run(1_000)
    leader.commands.compact(upto=3, markers_upto=0)
    cluster.run(1_000)
    assert leader.state.compact_upto == 3


@pytest.mark.parametrize("sync_ms", [0, 100, 250])
def test_full_follower_takes_no_records_that_others_commit(
    cluster: Any, full: set[bytes], sync_ms: int
) -> None:
    """Its space is kept for entries that other servers cannot commit."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    there, other = (server for server in cluster.nodes if server != leader.leader_server)
    fill(cluster, full, there)
    cluster.nodes[other].workers.sync_ns = sync_ms * MS
    for _ in range(5):
        cluster.append(leader)
    cluster.run(1_000)
    answers: list[ErrorCode] = []
    leader.delete_records(1, deadline_ns=cluster.deadline(), done=answers.append)
    cluster.run(5_000)
    assert answers == [ErrorCode.NONE]
    assert cluster.nodes[there].host.stream(group_id).end_offset == 0


def test_open_transactions_end_on_a_full_disk(
    cluster: Any, full: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their end is decided, and no transaction begins.

    Otherwise the stable part would stop growing until records are deleted. Without space even for a
    marker the coordinator sends it again.
    """
    stream = cluster.leader(cluster.create_topic())
    for producer_id in (7, 8):
        assert sent(cluster, stream, producer_id=producer_id).error is ErrorCode.NONE
    fill(cluster, full, 1, 2, 3)
    assert send(cluster, stream, Asked(), producer_id=9)[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert ended(cluster, stream, producer_id=7, number=1) is ErrorCode.NONE
    assert stable(stream) == 1
    monkeypatch.setattr(MemoryStore, "entry_room", lambda store, *, is_essential: is_essential << 9)
    assert ended(cluster, stream, producer_id=8, number=1) is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    full.clear()
    cluster.run(1_000)
    assert ended(cluster, stream, producer_id=8, number=1) is ErrorCode.NONE
    assert stable(stream) == stream.end_offset == 4
