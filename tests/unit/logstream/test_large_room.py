"""Large batches: who has no room for another does not take it, and goes on with all else."""

from typing import Any

import pytest

from segments.memory import MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group import log_stream
from vdl.logstream.peers import inbox

LARGE = 10_000


@pytest.fixture(autouse=True)
def _small_ones_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "LARGE_BATCH_BYTES", LARGE)
    monkeypatch.setattr(inbox, "LARGE_BATCH_BYTES", LARGE)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, int]:
    """What disks have room for, by directory, in place of endless room."""
    found: dict[bytes, int] = {}
    monkeypatch.setattr(
        MemoryStore,
        "has_room_for",
        lambda store, size: size <= found.get(store.directory_id, 1 << 30),
    )
    return found


def errors(*fates: list[Any]) -> list[ErrorCode | None]:
    """None: it is not known yet."""
    return [fate[0].error if fate else None for fate in fates]


def test_leader_whose_disk_has_no_room_refuses_a_large_batch_and_goes_on(
    cluster: Any, rooms: dict[bytes, int]
) -> None:
    """What comes in one turn counts together."""
    leader = cluster.leader(cluster.create_topic())
    rooms[cluster.nodes[leader.leader_server].store.directory_id] = 5 * LARGE
    fates = [cluster.append(leader, bytes(size * LARGE)) for size in (6, 3, 3)]
    fates.append(cluster.append(leader))
    cluster.run(500)
    none, full = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR
    assert errors(*fates) == [full, none, full, none]


def test_follower_whose_disk_has_no_room_takes_a_large_batch_once_it_has(
    cluster: Any, rooms: dict[bytes, int]
) -> None:
    """Others of its groups go on meanwhile."""
    group_id, other_id = cluster.create_topic(), cluster.create_topic("other")
    leader = cluster.leader(group_id)
    here = leader.leader_server % 3 + 1
    rooms[cluster.nodes[here].store.directory_id] = 2 * LARGE
    fates = [
        cluster.append(leader, bytes(3 * LARGE)),
        cluster.append(cluster.leader(other_id)),
    ]
    cluster.run(1_000)
    assert errors(*fates) == [ErrorCode.NONE, ErrorCode.NONE]
    host = cluster.nodes[here].host
    assert host.groups[group_id].node.last_index < leader.group.node.last_index
    assert host.stream(other_id).high_watermark == 1
    rooms.clear()
    cluster.run(1_000)
    assert host.stream(group_id).high_watermark == 1
