"""Logs are cut, and replicas behind them caught up, without repeated encoding of a state."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from string import ascii_letters
from typing import Any

import pytest

from raft.errors import SnapshotTemporarilyUnavailable
from raft.types import ConfState, Snapshot
from rpc.peer import FrameType
from vdl.logstream.group import raft_compaction as compaction
from vdl.logstream.group import snapshot_source
from vdl.logstream.group.snapshot_cache import (
    KEPT_TICKS,
    PAUSE_TICKS,
    RETRY_TICKS,
    RETRY_TICKS_MAX,
    SnapshotCache,
)
from vdl.logstream.group.snapshots import SNAPSHOT_BYTES_MAX
from vdl.logstream.group.state_group import StateGroup
from vdl.state.commands import RegisterServer

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""Only snapshots are compressed."""

Encoded = Callable[[Any], int]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """Return a function that counts the encodings of a node's catalog state."""
    counts: Counter[int] = Counter()
    items = StateGroup.items

    def counted(state_group: StateGroup) -> Any:
        counts[id(state_group)] += 1
        return items(state_group)

    monkeypatch.setattr(StateGroup, "items", counted)
    return lambda node: counts[id(node.host.groups[0].owner)]


class Choked:
    """A server's links, without room for snapshots on the one to server 3."""

    def __init__(self, links: Any) -> None:
        self._links = links
        self.refused = 0
        self.has_room = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._links, name)

    def send(
        self, server_id: int, frame_type: FrameType, buffers: Sequence[Any], **lane: bool
    ) -> bool:
        if server_id == 3 and not self.has_room and ZSTD_MAGIC in b"".join(buffers):
            self.refused += 1
            return False
        return bool(self._links.send(server_id, frame_type, buffers, **lane))


def rename(cluster: Any, times: int) -> None:
    """Propose catalog commands, five a second, with a checkpoint each second.

    The state keeps its size.
    """
    for turn in range(times):
        directory = cluster.nodes[1].store.directory_id
        cluster.propose(RegisterServer(1, directory, f"rack-{turn}", {}, True))
        if turn % 5 == 4:
            checkpoint(cluster)


def checkpoint(cluster: Any) -> None:
    for node in cluster.nodes.values():
        if not node.clock.stopped:
            node.store.checkpoint()


def leader(cluster: Any) -> Any:
    """Return the node that leads the catalog."""
    up = [node for node in cluster.nodes.values() if not node.clock.stopped]
    return next(node for node in up if node.host.groups[0].node.is_leader)


def test_state_is_encoded_once_until_it_has_doubled(forgetful: Any, encoded: Encoded) -> None:
    """Every replica checks continually if it may cut its log."""
    cluster = forgetful
    node = cluster.nodes[2]
    log = node.host.groups[0].log
    rename(cluster, 20)
    first_index = log.first_index
    items, before = node.host.catalog.item_count, encoded(node)
    rename(cluster, 60)
    assert log.first_index > first_index + 40
    assert encoded(node) == before
    doublings = 0
    for number in range(60):
        cluster.create_topic(f"topic-{number}")
        if number % 5 == 4:
            checkpoint(cluster)
            cluster.run(1_000)
        if node.host.catalog.item_count >= items * 2:
            items, doublings = node.host.catalog.item_count, doublings + 1
    assert doublings >= 2
    assert before < encoded(node) <= before + doublings + 1


