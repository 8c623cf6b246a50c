"""Elections: §5.2, §5.4.1, pre-vote (thesis §9.6), check-quorum (§6.2), stickiness (§4.2.3)."""

from __future__ import annotations

import pytest

from raft.errors import DropReason, ProposalDropped, StepLocalMessage, StepPeerNotFound
from raft.membership import encode_conf_change
from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgStorageAppend,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
)
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeType,
    Entry,
    EntryKind,
    StateType,
)
from tests.unit.raft.network import ELECTION_TICKS, Network

FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER = StateType


def sent(network: Network, node: int) -> list[Message]:
    """Return the messages in a node's next Ready."""
    return network.hosts[node].take_ready()


def test_node_that_starts_is_a_follower() -> None:
    """§5.2: when servers start up, they begin as followers."""
    assert Network().node(1).state is FOLLOWER


def test_message_with_higher_term_is_taken_over() -> None:
    """§5.1: a server updates its term when it sees a larger one."""
    network = Network()
    network.step(MsgApp(2, 1, 7, 1, 1, [], 1))
    assert network.node(2).term == 7
    assert network.node(2).lead == 1


@pytest.mark.parametrize("role", ["candidate", "leader"])
def test_candidate_or_leader_that_sees_a_higher_term_becomes_follower(role: str) -> None:
    """§5.1: a server whose term is out of date reverts to follower at once."""
    network = Network()
    network.node(1).campaign()
    if role == "leader":
        network.settle()
    network.step(MsgAppResp(1, 2, 9, 0))
    assert network.node(1).state is FOLLOWER
    assert network.node(1).term == 9


def test_message_with_stale_term_is_ignored() -> None:
    """§5.1: a request with a stale term number is rejected."""
    network = Network()
    network.step(MsgApp(2, 1, 5, 1, 1, [], 1))
    sent(network, 2)
    network.step(MsgApp(2, 3, 4, 1, 1, [Entry(4, 2)], 1))
    assert network.node(2).last_index == 1
    assert not sent(network, 2)


def test_follower_that_hears_nothing_campaigns_after_the_randomized_timeout() -> None:
    """§5.2: a follower that receives no communication over the election timeout campaigns."""
    network = Network()
    node = network.node(1)
    timeout = node.ticks_until_due()
    assert ELECTION_TICKS <= timeout < 2 * ELECTION_TICKS
    network.tick(1, timeout - 1)
    assert node.state is FOLLOWER
    network.tick(1)
    assert node.state is CANDIDATE
    assert node.term == 1
    assert node.vote == 1
    assert [type(m) for m in sent(network, 1)] == [MsgVote, MsgVote]


def test_election_timeouts_are_drawn_from_the_whole_interval() -> None:
    """§5.2: randomized timeouts, so that split votes are rare."""
    network = Network(1, seed=3)
    drawn = set()
    for _ in range(300):
        network.node(1).raft.draw_election_timeout()
        drawn.add(network.node(1).raft.randomized_election_timeout)
    assert drawn == set(range(ELECTION_TICKS, 2 * ELECTION_TICKS))


def test_heartbeat_of_the_leader_defers_the_election() -> None:
    """§5.2: a server remains a follower as long as it hears from a leader."""
    network = Network()
    network.elect(1)
    for _ in range(5 * ELECTION_TICKS):
        network.tick(1)
        network.tick(2)
        network.settle()
    assert network.node(2).state is FOLLOWER
    assert network.node(1).term == 1


@pytest.mark.parametrize(
    ("voters", "grants", "role"),
    [(1, 0, LEADER), (3, 0, CANDIDATE), (3, 1, LEADER), (5, 1, CANDIDATE), (5, 2, LEADER)],
)
def test_candidate_with_votes_of_a_majority_leads(
    voters: int, grants: int, role: StateType
) -> None:
    """§5.2: a candidate wins with votes from a majority of the full cluster."""
    network = Network(voters)
    network.node(1).campaign()
    sent(network, 1)
    for voter in range(2, 2 + grants):
        network.step(MsgVoteResp(1, voter, 1))
    assert network.node(1).state is role


def test_candidate_refused_by_a_majority_becomes_follower() -> None:
    """§5.2: a lost election ends the candidacy; the term stays."""
    network = Network()
    network.node(1).campaign()
    network.step(MsgVoteResp(1, 2, 1, reject=True))
    network.step(MsgVoteResp(1, 3, 1, reject=True))
    assert network.node(1).state is FOLLOWER
    assert network.node(1).term == 1


