"""Snapshots (§7) and reads of entries that are not in memory."""

from __future__ import annotations

from typing import Any

import pytest

from raft.errors import SnapshotTemporarilyUnavailable
from raft.leader import SNAPSHOT_ANSWERS_MAX
from raft.membership import encode_conf_change
from raft.memory import MemoryStorage
from raft.messages import Message, MsgApp, MsgAppResp, MsgSnap
from raft.node import RawNode
from raft.progress import PROBE, REPLICATE, SNAPSHOT, Progress
from raft.types import (
    ColdRead,
    ConfChange,
    ConfChangeSingle,
    ConfChangeType,
    ConfState,
    Entry,
    EntryKind,
    Snapshot,
)
from tests.unit.raft.network import Network

REMOVE_1 = encode_conf_change(ConfChange((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 1),)))


def behind(*, compacted: bool, **settings: Any) -> Network:
    """Make node 3 miss ten entries, which the leader has compacted or holds on disk only."""
    network = Network(**settings)
    network.elect(1)
    network.isolate(3)
    for number in range(10):
        network.propose(b"%d" % number, records=2)
        network.settle()
    network.heal()
    host = network.hosts[1]
    if compacted:
        host.compact(host.node.applied)
    else:
        host.storage.window(host.node.applied + 1)
    host.node.report_unreachable(3)
    return network


def hold_snapshots(network: Network) -> list[MsgSnap]:
    """Drop snapshots without a report, and return the list that collects them."""
    held: list[MsgSnap] = []

    def cut(message: Message) -> bool:
        if isinstance(message, MsgSnap):
            held.append(message)
            return True
        return False

    network.reports_snapshots = False
    network.cut = cut
    return held


def progress_of(node: RawNode, peer: int) -> Progress:
    """Return the leader's view of a peer, which must exist."""
    progress = node.progress(peer)
    assert progress is not None
    return progress


def test_follower_behind_the_logs_start_gets_a_snapshot() -> None:
    """§7: InstallSnapshot for followers that are too far behind."""
    network = behind(compacted=True)
    network.tick(1)
    network.settle()
    assert network.node(3).applied == network.node(1).applied == 12
    assert network.node(3).next_offset() == 20
    assert progress_of(network.node(1), 3).state is REPLICATE
    network.propose(b"after")
    network.settle()
    assert network.hosts[3].applied[-1].base_offset == 20


def test_follower_gets_one_snapshot_at_a_time() -> None:
    """§7: nothing else is sent until it is installed."""
    network = behind(compacted=True)
    network.tick(1)
    network.settle(3)
    network.collect(1)
    network.settle(3)
    network.deliver(len(network.messages) - 1)
    network.propose(b"x")
    network.tick(1, 3)
    sent = [m for m in network.hosts[1].take_ready() if m.to == 3]
    assert sum(isinstance(m, MsgSnap) for m in sent) == 1
    assert not any(isinstance(m, MsgApp) for m in sent)
    assert progress_of(network.node(1), 3).state is SNAPSHOT


@pytest.mark.parametrize(("delivered", "next_index"), [(True, 13), (False, 3)])
def test_reported_snapshot_resumes_behind_it_or_where_it_was(
    delivered: bool, next_index: int
) -> None:
    """§7: the host reports the outcome of the transfer; a heartbeat's answer resumes sending."""
    network = behind(compacted=True)
    progress = progress_of(network.node(1), 3)
    progress.become_snapshot(12)
    network.node(1).report_snapshot(3, delivered)
    assert progress.state is PROBE
    assert progress.is_paused
    assert progress.next == next_index


def test_snapshot_lost_with_its_link_is_sent_again() -> None:
    """§7: the snapshot used the failed link, and no other event reports its loss."""
    network = behind(compacted=True)
    progress = progress_of(network.node(1), 3)
    progress.become_snapshot(12)
    network.node(1).report_unreachable(3)
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 12


def test_peer_that_was_not_heard_lately_gets_no_snapshot() -> None:
    """Snapshots are only sent to peers that can receive them."""
    network = behind(compacted=True)
    progress_of(network.node(1), 3).recent_active = False
    network.propose(b"x")
    assert not any(isinstance(m, MsgSnap) for m in network.hosts[1].take_ready())


