"""The invariants detect the violations they are meant for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.invariants import ClusterInvariants, InvariantViolation, check_node
from raft.node import RawNode
from raft.state import CANDIDATE, FOLLOWER, LEADER
from raft.types import ConfState, Entry, Snapshot
from tests.unit.raft.network import Network


def settled() -> Network:
    """Return a network where node 1 leads term 1 and a few entries are on all nodes."""
    network = Network()
    network.elect(1)
    network.propose(b"a", b"b")
    network.settle()
    return network


def lead_wrongly(node: RawNode) -> None:
    node.raft.lead = 2


def follow_oneself(node: RawNode) -> None:
    node.raft.state = FOLLOWER


def stand_without_own_vote(node: RawNode) -> None:
    node.raft.state, node.raft.lead, node.raft.vote = CANDIDATE, 0, 2


def commit_beyond_the_end(node: RawNode) -> None:
    node.raft.log.committed = 99


def apply_beyond_commit(node: RawNode) -> None:
    node.raft.log.applying = 99


def lose_a_tail_entry(node: RawNode) -> None:
    node.propose([Entry(data=b"x")])
    node.raft.log.entries.pop()


def count_offsets_wrongly(node: RawNode) -> None:
    node.propose([Entry(data=b"x")])
    node.raft.log.next_offset += 1


def believe_too_much_of_a_peer(node: RawNode) -> None:
    node.raft.progress[2].match = 99


@pytest.mark.parametrize(
    "damage",
    [
        lead_wrongly,
        follow_oneself,
        stand_without_own_vote,
        commit_beyond_the_end,
        apply_beyond_commit,
        lose_a_tail_entry,
        count_offsets_wrongly,
        believe_too_much_of_a_peer,
    ],
)
def test_damaged_node_is_noticed(damage: Callable[[RawNode], None]) -> None:
    """Checks of one replica against itself."""
    node = settled().node(1)
    check_node(node)
    damage(node)
    with pytest.raises(InvariantViolation):
        check_node(node)


def test_second_leader_of_a_term_is_noticed() -> None:
    """Election Safety (§5.2)."""
    network = settled()
    network.node(2).raft.state, network.node(2).raft.lead = LEADER, 2
    with pytest.raises(InvariantViolation, match="Election Safety"):
        network.invariants.observe(network.node(2))


def test_changed_vote_is_noticed() -> None:
    """One vote a term (§5.2)."""
    network = settled()
    network.node(2).raft.vote = 3
    with pytest.raises(InvariantViolation, match="one vote"):
        network.invariants.observe(network.node(2))


@pytest.mark.parametrize("field", ["term", "commit"])
def test_going_back_is_noticed(field: str) -> None:
    """Terms and commit indexes only grow."""
    network = settled()
    raft = network.node(2).raft
    if field == "term":
        raft.term -= 1
    else:
        raft.log.committed = raft.log.applying = raft.log.applied = 2
    with pytest.raises(InvariantViolation, match="never decreases"):
        network.invariants.observe(network.node(2))


@pytest.mark.parametrize("what", ["data", "term", "base_offset"])
def test_different_entry_committed_at_an_index_is_noticed(what: str) -> None:
    """State Machine Safety (§5.4.3)."""
    network = settled()
    invariants = ClusterInvariants()
    invariants.observe(network.node(1))
    entry = network.hosts[2].storage.entries(3, 4, 1)[0]
    changed = Entry(entry.term, entry.index, entry.kind, entry.data, entry.base_offset, 1)
    setattr(changed, what, b"?" if what == "data" else 9)
    network.hosts[2].storage._entries[1] = changed
    with pytest.raises(InvariantViolation, match="State Machine Safety"):
        invariants.observe(network.node(2))


def test_leader_without_a_committed_entry_is_noticed() -> None:
    """Leader Completeness (§5.4.3)."""
    network = settled()
    node = network.node(2)
    log = node.raft.log
    log.applied = log.applying = log.committed = 1
    log.append([Entry(2, 2)])
    node.raft.term, node.raft.vote = 2, 2
    node.raft.state, node.raft.lead = LEADER, 2
    network.invariants._seen.pop(2)
    with pytest.raises(InvariantViolation, match="Leader Completeness"):
        network.invariants.observe(node)


def test_leader_with_an_empty_log_behind_another_entry_is_noticed() -> None:
    """Leader Completeness (§5.4.3): the term of a compacted entry is still known."""
    network = settled()
    last = network.node(1).commit
    network.invariants._seen.pop(2)
    raft = network.add(2, Snapshot(last, 7, ConfState(voters=(1, 2, 3)), next_offset=2)).node.raft
    raft.term, raft.vote, raft.state, raft.lead = 2, 2, LEADER, 2
    with pytest.raises(InvariantViolation, match="Leader Completeness"):
        network.invariants.observe(network.node(2))


def test_leader_that_drops_entries_is_noticed() -> None:
    """Leader Append-Only (§5.3)."""
    network = settled()
    network.invariants._seen[1].led_last += 1
    with pytest.raises(InvariantViolation, match="Append-Only"):
        network.invariants.observe(network.node(1))


def test_logs_that_agree_in_term_but_not_before_are_noticed() -> None:
    """Log Matching (§5.3)."""
    network = settled()
    nodes = [network.node(node) for node in (1, 2, 3)]
    network.invariants.check_logs(nodes)
    network.hosts[2].storage._entries[1] = Entry(7, 3)
    with pytest.raises(InvariantViolation, match="Log Matching"):
        network.invariants.check_logs(nodes)
