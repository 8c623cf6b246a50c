"""Large batches: a server without room for another one refuses it, and everything else goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from segments.memory import MemoryLog, MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group import appending, large_room
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.peers import inbox

LARGE = 10_000


@pytest.fixture(autouse=True)
def _small_ones_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "LARGE_BATCH_BYTES", LARGE)
    monkeypatch.setattr(inbox, "LARGE_BATCH_BYTES", LARGE)


def errors(*fates: list[Any]) -> list[ErrorCode | None]:
    """Return the error of each append, None if it is not known yet."""
    return [fate[0].error if fate else None for fate in fates]


def test_leader_whose_disk_has_no_room_refuses_a_large_batch_and_goes_on(
    cluster: Any, free_space: dict[bytes, int]
) -> None:
    """All batches of one turn count together."""
    leader = cluster.leader(cluster.create_topic())
    free_space[cluster.nodes[leader.leader_server].store.directory_id] = 5 * LARGE
    fates = [cluster.append(leader, bytes(size * LARGE)) for size in (6, 3, 3)]
    fates.append(cluster.append(leader))
    cluster.run(500)
    none, full = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
    assert errors(*fates) == [full, none, full, none]


def test_follower_whose_disk_has_no_room_takes_a_large_batch_once_it_has(
    cluster: Any, free_space: dict[bytes, int]
) -> None:
    """Its other groups go on in the meantime."""
    group_id, other_id = cluster.create_topic(), cluster.create_topic("other")
    leader = cluster.leader(group_id)
    here = leader.leader_server % 3 + 1
    free_space[cluster.nodes[here].store.directory_id] = 2 * LARGE
    fates = [
        cluster.append(leader, bytes(3 * LARGE)),
        cluster.append(cluster.leader(other_id)),
    ]
    cluster.run(1_000)
    assert errors(*fates) == [ErrorCode.NONE, ErrorCode.NONE]
    host = cluster.nodes[here].host
    assert host.groups[group_id].node.last_index < leader.group.node.last_index
    assert host.stream(other_id).high_watermark == 1
    free_space.clear()
    cluster.run(1_000)
    assert host.stream(group_id).high_watermark == 1


@pytest.fixture
def uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores hold large entries until they are committed, as if these were flushed then."""

    def large_bytes(log: MemoryLog) -> int:
        entries = log.state.entries[log.commit_index + 1 - log.first_index :]
        return sum(len(entry.data) for entry in entries if len(entry.data) > LARGE)

    monkeypatch.setattr(MemoryLog, "large_bytes", property(large_bytes))
    monkeypatch.setattr(
        MemoryStore,
        "large_bytes",
        property(lambda store: sum(map(large_bytes, store.logs.values()))),
    )


def test_leader_refuses_a_large_batch_while_others_leave_no_room(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, uncommitted: None
) -> None:
    """All batches of one turn count together, and the commit frees the room."""
    monkeypatch.setattr(large_room, "LARGE_LED_BYTES_MAX", 5 * LARGE)
    leaders = [cluster.leader(cluster.create_topic(f"t{n}")) for n in range(3)]
    fates = [cluster.append(leader, bytes(2 * LARGE)) for leader in leaders]
    cluster.run(500)
    assert errors(*fates) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    assert errors(cluster.append(leaders[2], bytes(9 * LARGE))) == [None]
    cluster.run(500)


def test_two_servers_that_are_full_of_their_own_take_one_from_each_other(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, uncommitted: None
) -> None:
    """The third server is away: neither commits without the other, and no entry leaves before."""
    monkeypatch.setattr(large_room, "TAKEN_BYTES_MAX", 1)
    group_ids = [cluster.create_topic(f"t{n}") for n in range(6)]
    for group_id in group_ids[3:]:
        leader = cluster.leader(group_id)
        (to,) = [one for one in leader.group.members if server_of(one) == 2]
        leader.group.node.transfer_leader(to)
        cluster.nodes[leader.leader_server].host._outbox.mark_dirty(leader.group)
    cluster.run(500)
    streams = [cluster.leader(group_id) for group_id in group_ids]
    assert {stream.leader_server for stream in streams} == {1, 2}
    cluster.nodes[3].crash()
    fates = [cluster.append(stream, bytes(2 * LARGE), ms=9_000) for stream in streams]
    cluster.run(9_500)
    assert errors(*fates) == [ErrorCode.NONE] * 6


def test_large_batches_held_after_a_loss_of_leadership_are_counted(cluster: Any) -> None:
    stream = cluster.leader(cluster.create_topic())
    ahead, batch = stream.group.ahead, bytes(LARGE)
    ahead.bytes_min = LARGE
    held = stream.appending._own_held()
    ahead.queued = held
    stream.appending.leadership_lost()
    stream.appending._own_held().append(SimpleNamespace(batch=batch))
    assert ahead.bytes == len(batch)