def test_snapshot_that_is_being_made_is_asked_for_again() -> None:
    """The storage may need time."""

    class Busy(MemoryStorage):
        """A storage without a snapshot ready."""

        def snapshot(self) -> Snapshot:
            """Raise SnapshotTemporarilyUnavailable."""
            raise SnapshotTemporarilyUnavailable

    network = behind(compacted=True)
    host = network.hosts[1]
    ready_storage = host.node.raft.log.storage
    busy = Busy()
    host.node.raft.log.storage = busy
    busy._snapshot = host.storage._snapshot
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 2
    host.node.raft.log.storage = ready_storage
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 12


def test_snapshot_older_than_the_commit_index_is_only_acknowledged() -> None:
    """§7: an old snapshot adds nothing."""
    network = Network()
    network.elect(1)
    network.propose(b"x")
    network.settle()
    network.step(MsgSnap(2, 1, 1, Snapshot(2, 1, network.start.conf_state)))
    assert network.node(2).last_index == 3
    [answer] = network.hosts[2].take_ready()
    assert answer.index == 3  # type: ignore[union-attr]


def test_snapshot_overtaken_by_a_cut_is_followed_by_a_newer_one() -> None:
    """While it was in flight the leader compacted its log beyond the snapshot's index."""
    network = behind(compacted=True, quiet_heartbeats=True)
    held = hold_snapshots(network)
    network.tick(1)
    network.settle()
    assert progress_of(network.node(1), 3).state is SNAPSHOT
    for number in range(5):
        network.propose(b"%d" % number)
        network.settle()
    network.hosts[1].compact(network.node(1).applied)
    network.heal()
    network.step(held[0])
    for _ in range(5):
        network.settle()
        network.tick(1)
    assert progress_of(network.node(1), 3).state is REPLICATE
    assert network.node(3).applied == network.node(1).applied


def test_snapshot_that_is_dropped_is_sent_again() -> None:
    """Its loss is not reported; the answers to the heartbeats behind it show it."""
    network = behind(compacted=True, quiet_heartbeats=True)
    held = hold_snapshots(network)
    for _ in range(2 + SNAPSHOT_ANSWERS_MAX):
        network.settle()
        network.tick(1)
    network.heal()
    for _ in range(5):
        network.settle()
        network.tick(1)
    assert len(held) == 1
    assert progress_of(network.node(1), 3).state is REPLICATE


def test_snapshot_is_not_taken_for_dropped_when_reads_overtake_it() -> None:
    """A read's heartbeat is urgent: its answer does not show that the snapshot before it came."""
    network = behind(compacted=True, quiet_heartbeats=True)
    held = hold_snapshots(network)
    network.tick(1)
    network.settle()
    assert len(held) == 1
    for number in range(2 * SNAPSHOT_ANSWERS_MAX):
        network.node(1).read_index(b"%d" % number)
        network.settle()
    assert progress_of(network.node(1), 3).state is SNAPSHOT
    network.heal()
    network.step(held[0])
    network.settle()
    assert progress_of(network.node(1), 3).state is REPLICATE


def test_snapshot_that_is_dropped_is_sent_again_though_reads_never_pause() -> None:
    """Due heartbeats are then sent twice: for the read, and behind earlier messages."""
    network = behind(compacted=True, quiet_heartbeats=True)
    held = hold_snapshots(network)
    network.tick(1)
    network.settle()
    assert len(held) == 1
    for number in range(2 + SNAPSHOT_ANSWERS_MAX):
        network.node(1).read_index(b"%d" % number)
        network.tick(1)
        network.settle()
    assert len(held) == 2


def test_snapshot_that_matches_the_log_moves_the_commit_index_only() -> None:
    """§7: if the follower has the entry, the entries after it are kept."""
    network = Network()
    log = [Entry(1, index) for index in (2, 3, 4)]
    network.step(MsgApp(2, 1, 1, 1, 1, log, 1))
    network.hosts[2].take_ready()
    network.step(MsgSnap(2, 1, 1, Snapshot(3, 1, network.start.conf_state)))
    assert (network.node(2).commit, network.node(2).last_index) == (3, 4)


def test_snapshots_membership_supersedes_the_own_one() -> None:
    """§6, §7: a stale configuration must not survive (disjoint quorums)."""
    network = Network()
    snapshot = Snapshot(9, 2, ConfState(voters=(2, 5), learners=(6,)), next_offset=4)
    network.step(MsgSnap(2, 5, 2, snapshot))
    assert network.node(2).membership.conf_state() == snapshot.conf_state
    network.settle(2)
    assert network.node(2).applied == 9