def test_log_that_may_not_be_cut_is_no_reason_to_encode(
    forgetful: Any, encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is too large stays so.

    It is encoded when the log that is kept has doubled, in case the estimate was wrong.
    """
    cluster = forgetful
    monkeypatch.setattr(compaction, "SNAPSHOT_BYTES_MAX", 2)
    node = cluster.nodes[2]
    log = node.host.groups[0].log
    rename(cluster, 160)
    assert log.first_index == 1
    assert 1 <= encoded(node) <= 6  # 10 entries, 20, 40, 80, 160
    monkeypatch.undo()
    cluster.run(2_000)
    assert log.first_index > 100


@pytest.mark.parametrize("factor", [0, 1_000_000])
def test_wrong_expectation_decides_nothing_for_good(
    forgetful: Any, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is too high, the log is cut later; if too low, the snapshot itself fails the check."""
    cluster = forgetful
    node = cluster.nodes[2]
    replica = node.host.groups[0]
    rename(cluster, 5)
    assert replica.log.first_index == 1
    replica.snapshots.cache.measured(node.host.catalog.item_count, 1 + factor * 1_000, 0)
    if factor:
        rename(cluster, 15)
        assert replica.log.first_index == 1
        rename(cluster, 40)
        assert replica.log.first_index > 20
    else:
        monkeypatch.setattr(snapshot_source, "SNAPSHOT_BYTES_MAX", 10)
        with pytest.raises(SnapshotTemporarilyUnavailable):
            replica.snapshots.make()
        assert replica.snapshots.cache.bytes_expected(node.host.catalog.item_count) > 10


def test_refused_snapshot_is_sent_again_not_made_again(forgetful: Any, encoded: Encoded) -> None:
    """While the link has no room for the frame, for ten seconds and more, encoding is limited.

    The leader encodes a snapshot once a second at most, and the replica catches up as soon as there
    is room.
    """
    cluster = forgetful
    cluster.nodes[3].crash()
    rename(cluster, 30)
    cluster.run(2_000)
    node = leader(cluster)
    replica = node.host.groups[0]
    assert replica.log.first_index > 10
    node.host.state.transport = links = Choked(node.links)
    cluster.nodes[3].start()
    before = encoded(node)
    cluster.run(10_000)
    assert links.refused > 20
    assert encoded(node) == before + 1
    first_index, before = replica.log.first_index, encoded(node)
    rename(cluster, 50)  # ten seconds; the log is cut behind the snapshot, which is made anew
    assert replica.log.first_index > first_index + 20
    assert 1 <= encoded(node) - before <= 10
    assert leader(cluster) is node
    late = cluster.nodes[3].host
    assert late.catalog.items() != node.host.catalog.items()
    links.has_room = True
    cluster.run(2_500)
    assert late.catalog.items() == node.host.catalog.items()
    # A snapshot that is not needed any more is dropped.
    assert replica.snapshots.cache._snapshot is not None
    cluster.run(KEPT_TICKS * 10 + 3_000)
    assert replica.snapshots.cache._snapshot is None


def test_leader_that_leads_no_longer_keeps_no_snapshot(cluster: Any) -> None:
    """It receives no more requests."""
    replica = leader(cluster).host.groups[0]
    assert replica.snapshots.make() is replica.snapshots.make()
    transferee = next(r for r in replica.members if r != replica.replica_id)
    replica.node.transfer_leader(transferee)
    leader(cluster).host.mark_dirty(replica)
    cluster.run(300)
    assert not replica.node.is_leader
    assert replica.snapshots.cache._snapshot is None


def test_peer_that_asks_all_the_time_makes_nothing_be_encoded(
    cluster: Any, encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outdated last snapshot causes no encoding, nor does one that is too large."""
    node = leader(cluster)
    replica = node.host.groups[0]
    replica.snapshots.make()
    replica.snapshots.cache.forget_snapshot()
    for size_max, count in ((SNAPSHOT_BYTES_MAX, 1), (10, 2)):
        monkeypatch.setattr(snapshot_source, "SNAPSHOT_BYTES_MAX", size_max)
        for _ in range(3):
            with pytest.raises(SnapshotTemporarilyUnavailable):
                replica.snapshots.make()
        assert encoded(node) == count
        cluster.run(1_500)


def snapshot(index: int) -> Snapshot:
    return Snapshot(index, 1, ConfState(voters=(1,)), 0, b"state")


def test_snapshot_is_kept_while_it_can_be_followed_by_entries() -> None:
    """The log must begin right behind it, or before."""
    snapshot_cache = SnapshotCache()
    assert snapshot_cache.kept(first_index=1, tick=0) is None
    snapshot_cache.keep(snapshot(7), 0)
    newer = snapshot(8)
    snapshot_cache.keep(newer, 0)
    assert snapshot_cache.kept(first_index=9, tick=0) is newer
    assert snapshot_cache.kept(first_index=10, tick=0) is None
    assert snapshot_cache.kept(first_index=9, tick=0) is None  # it is gone


def test_snapshot_is_kept_from_when_it_was_last_asked_for() -> None:
    """It is kept up to the limit, and not a tick longer."""
    snapshot_cache = SnapshotCache()
    snapshot_cache.keep(snapshot(7), 5)
    assert snapshot_cache.kept(first_index=1, tick=100) is not None
    snapshot_cache.forget_unused(100 + KEPT_TICKS - 1)
    assert snapshot_cache._snapshot is not None
    snapshot_cache.forget_unused(100 + KEPT_TICKS)
    assert snapshot_cache._snapshot is None


def test_snapshots_are_made_with_a_pause_between() -> None:
    """A second, in the group's ticks."""
    snapshot_cache = SnapshotCache()
    assert snapshot_cache.may_encode(1, tick=0)
    snapshot_cache.measured(1, 100, 200)
    snapshot_cache.keep(snapshot(7), 0)
    assert not snapshot_cache.may_encode(1, PAUSE_TICKS - 1)
    assert snapshot_cache.may_encode(1, PAUSE_TICKS)


def test_state_too_large_is_tried_ever_less_often() -> None:
    """Each wait is twice the one before, up to a limit; less when there are fewer items."""
    snapshot_cache = SnapshotCache()
    tick = 0
    for wait in (1, 2, 4, 8, 16, 32, 64, 120, 120):
        snapshot_cache.measured(1_999, 2 * SNAPSHOT_BYTES_MAX, 4 * SNAPSHOT_BYTES_MAX)
        snapshot_cache.too_large(tick)
        due = tick + wait * RETRY_TICKS
        assert wait * RETRY_TICKS <= RETRY_TICKS_MAX
        assert not snapshot_cache.may_encode(1_999, due - 1)
        assert not snapshot_cache.may_encode(999, tick + RETRY_TICKS - 1)
        assert snapshot_cache.may_encode(999, tick + RETRY_TICKS)
        assert snapshot_cache.may_encode(1_999, due)
        tick = due
    snapshot_cache.keep(snapshot(7), tick)
    snapshot_cache.too_large(tick)
    assert snapshot_cache.may_encode(1_999, tick + RETRY_TICKS)


def test_measured_state_stands_for_those_of_its_order() -> None:
    """Less than twice as many items, more than half."""
    snapshot_cache = SnapshotCache()
    assert not snapshot_cache.is_like_measured(0)
    snapshot_cache.measured(99, 1_000, 2_000)
    assert [n for n in (49, 50, 99, 198, 199) if snapshot_cache.is_like_measured(n)] == [
        50,
        99,
        198,
    ]
    assert snapshot_cache.bytes_expected(149) == 1_500


def test_items_that_become_longer_have_a_state_measured_again() -> None:
    """This is done only if they may have brought it over the limit. Deletions add nothing."""
    snapshot_cache = SnapshotCache()
    snapshot_cache.measured(99, 1_000, 2_000)
    snapshot_cache.stored((b"key", bytes(30)) for _ in range(1_000))
    snapshot_cache.stored((b"key", None) for _ in range(1_000))
    assert not snapshot_cache.may_have_passed(1_000, 99)
    snapshot_cache.stored([(b"key", bytes(500))])
    assert snapshot_cache.may_have_passed(1_400, 99)
    assert not snapshot_cache.may_have_passed(1_500, 99)
    assert not snapshot_cache.may_have_passed(999, 99), "it was over it before"
    snapshot_cache.measured(99, 1_200, 2_500)
    assert not snapshot_cache.may_have_passed(1_200, 99)


def test_state_whose_items_grew_is_not_taken_for_a_small_one(
    forgetful: Any, encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has a rack name of random letters: as many items as before, but incompressible.

    The log must be kept, because the items would fit into no snapshot.
    """
    cluster = forgetful
    node = cluster.nodes[2]
    replica = node.host.groups[0]
    rename(cluster, 20)
    size = replica.snapshots.cache.bytes_expected(node.host.catalog.item_count)
    monkeypatch.setattr(compaction, "SNAPSHOT_BYTES_MAX", 2 * (size + 500))
    last_index, before = replica.log.last_index, encoded(node)
    directory = cluster.nodes[1].store.directory_id
    for turn in range(30):
        rack = "".join(Random(turn).choices(ascii_letters, k=2_000))
        cluster.propose(RegisterServer(1, directory, rack, {}, True))
        checkpoint(cluster)
    cluster.run(3_000)
    assert before < encoded(node) < before + 4
    assert replica.log.first_index <= last_index