def test_vote_counted_twice_is_one_vote() -> None:
    """§5.2: a repeated message is not a second vote."""
    network = Network(5)
    network.node(1).campaign()
    sent(network, 1)
    for _ in range(3):
        network.step(MsgVoteResp(1, 2, 1))
    assert network.node(1).state is CANDIDATE


def test_candidates_own_vote_counts_only_once_durable() -> None:
    """Figure 2: votedFor is durable before any server, the voter included, relies on it."""
    network = Network(async_storage_writes=True)
    network.node(1).campaign()
    network.collect(1)
    network.step(MsgVoteResp(1, 2, 1))
    assert network.node(1).state is CANDIDATE
    network.storage_step(1)
    assert network.node(1).state is LEADER


def test_voter_votes_for_one_candidate_a_term() -> None:
    """§5.2: at most one vote in a given term, first come first served."""
    network = Network()
    network.step(MsgVote(3, 1, 1, 1, 1))
    network.step(MsgVote(3, 2, 1, 1, 1))
    network.step(MsgVote(3, 1, 1, 1, 1))
    answers = [(m.to, m.reject) for m in sent(network, 3) if isinstance(m, MsgVoteResp)]
    assert answers == [(1, False), (2, True), (1, False)]


def test_voter_keeps_its_vote_when_it_steps_down_in_the_same_term() -> None:
    """§5.2: the end of a candidacy frees no vote; otherwise one term could elect two leaders."""
    network = Network()
    network.node(1).campaign()
    network.step(MsgApp(1, 2, 1, 1, 1, [], 1))
    network.step(MsgVote(1, 3, 1, 1, 1))
    assert network.node(1).vote == 1
    assert [m.reject for m in sent(network, 1) if isinstance(m, MsgVoteResp)] == [True]


def test_vote_survives_a_crash() -> None:
    """Figure 2: currentTerm and votedFor are persistent."""
    network = Network()
    network.step(MsgVote(3, 1, 4, 1, 1))
    network.collect(3)
    network.crash(3)
    assert (network.node(3).term, network.node(3).vote) == (4, 1)


@pytest.mark.parametrize(
    ("log_term", "index", "granted"),
    [(2, 1, False), (2, 2, True), (2, 3, True), (1, 9, False), (3, 1, True)],
)
def test_voter_refuses_a_candidate_whose_log_is_behind(
    log_term: int, index: int, granted: bool
) -> None:
    """§5.4.1: the later term, and in the same term the longer log, is more up to date."""
    network = Network()
    network.step(MsgApp(2, 1, 2, 1, 1, [Entry(2, 2)], 1))
    sent(network, 2)
    network.step(MsgVote(2, 3, 5, log_term, index))
    [answer] = [m for m in sent(network, 2) if isinstance(m, MsgVoteResp)]
    assert answer.reject is not granted


def test_candidate_that_meets_the_leader_of_its_term_follows() -> None:
    """§5.2: an AppendEntries from the leader of an equal term ends the candidacy."""
    network = Network()
    network.node(1).campaign()
    network.step(MsgHeartbeat(1, 2, 1, 1))
    assert network.node(1).state is FOLLOWER
    assert network.node(1).lead == 2


def test_new_leader_appends_an_empty_entry_of_its_term() -> None:
    """§8: a blank no-op entry at the start of the term shows what is committed."""
    network = Network()
    leader = network.elect(1)
    assert leader.own_term_committed
    assert leader.commit == leader.last_index == 2
    assert [e.term for e in network.hosts[2].applied] == [1]


def test_learner_does_not_campaign_but_votes() -> None:
    """Thesis §4.2.1: non-voting members. They vote, as a candidate may know a newer membership."""
    network = Network(2, learners=1)
    network.node(3).campaign()
    assert network.node(3).state is FOLLOWER
    network.step(MsgVote(3, 1, 1, 1, 1))
    assert [m.reject for m in sent(network, 3) if isinstance(m, MsgVoteResp)] == [False]


def test_node_with_unapplied_membership_change_does_not_campaign() -> None:
    """§6: membership takes effect at apply, so an unapplied change means unknown voters."""
    network = Network(async_storage_writes=True)
    leader = network.elect(1)
    leader.propose_conf_change(ConfChange((ConfChangeSingle(ConfChangeType.ADD_NODE, 4),)))
    host = network.hosts[2]
    while host.node.commit < leader.last_index:
        for node in (1, 3):
            network.settle(node)
        while network.messages:
            network.deliver()
        network.collect(2)
        while host.append_work:
            host.complete_append()
        network.deliver_to_self(2)
    assert host.node.applied < host.node.commit
    host.node.campaign()
    assert host.node.state is FOLLOWER
    network.settle(2)
    host.node.campaign()
    assert host.node.state is CANDIDATE