def test_membership_change_applied_late_does_not_undo_a_snapshots_membership() -> None:
    """§7: a snapshot may overtake entries given out to be applied that it covers."""
    network = Network(async_storage_writes=True)
    late = Entry(1, 2, EntryKind.CONF_CHANGE_V2, REMOVE_1)
    network.step(MsgApp(2, 3, 1, 1, 1, [late], 2))
    network.collect(2)
    network.hosts[2].complete_append()
    network.deliver_to_self(2)
    network.collect(2)
    assert network.hosts[2].apply_work
    network.step(MsgSnap(2, 3, 1, Snapshot(9, 1, ConfState(voters=(1, 2)))))
    network.settle(2)
    assert network.node(2).voters() == {1, 2}


def test_snapshot_older_than_the_own_admission_is_taken() -> None:
    """A snapshot at the start of the log need not contain this replica."""
    network = Network()
    network.add(4)
    network.step(MsgSnap(4, 1, 1, Snapshot(9, 1, ConfState(voters=(1, 2, 3)))))
    network.settle(4)
    assert network.node(4).applied == 9
    network.node(4).campaign()
    assert network.node(4).term == 1


def test_node_with_a_snapshot_under_way_does_not_campaign() -> None:
    """Its log is not complete yet."""
    network = Network(async_storage_writes=True)
    network.step(MsgSnap(2, 1, 1, Snapshot(9, 1, network.start.conf_state)))
    network.collect(2)
    network.node(2).campaign()
    assert network.node(2).term == 1
    network.storage_step(2)
    network.node(2).campaign()
    assert network.node(2).term == 2


def test_snapshot_under_way_is_not_vouched_for() -> None:
    """A crash may take the snapshot back, and a leader never goes below an acknowledged index.

    The follower would then refuse everything it is sent.
    """
    network = Network(async_storage_writes=True)
    network.step(MsgSnap(2, 1, 1, Snapshot(9, 1, network.start.conf_state)))
    network.collect(2)
    network.step(MsgApp(2, 1, 1, 1, 9, [Entry(1, 10)], 9))
    network.collect(2)
    assert (network.node(2).commit, network.node(2).last_index) == (9, 10)
    assert network.node(2).stable == 0
    network.storage_step(2)
    network.storage_step(2)
    assert network.node(2).stable == 10


# --- Cold reads --------------------------------------------------------------------------------


def test_entries_on_disk_are_asked_for_and_sent_when_they_come() -> None:
    """The core never reads a disk: it requests a read, pauses that peer, and serves the others."""
    network = behind(compacted=False)
    leader = network.node(1)
    network.tick(1)
    network.collect(1)
    network.settle(3)
    while network.messages:
        network.deliver()
    ready = leader.ready()
    leader.advance(ready)
    # First an empty probe: no read before the logs are known to agree there.
    assert ready.cold_reads == []
    network.messages += ready.messages
    network.settle(3)
    while network.messages:
        network.deliver()
    ready = leader.ready()
    leader.advance(ready)
    [want] = ready.cold_reads
    assert want == ColdRead(3, 3, 13, leader.raft.max_size_per_msg)
    progress = progress_of(leader, 3)
    assert progress.is_paused
    network.propose(b"for the others")
    ready = leader.ready()
    leader.advance(ready)
    assert {m.to for m in ready.messages} == {2}
    network.messages += ready.messages
    leader.entries_ready(3, network.hosts[1].storage.read_from_disk(3, 13, 1 << 20))
    network.settle()
    assert network.node(3).applied == network.node(1).applied == 13


def test_cold_read_that_failed_is_asked_for_again() -> None:
    """An empty answer means that it could not be read now."""
    network = behind(compacted=False)
    leader = network.node(1)
    progress = progress_of(leader, 3)
    progress.become_replicate()
    network.propose(b"x")
    wants = leader.ready()
    leader.advance(wants)
    assert [want.peer for want in wants.cold_reads] == [3]
    leader.entries_ready(3, [])
    assert not progress.is_paused
    network.messages.clear()
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 13


@pytest.mark.parametrize(
    "failing", [0, 1, 11], ids=["all work", "one fails", "the first ones fail"]
)
def test_cold_reads_of_a_link_that_flaps_do_not_multiply(failing: int) -> None:
    """Each failure of the link while a read is pending causes another request.

    Only one of the results counts, and only that one is followed by the next read.
    """
    network = behind(compacted=False, max_size_per_msg=1)
    leader, host = network.node(1), network.hosts[1]
    held: list[ColdRead] = []
    host.reads_held = held
    network.tick(1)
    network.settle()
    flaps = 10
    for _ in range(flaps):
        assert progress_of(leader, 3).state is REPLICATE
        leader.report_unreachable(3)
        network.tick(1)
        network.settle()
    assert [want.first for want in held] == [3] * (1 + flaps)
    served = 0
    while held:
        served += 1
        assert served < 100, "more reads for ever"
        want = held.pop(0)
        if served <= failing:
            leader.entries_ready(3, [])
            network.tick(1)  # its heartbeat
        else:
            host.read_cold(want)
        network.settle()
    assert network.node(3).applied == leader.applied == 12
    assert served == 10 + flaps + failing


