"""Large batches that wait until they are written ahead: all else of their partition is in order."""

from collections.abc import Callable
from typing import Any

import pytest

from raft.messages import MsgApp
from raft.types import Entry
from segments.memory import MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group import appending, large_room
from vdl.logstream.group.write_ahead import BEHIND_BYTES_MAX, HELD_MAX
from vdl.logstream.peers import inbox

LARGE = 10_000


class SlowStores:
    """The stores of a cluster, which write payloads ahead as slowly as a test wants."""

    def __init__(self) -> None:
        self.waiting: list[tuple[MemoryStore, int, Callable[[], None]]] = []
        """(store, index that the entry is to get, its callback), in order."""
        self.wanted: list[Callable[[], bool]] = []
        """For each payload that was ever begun: is it wanted."""

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
    monkeypatch.setattr(appending, "LARGE_BATCH_BYTES", LARGE - 1)
    monkeypatch.setattr(inbox, "LARGE_BATCH_BYTES", LARGE - 1)
    monkeypatch.setattr(MemoryStore, "ahead_bytes_min", LARGE)

    def write_ahead(
        store: MemoryStore, log: Any, *_: Any, is_wanted: Any, done: Any, **__: Any
    ) -> None:
        made.wanted.append(is_wanted)
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


def test_large_batches_behind_the_first_count_in_memory(cluster: Any, slow: SlowStores) -> None:
    """Otherwise more are let in than may be appended, and clients get errors."""
    leader = cluster.leader(cluster.create_topic())
    host = cluster.nodes[leader.leader_server].host
    counted = []
    for _ in range(3):
        cluster.append(leader, bytes(LARGE))
        counted.append(host.large_bytes // LARGE)
    assert counted == [1, 2, 3]
    cluster.run(100)
    store = cluster.nodes[leader.leader_server].store
    for left in (2, 1, 0):
        slow.end(store)
        end_at_followers(cluster, slow, leader)
        assert (host.large_bytes - store.large_bytes) // LARGE == left


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
    assert [is_wanted() for is_wanted in slow.wanted] == [False]
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


def begin_at_followers(cluster: Any, slow: SlowStores, leader: Any, size: int = LARGE) -> Any:
    """Append a large batch whose followers hold it; return its fate."""
    fate = cluster.append(leader, bytes(size), ms=60_000)
    cluster.run(10)
    slow.end(cluster.nodes[leader.leader_server].store)
    cluster.run(20)
    return fate


def test_follower_that_is_probed_holds_one_copy(cluster: Any, slow: SlowStores) -> None:
    """The leader sends again at each answered heartbeat."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    cluster.run(500)
    follower = next(node for node in cluster.nodes.values() if node.id != leader.leader_server)
    group = follower.host.groups[group_id]
    fate = begin_at_followers(cluster, slow, leader)
    leader.group.node.report_unreachable(group.replica_id)
    dropped = follower.host.stats.messages_dropped
    cluster.run(3_000)
    assert follower.host.stats.messages_dropped > dropped + 5
    assert len(group.ahead.held) == 1
    assert LARGE <= group.ahead.bytes < 2 * LARGE
    end_at_followers(cluster, slow, leader)
    assert errors(fate) == [ErrorCode.NONE]
    assert (len(group.ahead.held), group.ahead.bytes) == (0, 0)
    assert group.log.last_index == leader.group.log.last_index


def test_what_a_follower_holds_counts_on_its_disk(
    cluster: Any, slow: SlowStores, free_space: dict[bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise several groups' payloads find the same free bytes, and land in one block."""
    leaders = [cluster.leader(cluster.create_topic(f"t{n}")) for n in range(3)]
    cluster.run(500)
    here = next(n for n in cluster.nodes.values() if n.id not in {s.leader_server for s in leaders})
    free_space[here.store.directory_id] = 2 * LARGE + LARGE // 2
    staged: list[int] = []
    append = MemoryStore.append

    def noted(store: MemoryStore, log: Any, entries: Any) -> None:
        if store is here.store:
            staged.extend(len(entry.data) // LARGE for entry in entries if len(entry.data) >= LARGE)
        append(store, log, entries)

    monkeypatch.setattr(MemoryStore, "append", noted)
    fates = [begin_at_followers(cluster, slow, leader) for leader in leaders]
    held = [bool(here.host.groups[leader.group.group_id].ahead.held) for leader in leaders]
    assert held == [True, True, False]
    slow.end(here.store)
    cluster.run(1)
    assert staged == [1] * 2
    while slow.waiting:
        for node in cluster.nodes.values():
            slow.end(node.store)
        cluster.run(500)
    assert errors(*fates) == [ErrorCode.NONE] * 3
    assert staged == [1] * 3


def test_follower_whose_disk_filled_up_meanwhile_takes_the_append_later(
    cluster: Any, slow: SlowStores, free_space: dict[bytes, int]
) -> None:
    """It drops what is behind the large one, too."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    cluster.run(500)
    here = next(node for node in cluster.nodes.values() if node.id != leader.leader_server)
    group = here.host.groups[group_id]
    begin_at_followers(cluster, slow, leader)
    cluster.append(leader)
    cluster.run(20)
    last = group.log.last_index
    assert len(group.ahead.held) == 2
    free_space[here.store.directory_id] = LARGE - 1
    slow.end(here.store)
    cluster.run(500)
    assert (group.log.last_index, len(group.ahead.held), group.ahead.bytes) == (last, 0, 0)
    free_space.clear()
    cluster.run(500)
    slow.end(here.store)
    cluster.run(500)
    assert group.log.last_index == last + 2


def test_batches_that_wait_count_in_memory(
    cluster: Any, slow: SlowStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count until they are appended; one that was written is not refused any more."""
    monkeypatch.setattr(large_room, "LARGE_LED_BYTES_MAX", 5 * LARGE)
    leaders = [cluster.leader(cluster.create_topic(f"t{n}")) for n in range(3)]
    (server,) = {leader.leader_server for leader in leaders}
    host = cluster.nodes[server].host
    fates = []
    for leader in leaders:
        fates.append(cluster.append(leader, bytes(2 * LARGE), ms=60_000))
        cluster.run(100)
    assert errors(*fates) == [None, None, ErrorCode.KAFKA_STORAGE_ERROR]
    assert host.large_bytes // LARGE == 4
    monkeypatch.setattr(MemoryStore, "large_bytes", 5 * LARGE)  # taken as a follower
    slow.end(cluster.nodes[server].store)
    end_at_followers(cluster, slow, leaders[0])
    assert errors(*fates[:2]) == [ErrorCode.NONE] * 2
    assert host.large_bytes == 5 * LARGE


def test_batch_is_refused_where_the_disk_filled_up_meanwhile(
    cluster: Any, slow: SlowStores, free_space: dict[bytes, int]
) -> None:
    leader = cluster.leader(cluster.create_topic())
    store = cluster.nodes[leader.leader_server].store
    fate = cluster.append(leader, bytes(LARGE))
    cluster.run(10)
    free_space[store.directory_id] = LARGE - 1
    slow.end(store)
    cluster.run(10)
    assert errors(fate) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_new_leader_writes_its_batch_ahead_once(cluster: Any, slow: SlowStores) -> None:
    """An append that it held as a follower ends first."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    begin_at_followers(cluster, slow, old)
    cluster.nodes[old.leader_server].crash()
    cluster.run(4_000)
    new = cluster.new_leader(group_id, old)
    store = cluster.nodes[new.leader_server].store
    fate = cluster.append(new, bytes(LARGE), ms=60_000)
    cluster.run(10)
    assert len(slow.end(store)) == 1  # the held one
    cluster.run(10)
    assert len(slow.end(store)) == 1
    cluster.run(10)
    assert not slow.end(store)
    for node in cluster.nodes.values():
        slow.end(node.store)
    cluster.run(100)
    for node in cluster.nodes.values():
        slow.end(node.store)
    cluster.run(100)
    assert errors(fate) == [ErrorCode.NONE]


def test_new_leader_goes_on_beside_a_held_append(cluster: Any, slow: SlowStores) -> None:
    """Appends of the old one are stepped afterwards, in their old term, and change nothing."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    fate = cluster.append(old, bytes(LARGE), ms=60_000)
    cluster.run(10)
    slow.end(cluster.nodes[old.leader_server].store)
    cluster.run(10)
    assert [is_wanted() for is_wanted in slow.wanted[1:]] == [True] * 2
    cluster.nodes[old.leader_server].crash()
    cluster.run(4_000)
    assert not any(is_wanted() for is_wanted in slow.wanted)
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

    def step(index: int, log_term: int, data: Any) -> None:
        entry = Entry(term=term, index=index + 1, data=data, base_offset=offset, records=1)
        message = MsgApp(
            group.replica_id, raft.id, term, log_term, index, [entry], raft.log.committed
        )
        here.host._inbox.step(group_id, message, leader.leader_server, here.host.loop_time.tick())

    step(index, raft.log.last_term, bytes(LARGE))
    received = bytearray(64 << 10)
    step(index + 1, term, memoryview(received)[:10])
    step(index + 3, term, b"v")  # the one before is missing
    step(index + 2, term - 1, b"v")
    step(index + 2, term, bytes(BEHIND_BYTES_MAX))
    held = group.ahead.held
    assert len(held) == 2
    assert type(held[1].entries[0].data) is bytes  # the received memory is free
    assert group.ahead.bytes < LARGE + 1_000
    for n in range(2, HELD_MAX + 10):
        step(index + n, term, b"v")
    assert len(held) == HELD_MAX
    assert group.node.last_index == index
