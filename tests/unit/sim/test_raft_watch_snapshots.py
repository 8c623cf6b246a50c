"""The watch's handling of snapshots that replace a log, and of a log cut at its start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from ids import Index, NodeId, Term
from raft.invariants import ClusterInvariants
from raft.messages import MsgApp, MsgSnap, MsgVote
from raft.node import RawNode
from raft.types import ConfState, Entry, HardState, Snapshot
from tests.unit.raft.network import Network
from vdl.logstream.group.group import Group
from vdl.logstream.group.snapshots import encode_snapshot, members_of
from vdl.sim.durable import DurableLog
from vdl.sim.machine import Life
from vdl.sim.raft_watch import RaftWatch, ReplicaWatch

VOTERS = (1, 2, 3, 4, 5)


class TrustsDisks(RaftWatch):
    """Watch without durability checks: the network's hosts have no disks."""

    def is_durable(self, group_id: int, replica: NodeId, index: Index, term: Term) -> bool:
        return True


class Watched(ClusterInvariants):
    """A world's watch in place of a network's invariants, with the same events."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.watch = TrustsDisks([], lambda name, detail: self.violations.append(name))
        self.seen = self.watch.group(7)
        self.replicas: dict[NodeId, ReplicaWatch] = {}
        for host in network.hosts.values():
            self._begin(host.node, None)

    def _begin(self, node: RawNode, durable: HardState | None) -> None:
        group = cast(Group, SimpleNamespace(node=node, reflects=0))
        self.replicas[node.id] = ReplicaWatch(self.watch, self.seen, group, lambda: True)
        self.replicas[node.id].begin(durable)

    def observe(self, node: RawNode) -> None:
        if not self.seen.broken:
            self.watch.guarded(self.seen, self.replicas[node.id].look)

    def restarted(self, node: RawNode, durable: HardState) -> None:
        self._begin(node, durable)


def divided() -> tuple[Network, Watched]:
    """Return a network with two histories.

    Node 1 led term 1 and has entries 3 to 6 of it that no other node has. Node 2 leads term 2; its
    entries 3 and 4 are committed and deleted. Node 5 has neither.
    """
    network = Network(len(VOTERS), start=Snapshot(conf_state=ConfState(voters=VOTERS)))
    network.invariants = watched = Watched(network)
    network.elect(1)
    network.propose(b"everywhere")
    network.settle()
    network.isolate(1, 5)
    network.propose(b"lost", b"lost too", b"and this", b"all of it")
    network.settle(1)
    network.elect(2)
    network.propose(b"deleted")
    network.settle()
    network.hosts[2].compact(4)
    raft = network.node(1).raft
    assert [raft.log.term(index) for index in (2, 3, 6)] == [1, 1, 1]
    assert (network.node(2).term, network.node(2).commit) == (2, 4)
    return network, watched


def bring_back(network: Network) -> None:
    """Heal the network; node 1 receives the snapshot from node 2."""
    network.heal()
    network.node(2).report_unreachable(1)
    network.tick(2)
    network.settle()
    assert network.node(1).raft.log.first_index() == 5
    assert network.node(1).last_index == 4


def test_snapshot_within_a_longer_log_takes_its_place() -> None:
    """Later entries follow those of the others, not those that the log had before."""
    network, watched = divided()
    bring_back(network)
    network.propose(b"after")
    network.settle()
    assert network.node(1).last_index == 5
    assert watched.violations == []
    network.elect(1)  # the next to propose is the node that received the snapshot
    network.propose(b"by the other")
    network.settle()
    assert watched.violations == []


def test_other_bytes_behind_such_a_snapshot_are_noticed() -> None:
    network, watched = divided()
    bring_back(network)
    network.propose(b"after")
    network.collect(2)
    sent = [m for m in network.messages if isinstance(m, MsgApp) and m.to == 1 and m.entries]
    assert len(sent) == 1
    entry = sent[0].entries[0]
    sent[0].entries = [Entry(entry.term, entry.index, entry.kind, b"AFTER", entry.base_offset, 1)]
    network.settle()
    assert watched.violations == ["log-matching"]


def test_restart_before_such_a_snapshot_is_durable_finds_what_was_told() -> None:
    """Until then the disk has the old log, and its own entry was acknowledged."""
    network, watched = divided()
    past = watched.seen.past_of(1)
    past.index, past.index_term = 6, 1
    bring_back(network)
    assert (past.index, past.index_term) == (4, 1)


def test_snapshot_of_what_was_not_committed_is_noticed() -> None:
    """A node had that entry, but another one was committed in its place."""
    network, watched = divided()
    network.heal()
    forged = Snapshot(3, 1, ConfState(voters=VOTERS), next_offset=2)
    network.step(MsgSnap(5, 2, 2, forged))
    assert network.node(5).last_index == 3
    assert watched.violations == ["log-start"]


def test_log_that_ends_earlier_though_nothing_contradicts_it_is_noticed() -> None:
    """§7: entries after the snapshot's entry are kept, if the log has that entry."""
    network, watched = divided()
    log = network.node(1).raft.log
    log.restore(Snapshot(4, 1, ConfState(voters=VOTERS), next_offset=3))
    watched.observe(network.node(1))
    assert watched.violations == ["log-cut"]


def test_candidate_with_an_empty_log_names_its_last_entry_rightly() -> None:
    """Its entries are deleted; the term of the last one is still on the disk."""
    violations: list[str] = []
    watch = RaftWatch([], lambda name, detail: violations.append(name))
    log = watch.lost[7, 1] = DurableLog()
    log.reset(first=6, term_before=2)
    log.term, log.vote = 4, 1
    life = cast(Life, SimpleNamespace(machine=SimpleNamespace(name="s1")))
    watch._asked_for_votes(life, watch.group(7), MsgVote(2, 1, 4, index=5, log_term=2))
    assert violations == []
    watch._asked_for_votes(life, watch.group(7), MsgVote(2, 1, 4, index=5, log_term=3))
    assert violations == ["candidate-not-durable"]


def test_snapshot_whose_state_is_older_than_it_says_is_noticed() -> None:
    """Entries between the two would be missing for good (§7)."""
    _, watched = divided()
    conf = ConfState(voters=VOTERS)
    for reflects, told in ((4, []), (3, ["snapshot-ahead"])):
        data = encode_snapshot(members_of(conf, reflects=reflects), [])
        replica = watched.replicas[1 if told else 5]
        replica.node.raft.log.restore(Snapshot(4, 2, conf, 3, data))
        watched.observe(replica.node)
        assert watched.violations == told


def test_state_that_is_taken_for_an_older_one_is_noticed() -> None:
    """Reflected entries would be applied again; before the installation nothing is wrong."""
    conf = ConfState(voters=VOTERS)
    data = encode_snapshot(members_of(conf, reflects=9), [])
    for reflects, told in ((9, []), (4, ["reflects-forgotten"])):
        _, watched = divided()
        replica = watched.replicas[5]
        raft, group = replica.node.raft, replica.group
        group.applied = 0
        raft.log.restore(Snapshot(4, 2, conf, 3, data))
        watched.observe(replica.node)
        assert watched.violations == []
        raft.log.snapshot, raft.log.applying, raft.log.applied = None, 4, 4
        group.applied, group.reflects = 4, reflects
        watched.observe(replica.node)
        assert watched.violations == told
