"""Messages that a host takes from its peers, and messages that it drops."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgProp,
    MsgReadIndexResp,
    MsgSnap,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgStorageApply,
    MsgStorageApplyResp,
    MsgTimeoutNow,
    MsgTransferLeader,
    MsgVote,
    MsgVoteResp,
)
from raft.types import ConfState, Entry, EntryKind, Snapshot
from rpc.errors import RemoteError
from rpc.frames import encode_messages
from rpc.leaders import LeaderListSender
from rpc.peer import FrameType
from segments.api import ENTRY_FRAME_BYTES
from segments.memory import MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group.large_room import TAKEN_BYTES_MAX
from vdl.logstream.options import LARGE_BATCH_BYTES

Make = Callable[[int, int], Message]


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize(
    "make",
    [
        MsgStorageAppend,
        lambda to, from_: MsgStorageAppendResp(to, from_, 1, 1, 99),
        lambda to, from_: MsgStorageApply(to, from_, 0, [], []),
        lambda to, from_: MsgStorageApplyResp(to, from_, 0, []),
        lambda to, from_: MsgProp(to, from_, 0, [Entry()]),
        lambda to, from_: MsgTransferLeader(to, from_, 1),
    ],
    ids=["append", "appended", "apply", "applied", "proposal", "transfer"],
)
def test_message_that_no_frame_carries_is_none_of_a_peers(
    cluster: Any, make: Make, is_leader: bool
) -> None:
    """No other server's disk may acknowledge for this one, and commands are checked first."""
    group_id = cluster.create_topic()
    servers = sorted(cluster.nodes, key=cluster.leader(group_id).leader_server.__ne__)
    here, peer = (servers[0], servers[1]) if is_leader else (servers[1], servers[0])
    host = cluster.nodes[here].host
    node, dropped = host.groups[group_id].node, host.stats.messages_dropped
    message: Any = make(node.id, cluster.nodes[peer].host.groups[group_id].node.id)
    last, lead, term = node.last_index, node.lead, node.term
    host._inbox.step(group_id, message, peer, host.loop_time.tick())
    assert host.stats.messages_dropped == dropped + 1
    cluster.run(500)
    assert (node.last_index, node.lead, node.term) == (last, lead, term)


def last_frame(cluster: Any, group_id: int, peer: int, here: int, message: Any) -> None:
    frame = b"".join(bytes(part) for part in encode_messages([(group_id, message)]))
    cluster.nodes[here].host.frame(peer, FrameType.RAFT, memoryview(bytearray(frame)))


def works(cluster: Any, group_id: int) -> None:
    """Append a record, which must be acknowledged and reach all replicas."""
    cluster.run(3_000)
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(500)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]
    groups = [node.host.groups[group_id] for node in cluster.nodes.values()]
    assert len({(group.node.last_index, group.commit) for group in groups}) == 1


def test_early_message_is_kept_only_of_who_speaks_for_its_sender(cluster: Any) -> None:
    """It is stepped once its group runs, when the link it came by is unknown."""
    host = cluster.nodes[1].host
    coming = host.state.catalog.next_group_id
    for sender, kept in ((2, 0), (3, 1)):
        message = MsgVote(1 << 16 | 1, 3 << 16 | 1, 1, 0, 0)
        dropped = host.stats.messages_dropped
        last_frame(cluster, coming, sender, 1, message)
        assert host.stats.early_messages == kept
        assert host.stats.messages_dropped == dropped + 1 - kept


CONTRADICTIONS: list[Callable[[int, int, int, int], Message]] = [
    lambda to, from_, term, last: MsgHeartbeat(to, from_, term, last + 1),
    lambda to, from_, term, last: MsgCommit(to, from_, term, (1 << 64) - 1),
    lambda to, from_, term, last: MsgHeartbeat(to, from_, 1 << 32, 0),
    lambda to, from_, term, last: MsgVote(to, from_, 1 << 31, 9, 9, transfer=True),
    lambda to, from_, term, last: MsgAppResp(to, from_, (1 << 64) - 1, 0),
    lambda to, from_, term, last: MsgApp(to, from_, term, term, last, [Entry(term, last + 2)], 0),
]


@pytest.mark.parametrize("make", CONTRADICTIONS)
def test_peer_that_contradicts_ends_neither_server_nor_link(
    cluster: Any, make: Callable[[int, int, int, int], Message]
) -> None:
    """It is logged at intervals; this group and the other groups of that server go on."""
    group_id, other = cluster.create_topic(), cluster.create_topic("others")
    peer = cluster.leader(group_id).leader_server
    here = peer % 3 + 1
    host = cluster.nodes[here].host
    node = host.groups[group_id].node
    for _ in range(3):
        message = make(node.id, node.lead, node.term, node.last_index)
        last_frame(cluster, group_id, peer, here, message)
    cluster.run(100)
    assert host.stats.contradictions == 3
    assert cluster.nodes[here].log.errors == [("peer_contradicts", host.state.told_of(group_id))]
    assert peer in host.state.alive
    for group in (group_id, other):
        works(cluster, group)


