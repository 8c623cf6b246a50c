"""Linearizable reads (§8, thesis §6.4) and leadership transfer (thesis §3.10)."""

from __future__ import annotations

import pytest

from ids import NodeId
from raft.errors import DropReason, InvalidConfig, ProposalDropped
from raft.membership import encode_conf_change
from raft.messages import MsgTimeoutNow, MsgTransferLeader, MsgVoteResp
from raft.reads import WAITING_MAX, PendingReads
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    Entry,
    EntryKind,
    ReadOnlyOption,
    ReadState,
)
from tests.unit.raft.network import ELECTION_TICKS, Network

# --- Reads -------------------------------------------------------------------------------------


def test_read_at_the_leader_is_answered_after_a_heartbeat_round() -> None:
    """Thesis §6.4: step 3, a round of heartbeats answered by a majority."""
    network = Network()
    leader = network.elect(1)
    assert leader.read_index(b"r1")
    network.collect(1)
    assert network.hosts[1].read_states == []
    network.settle()
    assert network.hosts[1].read_states == [ReadState(leader.commit, b"r1")]


def test_read_at_a_follower_is_forwarded() -> None:
    """Thesis §6.4: followers request the read index from the leader."""
    network = Network()
    leader = network.elect(1)
    assert network.node(3).read_index(b"r1")
    network.settle()
    assert network.hosts[3].read_states == [ReadState(leader.commit, b"r1")]


def test_reads_that_nobody_answers_do_not_pile_up() -> None:
    """The hosts prove that the peers are alive, so the leader keeps leading indefinitely.

    The newest requests are answered in the end.
    """
    network = Network()
    leader = network.elect(1)
    asked = WAITING_MAX + 10
    for number in range(asked):
        leader.read_index(number.to_bytes(8, "big"))
    network.collect(1)
    network.messages.clear()
    leader.tick(leader.raft.heartbeat_ticks)
    network.settle()
    answered = network.hosts[1].read_states
    assert [int.from_bytes(state.context, "big") for state in answered] == [*range(10, asked)]


def test_reads_that_wait_for_a_first_commit_do_not_pile_up() -> None:
    """The commit may never come; only the newest requests wait for it."""
    reads = PendingReads()
    for number in range(WAITING_MAX + 10):
        reads.postpone(NodeId(1), number.to_bytes(8, "big"))
    assert len(reads.postponed) == WAITING_MAX
    assert reads.postponed[0] == (1, (10).to_bytes(8, "big"))


def test_equal_contexts_of_two_requesters_are_two_reads() -> None:
    """Each is answered at the index of its own arrival: contexts are unique per requester."""
    network = Network()
    leader = network.elect(1)
    leader.read_index(b"r1")
    network.collect(1)
    network.messages.clear()
    [entry] = network.propose(b"x")
    network.settle()
    assert network.node(3).read_index(b"r1")
    assert network.node(2).read_index(b"r1")
    network.settle()
    assert network.hosts[1].read_states == [ReadState(entry.index - 1, b"r1")]
    assert network.hosts[2].read_states == [ReadState(entry.index, b"r1")]
    assert network.hosts[3].read_states == [ReadState(entry.index, b"r1")]


def test_deposed_leader_answers_no_read() -> None:
    """§8: a leader must check that it was not deposed before it answers."""
    network = Network()
    network.elect(1)
    network.isolate(1)
    network.settle()
    network.elect(2)
    network.node(1).read_index(b"r1")
    network.settle()
    assert network.hosts[1].read_states == []
    network.heal()
    network.tick(2)
    network.settle()
    assert network.hosts[1].read_states == []


def test_read_before_the_first_commit_of_the_term_waits_for_it() -> None:
    """§8: until then the leader does not know which entries are committed."""
    network = Network()
    network.node(1).campaign()
    network.collect(1)
    network.step(MsgVoteResp(1, 2, 1))
    assert network.node(1).is_leader
    network.node(1).read_index(b"early")
    network.tick(1)
    assert not network.node(1).raft.pending_reads.last_round
    network.settle()
    assert network.hosts[1].read_states == [ReadState(2, b"early")]


def test_postponed_read_is_released_by_a_change_of_members_that_commits() -> None:
    """§8, §6: a smaller quorum may commit the term's first entry without another answer."""
    network = Network()
    network.node(1).campaign()
    network.collect(1)
    network.step(MsgVoteResp(1, 2, 1))
    leader = network.node(1)
    leader.read_index(b"early")
    network.isolate(1)
    network.settle()
    assert leader.is_leader
    assert not leader.own_term_committed
    removal = ConfChange(
        (
            ConfChangeSingle(ConfChangeType.REMOVE_NODE, 2),
            ConfChangeSingle(ConfChangeType.REMOVE_NODE, 3),
        ),
        ConfChangeTransition.AUTO,
    )
    leader.apply_conf_change(Entry(1, 2, EntryKind.CONF_CHANGE_V2, encode_conf_change(removal)))
    leader.apply_conf_change(Entry(1, 3, EntryKind.CONF_CHANGE_V2))
    network.settle()
    assert leader.own_term_committed
    assert [state.context for state in network.hosts[1].read_states] == [b"early"]


def test_later_round_confirms_earlier_reads() -> None:
    """Thesis §6.4: reads are queued, one round confirms all before it, at their own index."""
    network = Network()
    network.elect(1)
    network.node(1).read_index(b"r1")
    network.collect(1)
    network.messages.clear()
    [entry] = network.propose(b"x")
    network.settle()
    network.node(1).read_index(b"r2")
    network.settle()
    assert network.hosts[1].read_states == [
        ReadState(entry.index - 1, b"r1"),
        ReadState(entry.index, b"r2"),
    ]


