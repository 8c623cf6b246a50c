"""Large batches that wait until they are written ahead: all else of their partition is in order."""

from collections.abc import Callable
from typing import Any

import pytest

from raft.messages import MsgApp
from raft.types import Entry
from segments.memory import MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group.write_ahead import HELD_MAX

LARGE = 10_000


class SlowStores:
    """The stores of a cluster, which write payloads ahead as slowly as a test wants."""

    def __init__(self) -> None:
        self.waiting: list[tuple[MemoryStore, int, Callable[[], None]]] = []
        """(store, index that the entry is to get, its callback), in order."""

    def end(self, store: MemoryStore) -> list[int]:
        """Let the store end what it writes; return the indexes."""
        ended = [one for one in self.waiting if one[0] is store]
        self.waiting = [one for one in self.waiting if one[0] is not store]
        for _, _, done in ended:
            done()
        return [index for _, index, _ in ended]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStores:
    made = SlowStores()
    monkeypatch.setattr(MemoryStore, "ahead_bytes_min", LARGE)

    def write_ahead(store: MemoryStore, log: Any, *_: Any, done: Any, **__: Any) -> None:
        made.waiting.append((store, log.last_index + 1, done))

    monkeypatch.setattr(MemoryStore, "write_ahead", write_ahead)
    return made


def errors(*fates: list[Any]) -> list[ErrorCode | None]:
    """Return the error of each append, None if it is not known yet."""
    return [fate[0].error if fate else None for fate in fates]


def end_at_followers(cluster: Any, slow: SlowStores, leader: Any) -> None:
    cluster.run(20)
    for node in cluster.nodes.values():
        if node.id != leader.leader_server:
            slow.end(node.store)
    cluster.run(20)


def test_leader_holds_a_large_batch_and_later_ones_in_order(cluster: Any, slow: SlowStores) -> None:
    """Other partitions of the server go on. The place is that of the next entry."""
    leader = cluster.leader(cluster.create_topic())
    other = cluster.leader(cluster.create_topic("other"))
    last = leader.group.log.last_index
    fates = [cluster.append(leader, bytes(size)) for size in (1, LARGE, 1, LARGE, 1)]
    beside = cluster.append(other)
    cluster.run(100)
    none = ErrorCode.NONE
    refused = ErrorCode.NOT_LEADER_OR_FOLLOWER  # a fourth held batch is beyond the bound
    assert errors(*fates, beside) == [none, None, None, None, refused, none]
    store = cluster.nodes[leader.leader_server].store
    assert slow.end(store) == [last + 2]
    end_at_followers(cluster, slow, leader)
    assert errors(*fates) == [none, none, none, None, refused]
    assert slow.end(store) == [last + 4]
    end_at_followers(cluster, slow, leader)
    assert errors(*fates) == [none, none, none, none, refused]
    assert [fate[0].base_offset for fate in fates[:4]] == [0, 1, 2, 3]
    for node in cluster.nodes.values():  # no memory is kept
        assert node.host.groups[leader.group.group_id].ahead._written is None


def test_held_batch_ends_at_its_deadline_and_the_next_one_follows(
    cluster: Any, slow: SlowStores
) -> None:
    """It was never appended, and its memory is not kept."""
    leader = cluster.leader(cluster.create_topic())
    late = cluster.append(leader, bytes(LARGE), ms=200)
    behind = cluster.append(leader, ms=2_000)
    cluster.run(1_000)
    assert errors(late, behind) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    assert behind[0].base_offset == 0
    slow.end(cluster.nodes[leader.leader_server].store)
    cluster.run(10)
    ahead = leader.group.ahead
    assert (ahead.is_writing, ahead._written) == (False, None)


def test_followers_hold_an_append_and_later_ones_in_order(cluster: Any, slow: SlowStores) -> None:
    """Heartbeats pass, so nothing else changes however long it takes; other groups go on."""
    group_id = cluster.create_topic()
    leader, other = cluster.leader(group_id), cluster.leader(cluster.create_topic("other"))
    large = cluster.append(leader, bytes(LARGE), ms=60_000)
    cluster.run(10)
    slow.end(cluster.nodes[leader.leader_server].store)
    cluster.run(10)
    term = leader.group.node.term
    behind = cluster.append(leader, ms=60_000)
    cluster.run(5_000)
    beside = cluster.append(other)
    cluster.run(100)
    assert errors(large, behind, beside) == [None, None, ErrorCode.NONE]
    followers = [node for node in cluster.nodes.values() if node.id != leader.leader_server]
    groups = [node.host.groups[group_id] for node in followers]
    assert all(len(group.ahead.held) > 1 for group in groups)
    end_at_followers(cluster, slow, leader)
    assert errors(large, behind) == [ErrorCode.NONE, ErrorCode.NONE]
    assert leader.group.node.term == term
    cluster.run(200)
    assert {group.log.last_index for group in groups} == {leader.group.log.last_index}
    assert not slow.waiting
    assert not any(group.ahead.held for group in groups)


def test_new_leader_goes_on_beside_a_held_append(cluster: Any, slow: SlowStores) -> None:
    """Appends of the old one are stepped afterwards, in their old term, and change nothing."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    fate = cluster.append(old, bytes(LARGE), ms=60_000)
    cluster.run(10)
    slow.end(cluster.nodes[old.leader_server].store)
    cluster.run(10)
    cluster.nodes[old.leader_server].crash()
    cluster.run(4_000)
    new = cluster.new_leader(group_id, old)
    small = cluster.append(new)
    cluster.run(100)
    assert errors(small) == [ErrorCode.NONE]
    for node in cluster.nodes.values():
        slow.end(node.store)
    cluster.run(500)
    assert (errors(fate), small[0].base_offset) == ([None], 0)
    assert new.high_watermark == 1
    groups = [n.host.groups[group_id] for n in cluster.nodes.values() if not n.clock.stopped]
    assert len({group.log.last_index for group in groups}) == 1
    assert not any(group.ahead.held for group in groups)


def test_follower_holds_a_bounded_number_of_appends(cluster: Any, slow: SlowStores) -> None:
    """Beyond it they are dropped, and a leader sends them again."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    here = next(node for node in cluster.nodes.values() if node.id != leader.leader_server)
    group, raft = here.host.groups[group_id], leader.group.node.raft
    cluster.run(500)
    index, term, offset = raft.log.last_index, raft.term, leader.group.log.next_offset

    def step(index: int, log_term: int, data: bytes) -> None:
        entry = Entry(term=term, index=index + 1, data=data, base_offset=offset, records=1)
        message = MsgApp(
            group.replica_id, raft.id, term, log_term, index, [entry], raft.log.committed
        )
        here.host._inbox.step(group_id, message, leader.leader_server, here.host.loop_time.tick())

    step(index, raft.log.last_term, bytes(LARGE))
    for n in range(1, HELD_MAX + 10):
        step(index + n, term, b"v")
    assert len(group.ahead.held) == HELD_MAX
    assert group.node.last_index == index