def test_earlier_of_two_membership_changes_is_applied_before_a_campaign() -> None:
    """Thesis §4.1: the later one proves it committed, even if a crash lost the commit index.

    With members two changes old, 1 and 2 would be a majority, while 3, 4 and 5 are one too.
    """
    network = Network(async_storage_writes=True)
    changes = [
        Entry(1, 2, EntryKind.NOOP),
        *(
            Entry(
                1,
                index,
                EntryKind.CONF_CHANGE_V2,
                encode_conf_change(
                    ConfChange((ConfChangeSingle(ConfChangeType.ADD_NODE, index + 1),))
                ),
            )
            for index in (3, 4)
        ),
    ]
    for node in (2, 3):
        network.step(MsgApp(node, 1, 1, 1, 1, list(changes), 1))
        network.settle(node)
    network.messages.clear()
    network.crash(2)
    node = network.node(2)
    assert (node.commit, node.last_index) == (1, 4)
    node.campaign()
    assert node.state is FOLLOWER
    assert node.commit == 3
    network.settle(2)
    assert network.hosts[2].storage.initial_state()[0].commit == 3
    assert node.voters() == {1, 2, 3, 4}
    node.campaign()
    assert node.state is CANDIDATE
    network.add(4)
    network.settle(2, 3, 4)
    assert node.is_leader
    assert node.voters() == {1, 2, 3, 4, 5}


def test_single_uncommitted_membership_change_is_no_reason_to_wait() -> None:
    """Only the replica that commits it can know if it is committed: possibly this candidate."""
    network = Network()
    change = ConfChange((ConfChangeSingle(ConfChangeType.ADD_NODE, 4),))
    entry = Entry(1, 2, EntryKind.CONF_CHANGE_V2, encode_conf_change(change))
    network.step(MsgApp(2, 1, 1, 1, 1, [entry], 1))
    network.settle(2)
    network.node(2).campaign()
    assert network.node(2).commit == 1
    assert network.node(2).state is CANDIDATE


# --- Pre-vote ----------------------------------------------------------------------------------


def test_pre_candidate_keeps_term_and_vote() -> None:
    """Thesis §9.6: a pre-vote request does not raise the term."""
    network = Network(pre_vote=True)
    network.node(1).campaign()
    assert network.node(1).state is PRE_CANDIDATE
    assert (network.node(1).term, network.node(1).vote) == (0, 0)
    assert [m.term for m in sent(network, 1)] == [1, 1]


def test_pre_candidate_with_a_majority_becomes_candidate_then_leader() -> None:
    """Thesis §9.6: the real election follows a won pre-vote."""
    network = Network(pre_vote=True, check_quorum=True)
    network.elect(1)
    assert network.node(1).term == 1


def test_cut_off_node_does_not_raise_the_term() -> None:
    """Thesis §9.6: a partitioned server that comes back does not disrupt."""
    network = Network(pre_vote=True, check_quorum=True)
    network.elect(1)
    network.isolate(3)
    for _ in range(10 * ELECTION_TICKS):
        for node in (1, 2, 3):
            network.tick(node)
        network.settle()
    network.heal()
    assert network.node(3).term == 1
    network.tick(1, 2)
    network.settle()
    assert network.node(1).is_leader
    assert network.node(3).lead == 1


def test_pre_vote_of_an_older_term_is_answered_with_the_newer_one() -> None:
    """Thesis §9.6: otherwise two candidates of different terms could refuse each other forever."""
    network = Network(pre_vote=True)
    network.step(MsgApp(2, 1, 6, 1, 1, [], 1))
    sent(network, 2)
    network.step(MsgPreVote(2, 3, 4, 1, 1))
    [answer] = sent(network, 2)
    assert answer == MsgPreVoteResp(3, 2, 6, reject=True)


def test_pre_vote_does_not_raise_the_voters_term() -> None:
    """Thesis §9.6: a pre-vote changes no term, granted or not."""
    network = Network(pre_vote=True)
    for index in (1, 0):
        network.step(MsgPreVote(2, 3, 8, 1, index))
    assert (network.node(2).term, network.node(2).vote) == (0, 0)
    assert sent(network, 2) == [
        MsgPreVoteResp(3, 2, 8),
        MsgPreVoteResp(3, 2, 0, reject=True),
    ]