def test_lost_round_is_repeated_by_the_next_heartbeat() -> None:
    """Thesis §6.4: heartbeats carry the newest context until it is confirmed."""
    network = Network()
    network.elect(1)
    network.node(1).read_index(b"r1")
    network.collect(1)
    network.messages.clear()
    network.tick(1)
    network.settle()
    assert [state.context for state in network.hosts[1].read_states] == [b"r1"]


def test_single_voter_reads_at_once() -> None:
    """Thesis §6.4: it is its own majority."""
    network = Network(1)
    network.elect(1)
    network.node(1).read_index(b"r1")
    network.settle()
    assert network.hosts[1].read_states == [ReadState(2, b"r1")]


def test_lease_read_is_answered_without_a_round() -> None:
    """Thesis §6.4.1: the lease that check-quorum maintains; not used in production."""
    network = Network(check_quorum=True, read_only_option=ReadOnlyOption.LEASE_BASED)
    network.elect(1)
    network.node(1).read_index(b"r1")
    assert network.node(1).ready().read_states == [ReadState(2, b"r1")]


def test_lease_reads_need_check_quorum() -> None:
    """Thesis §6.4.1: without it there is no lease."""
    with pytest.raises(InvalidConfig):
        Network(read_only_option=ReadOnlyOption.LEASE_BASED)


def test_read_without_a_leader_is_refused() -> None:
    """No leader is known to send it to."""
    network = Network()
    assert not network.node(1).read_index(b"r1")
    network.node(1).campaign()
    assert not network.node(1).read_index(b"r1")


# --- Transfer ----------------------------------------------------------------------------------


def test_leadership_goes_to_an_up_to_date_follower() -> None:
    """Thesis §3.10: TimeoutNow, and it wins the next term, stickiness notwithstanding."""
    network = Network(pre_vote=True, check_quorum=True)
    network.elect(1)
    network.node(1).transfer_leader(2)
    network.settle()
    assert network.node(2).is_leader
    assert network.node(2).term == 2


def test_transferee_is_brought_up_to_date_first() -> None:
    """Thesis §3.10: the log is replicated before TimeoutNow is sent."""
    network = Network()
    network.elect(1)
    network.isolate(3)
    network.propose(b"x")
    network.settle()
    network.heal()
    network.node(1).report_unreachable(3)
    network.node(1).transfer_leader(3)
    assert not any(isinstance(m, MsgTimeoutNow) for m in network.node(1).raft.msgs)
    network.settle()
    assert network.node(3).is_leader
    assert network.hosts[3].applied[-2].data == b"x"


def test_leader_takes_no_proposals_during_a_transfer() -> None:
    """Thesis §3.10: the prior leader stops accepting new requests."""
    network = Network()
    leader = network.elect(1)
    leader.transfer_leader(2)
    assert leader.transferring == 2
    with pytest.raises(ProposalDropped) as caught:
        network.propose(b"x")
    assert caught.value.reason is DropReason.TRANSFERRING


def test_transfer_that_takes_an_election_timeout_is_given_up() -> None:
    """Thesis §3.10: the prior leader then resumes."""
    network = Network()
    leader = network.elect(1)
    network.isolate(2)
    leader.transfer_leader(2)
    network.tick(1, ELECTION_TICKS - 1)
    assert leader.transferring == 2
    network.tick(1)
    assert leader.transferring == 0
    network.propose(b"x")


def test_transfer_to_a_node_that_cannot_be_reached_is_given_up_at_once() -> None:
    """TimeoutNow is lost with its link: proposals must not wait for the timeout."""
    network = Network()
    leader = network.elect(1)
    network.isolate(2)
    leader.transfer_leader(2)
    leader.report_unreachable(3)
    assert leader.transferring == 2
    leader.report_unreachable(2)
    assert leader.transferring == 0
    network.propose(b"x")


def test_second_transfer_replaces_the_first_and_one_to_the_leader_cancels() -> None:
    """Thesis §3.10: the operator changed the decision."""
    network = Network()
    leader = network.elect(1)
    network.isolate(2, 3)
    leader.transfer_leader(2)
    leader.transfer_leader(3)
    assert leader.transferring == 3
    leader.transfer_leader(1)
    assert leader.transferring == 0


def test_leadership_is_not_transferred_to_a_learner() -> None:
    """Thesis §4.2.1: it cannot lead."""
    network = Network(2, learners=1)
    leader = network.elect(1)
    leader.transfer_leader(3)
    leader.transfer_leader(9)
    assert leader.transferring == 0


def test_follower_passes_a_transfer_on() -> None:
    """Any node may receive the request; the leader acts on it."""
    network = Network()
    network.elect(1)
    network.node(3).transfer_leader(3)
    [message] = network.hosts[3].take_ready()
    assert message == MsgTransferLeader(1, 3, 1)
    network.step(message)
    network.settle()
    assert network.node(3).is_leader


def test_removal_of_the_transferee_ends_the_transfer() -> None:
    """Thesis §3.10: a server outside the configuration cannot lead."""
    network = Network()
    leader = network.elect(1)
    network.isolate(3)
    leader.propose_conf_change(ConfChange((ConfChangeSingle(ConfChangeType.REMOVE_NODE, 3),)))
    leader.transfer_leader(3)
    network.settle()
    assert leader.transferring == 0