def test_cold_read_overtaken_by_an_acknowledgement_is_not_sent() -> None:
    """The peer has more than was known: the entries read do not continue at `next`."""
    network = behind(compacted=False)
    leader = network.node(1)
    progress = progress_of(leader, 3)
    progress.become_replicate()
    network.propose(b"x")
    leader.advance(leader.ready())
    network.messages.clear()
    network.step(MsgAppResp(1, 3, 1, 8))
    leader.entries_ready(3, network.hosts[1].storage.read_from_disk(3, 13, 1 << 20))
    ready = leader.ready()
    leader.advance(ready)
    assert not any(isinstance(m, MsgApp) and m.entries and m.to == 3 for m in ready.messages)
    assert [want.first for want in ready.cold_reads] == [9]


def test_cold_read_overtaken_by_a_rejection_is_not_sent() -> None:
    """The peer turned out to need other entries meanwhile."""
    network = behind(compacted=False)
    leader = network.node(1)
    progress = progress_of(leader, 3)
    progress.become_replicate()
    progress.next = 6
    network.propose(b"x")
    leader.advance(leader.ready())
    network.messages.clear()
    network.step(MsgAppResp(1, 3, 1, 5, reject=True, reject_hint=2, log_term=1))
    leader.entries_ready(3, network.hosts[1].storage.read_from_disk(6, 13, 1 << 20))
    for message in network.hosts[1].take_ready():
        if isinstance(message, MsgApp) and message.to == 3 and message.entries:
            assert message.entries[0].index == message.index + 1
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 13


def test_cold_read_answered_after_a_change_of_term_is_dropped() -> None:
    """The result of a request from another term is not used."""
    network = behind(compacted=False)
    leader = network.node(1)
    progress_of(leader, 3).become_replicate()
    network.propose(b"x")
    leader.advance(leader.ready())
    stale = network.hosts[1].storage.read_from_disk(3, 13, 1 << 20)
    network.settle()
    network.elect(2)
    leader.entries_ready(3, stale)
    assert not leader.has_ready()


def test_entries_to_apply_that_are_on_disk_are_asked_for() -> None:
    """The same path serves the node's own state machine, after a restart."""
    network = behind(compacted=False)
    network.crash(1)
    storage = network.hosts[1].storage
    storage.window(8)
    ready = network.node(1).ready()
    assert ready.cold_reads == [ColdRead(1, 2, 8, network.node(1).raft.log.applying_bytes_max)]
    network.node(1).advance(ready)
    assert not network.node(1).has_ready()
    network.node(1).entries_ready(1, storage.read_from_disk(2, 8, 1 << 20))
    ready = network.node(1).ready()
    assert [e.index for e in ready.committed_entries] == list(range(2, 8))
    network.node(1).advance(ready)
    ready = network.node(1).ready()
    assert ready.committed_entries[0].index == 8


def test_paced_learner_gets_entries_when_the_host_says_so() -> None:
    """In memory or not, a limited number of bytes at a time.

    Voters, and learners not named by `pace` any more, are served as usual.
    """
    network = Network(3, learners=1)
    network.elect(1)
    leader = network.node(1)
    network.settle()
    leader.pace({3: 100, 4: 100})
    held = network.hosts[1]
    held.reads_held = []
    for number in range(10):
        network.propose(b"%d" % number * 50, records=2)
        network.settle()
    assert leader.raft.progress[3].match == leader.raft.log.last_index
    progress = leader.raft.progress[4]
    before = progress.match
    assert before < leader.raft.log.last_index
    [want] = held.reads_held
    assert want.peer == 4
    assert (want.first, want.bytes_max) == (before + 1, 100)
    held.reads_held.clear()
    leader.entries_ready(4, leader.raft.log.slice(before + 1, before + 3, 1 << 20))
    network.settle()
    assert progress.match == before + 2
    leader.pace({})
    [want] = held.reads_held
    leader.entries_ready(4, leader.raft.log.slice(want.first, want.first + 1, 1))
    network.settle()
    assert progress.match == leader.raft.log.last_index