def test_granted_pre_vote_does_not_raise_the_askers_term() -> None:
    """Thesis §9.6: a grant carries the requested term, which no server has reached."""
    network = Network(5, pre_vote=True)
    network.node(1).campaign()
    sent(network, 1)
    network.step(MsgPreVoteResp(1, 2, 1))
    assert network.node(1).term == 0
    assert network.node(1).state is PRE_CANDIDATE


# --- Check-quorum and stickiness ---------------------------------------------------------------


def test_leader_that_hears_no_quorum_steps_down() -> None:
    """Thesis §6.2: a leader steps down when an election timeout passes without a majority."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.isolate(1)
    network.tick(1, 2 * ELECTION_TICKS)
    assert network.node(1).state is FOLLOWER
    assert network.node(1).term == 1


def test_leader_that_hears_a_quorum_stays() -> None:
    """Thesis §6.2: one follower of two is enough."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.isolate(3)
    for _ in range(5 * ELECTION_TICKS):
        network.tick(1)
        network.settle()
    assert network.node(1).is_leader


@pytest.mark.parametrize(("silent", "leads"), [({3}, True), ({2, 3}, False)])
def test_leader_that_is_told_of_silence_steps_down_before_its_period_ends(
    silent: set[int], leads: bool
) -> None:
    """Thesis §6.2: an election timeout without a majority counts whenever it began."""
    network = Network(check_quorum=True)
    network.elect(1)
    assert network.node(1).peers_silent(silent) is not leads
    assert network.node(1).is_leader is leads
    assert network.node(1).term == 1
    assert not network.node(2).peers_silent({1, 3})


def test_voter_with_a_live_leader_ignores_candidates() -> None:
    """Thesis §4.2.3: within the minimum election timeout of hearing a leader, no vote, no term."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.step(MsgVote(2, 3, 9, 9, 9))
    assert network.node(2).term == 1
    assert not sent(network, 2)


def test_voter_listens_to_a_candidate_the_leader_sent() -> None:
    """Thesis §4.2.3: an election requested by the leader overrides stickiness."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.step(MsgVote(2, 3, 9, 9, 9, transfer=True))
    assert network.node(2).term == 9
    assert network.node(2).vote == 3


def test_stuck_candidate_answers_an_older_leader_so_that_it_learns_the_term() -> None:
    """Thesis §6.2 with §9.6: a node of a higher term must not stay excluded forever."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.isolate(3)
    network.node(3).campaign()
    network.settle()
    network.heal()
    assert network.node(3).term == 2
    network.tick(1)
    network.settle()
    assert network.node(1).term == 2
    assert not network.node(1).is_leader


def test_forgotten_leader_no_longer_makes_a_voter_deaf() -> None:
    """Thesis §4.2.3: stickiness ends when the leader is forgotten."""
    network = Network(check_quorum=True)
    network.elect(1)
    network.node(2).forget_leader()
    assert network.node(2).lead == 0
    network.step(MsgVote(2, 3, 9, 9, 9))
    assert network.node(2).vote == 3


# --- Input checks ------------------------------------------------------------------------------


def test_answer_of_a_stranger_is_refused() -> None:
    """§6: only members may send responses."""
    node = Network().node(1)
    with pytest.raises(StepPeerNotFound) as caught:
        node.step(MsgAppResp(1, 9, 1, 1))
    assert caught.value.peer == 9


def test_local_message_from_outside_is_refused() -> None:
    """Only the node itself sends messages to its storage."""
    node = Network().node(1)
    with pytest.raises(StepLocalMessage):
        node.step(MsgStorageAppend(1, 2))


def test_timeout_now_reaches_only_followers() -> None:
    """Thesis §3.10: a leader that receives TimeoutNow stays the leader."""
    network = Network()
    network.elect(1)
    network.step(MsgTimeoutNow(1, 2, 1))
    assert network.node(1).term == 1


def test_candidate_refuses_proposals() -> None:
    """§5.2: a candidate knows no leader to forward them to."""
    network = Network()
    network.node(1).campaign()
    with pytest.raises(ProposalDropped) as caught:
        network.node(1).propose([Entry(data=b"x")])
    assert caught.value.reason is DropReason.NO_LEADER