@pytest.mark.parametrize("seed", range(8))
def test_no_number_of_an_admitted_peer_ends_a_server(cluster: Any, seed: int) -> None:
    """Messages of all kinds, and leader lists, with arbitrary numbers, at worst end the link.

    Possible values are believed: a faulty voter may depose leaders and delay a group, but other
    groups and the process go on.
    """
    rng = random.Random(seed)
    group_id, other = cluster.create_topic(), cluster.create_topic("others")
    peer, here = rng.sample(sorted(cluster.nodes), 2)
    host = cluster.nodes[here].host
    node, from_ = host.groups[group_id].node, cluster.nodes[peer].host.groups[group_id].replica_id
    for _ in range(150):
        near = [node.term, node.last_index, node.commit]
        some = [0, 1, *near, *(n + d for n in near for d in (-1, 1, 2)), 1 << 24, 1 << 31, 1 << 32]
        some += [(1 << 62) - 1, 1 << 63, (1 << 64) - 1]

        def number() -> int:
            return max(0, rng.choice(some))  # noqa: B023 - called now

        term = node.term if rng.random() < 0.6 else number()
        entries = [
            Entry(number(), number(), rng.choice(list(EntryKind)), b"x", number(), rng.randrange(3))
            for _ in range(rng.randrange(3))
        ]
        members = [tuple(rng.sample((1 << 16 | 1, 2 << 16 | 1, number()), 2)) for _ in range(2)]
        snapshot = Snapshot(number(), number(), ConfState(*members), number(), b"")
        message: Any = rng.choice(
            (
                MsgApp(node.id, from_, term, number(), number(), entries, number()),
                MsgAppResp(node.id, from_, term, number(), rng.random() < 0.5, number(), number()),
                MsgHeartbeat(node.id, from_, term, number()),
                MsgCommit(node.id, from_, term, number()),
                MsgVote(node.id, from_, term, number(), number(), rng.random() < 0.5),
                MsgPreVote(node.id, from_, term, number(), number(), rng.random() < 0.5),
                MsgVoteResp(node.id, from_, term, rng.random() < 0.5),
                MsgPreVoteResp(node.id, from_, term, rng.random() < 0.5),
                MsgSnap(node.id, from_, term, snapshot),
                MsgTimeoutNow(node.id, from_, term),
                MsgReadIndexResp(node.id, from_, term, number(), b"c"),
            )
        )
        last_frame(cluster, group_id, peer, here, message)
        if rng.random() < 0.1 and peer in host.state.alive:
            lists = LeaderListSender()
            lists.set(group_id, min(number(), (1 << 64) - 1) + 0, from_)
            lists.connected(here)
            found = lists.changes(here, 0)
            assert found is not None
            with contextlib.suppress(RemoteError):
                host.frame(peer, found[0], memoryview(bytearray(b"".join(found[1]))))
        cluster.run(rng.choice((0, 1, 30)))
    cluster.run(3_000)
    works(cluster, other)


@pytest.mark.parametrize(
    ("room", "unflushable", "committed", "taken"),
    [
        pytest.param(20, 0, 20, 20, id="there is room"),
        pytest.param(0, 5, 20, 5, id="room for what is committed"),
        pytest.param(0, 0, 20, 0, id="a flush makes some"),
        pytest.param(0, 0, 0, 0, id="a flush makes some for what is not committed, too"),
        pytest.param(0, 5, 0, 20, id="none is committed: no flush frees them before that"),
        pytest.param(0, 30, 3, 3, id="some are committed: the others come when those are flushed"),
        pytest.param(0, 5, 10, 5, id="more are committed than there is room for"),
    ],
)
def test_follower_takes_what_it_has_room_for_or_what_no_flush_frees(
    cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    unflushable: int,
    committed: int,
    taken: int,
) -> None:
    """One message may bring entries committed long ago, and uncommitted ones.

    Counted in entries of 20: `room` below the bound; `unflushable`: by how many less than the bound
    a flush would free.
    """
    group_id = cluster.create_topic()
    peer = cluster.leader(group_id).leader_server
    here = peer % 3 + 1
    host, data = cluster.nodes[here].host, bytes(1_000)
    node, size = host.groups[group_id].node, len(data) + ENTRY_FRAME_BYTES
    unflushed = host.state.unflushed_bytes_max - room * size
    flushable_bytes = host.state.unflushed_bytes_max - unflushable * size
    monkeypatch.setattr(MemoryStore, "unflushed_bytes", property(lambda _: unflushed))
    monkeypatch.setattr(MemoryStore, "flushable_bytes", property(lambda _: flushable_bytes))
    last, term, refused = node.last_index, node.term, host.stats.appends_refused
    entries = [Entry(term, index, data=data) for index in range(last + 1, last + 21)]
    message = MsgApp(node.id, node.lead, term, term, last, entries, last + committed)
    last_frame(cluster, group_id, peer, here, message)
    assert node.last_index == last + taken
    assert host.stats.appends_refused == refused + (not taken)


@pytest.mark.parametrize(
    ("held", "taken"),
    [(0, 4), (10, 4), (TAKEN_BYTES_MAX - LARGE_BATCH_BYTES, 2)],
)
def test_follower_takes_large_entries_apart_from_all_others(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, held: int, taken: int
) -> None:
    """`held` bytes of large entries are in memory and in no segment.

    One of each server is taken beyond the bound, and all entries before another.
    """
    group_id = cluster.create_topic()
    peer = cluster.leader(group_id).leader_server
    here = peer % 3 + 1
    host = cluster.nodes[here].host
    monkeypatch.setattr(MemoryStore, "large_bytes", property(lambda _: held))
    node = host.groups[group_id].node
    last, term = node.last_index, node.term
    sizes = (10, LARGE_BATCH_BYTES + 1, LARGE_BATCH_BYTES + 1, 20)
    entries = [Entry(term, last + n, data=bytes(size)) for n, size in enumerate(sizes, 1)]
    message = MsgApp(node.id, node.lead, term, term, last, entries, last + 4)
    last_frame(cluster, group_id, peer, here, message)
    assert node.last_index == last + taken
    assert host.stats.appends_refused == 0


def holds_much(monkeypatch: pytest.MonkeyPatch, cluster: Any, servers: list[int]) -> None:
    """Put these servers at the bound, without a flush that ends."""
    bound = cluster.nodes[1].host.state.unflushed_bytes_max
    directories = {cluster.nodes[server].store.directory_id for server in servers}
    for name in ("unflushed_bytes", "flushable_bytes"):
        value = property(lambda store: bound if store.directory_id in directories else 0)
        monkeypatch.setattr(MemoryStore, name, value)


def has_full_disk(monkeypatch: pytest.MonkeyPatch, cluster: Any, servers: list[int]) -> None:
    directories = {cluster.nodes[server].store.directory_id for server in servers}
    value = property(lambda store: store.directory_id not in directories)
    monkeypatch.setattr(MemoryStore, "accepts_appends", value)


@pytest.mark.parametrize("state", [holds_much, has_full_disk])
def test_what_a_crowded_follower_has_on_disk_is_acknowledged_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    """It needs no room. One server is down, and the acknowledgement was lost with the link."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(2_000)
    leader = cluster.leader(group_id)
    here = leader.leader_server
    there, down = (server for server in cluster.nodes if server != here)
    cluster.nodes[down].crash()
    cluster.run(500)
    assert cluster.leader(group_id) is leader
    host, other = cluster.nodes[here].host, cluster.nodes[there].host
    group, inbox = host.groups[group_id], host._inbox
    is_lost = True

    def step(group_id: int, message: Any, server: int, tick: int) -> None:
        if not (is_lost and isinstance(message, MsgAppResp) and server == there):
            type(inbox).step(inbox, group_id, message, server, tick)

    class Lossy:
        def __getattr__(self, name: str) -> Any:
            return step if name == "step" else getattr(inbox, name)

    host._inbox = Lossy()
    cluster.append(leader)
    cluster.run(100)
    last = group.node.last_index
    assert other.groups[group_id].node.stable == last
    state(monkeypatch, cluster, [there])
    is_lost = False
    group.node.report_unreachable(other.groups[group_id].replica_id)  # the link was reset
    host.mark_dirty(group)
    cluster.run(60_000)
    assert [one.groups[group_id].node.commit >= last for one in (host, other)] == [True, True]


@pytest.mark.parametrize("what", ["delete records", "delete topic", "elect"])
def test_what_makes_room_is_taken_by_a_full_disk_at_the_bound(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No flush frees room there, so nothing else would ever end that state."""
    group_id = cluster.create_topic()
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(10)
    cluster.run(1_000)
    leader = cluster.leader(group_id)
    here = leader.leader_server
    others = [server for server in cluster.nodes if server != here]
    has_full_disk(monkeypatch, cluster, others)
    holds_much(monkeypatch, cluster, others)
    cluster.run(2_000)
    assert cluster.leader(group_id) is leader
    if what == "delete records":
        answers: list[ErrorCode] = []
        leader.delete_records(3, deadline_ns=cluster.deadline(40_000), done=answers.append)
        cluster.run(30_000)
        assert answers == [ErrorCode.NONE]
    elif what == "delete topic":
        cluster.delete_topic()
        cluster.run(30_000)
        assert cluster.nodes[here].host.stream(group_id) is None
    else:
        cluster.nodes[here].crash()
        cluster.run(30_000)
        assert cluster.leader(group_id).serving
