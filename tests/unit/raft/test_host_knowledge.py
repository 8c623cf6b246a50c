"""Knowledge of the host: leader lists as heartbeats, fast failover, a timer wheel, views."""

from __future__ import annotations

from typing import Any

import pytest

from raft.errors import InvalidConfig
from raft.follower import become_follower
from raft.messages import MsgApp, MsgAppResp, MsgHeartbeat
from raft.node import NEVER_DUE
from raft.types import NONE, Entry, StateType
from tests.unit.raft.network import ELECTION_TICKS, Network

QUIET: dict[str, Any] = {"quiet_heartbeats": True, "check_quorum": True, "pre_vote": True}


def beats(network: Network, node: int) -> list[int]:
    """Return the receivers of the heartbeats in a node's next Ready."""
    return [m.to for m in network.hosts[node].take_ready() if isinstance(m, MsgHeartbeat)]


# --- leader_heard, peer_heard ------------------------------------------------------------------


def test_leader_heard_defers_the_election_from_the_proved_moment() -> None:
    """The list confirms a moment in the past, not the present."""
    network = Network(check_quorum=True)
    network.elect(1)
    node = network.node(2)
    node.set_election_timeout(12)
    network.tick(2, 9)
    node.leader_heard(4)
    assert node.ticks_until_due() == 8
    network.tick(2, 7)
    assert network.node(2).state is StateType.FOLLOWER
    network.tick(2)
    assert network.node(2).state is StateType.CANDIDATE


def test_leader_heard_never_takes_back_what_is_newer() -> None:
    """An old proof does not override a fresh message."""
    network = Network()
    network.elect(1)
    network.tick(2, 2)
    network.node(2).leader_heard(5)
    assert network.node(2).raft.election_elapsed == 2


def test_leader_heard_without_a_known_leader_changes_nothing() -> None:
    """Without a known leader the proof applies to none."""
    node = Network().node(2)
    node.tick(3)
    node.leader_heard(0)
    assert node.raft.election_elapsed == 3


def test_leader_heard_with_its_name_tells_a_restarted_follower_who_leads() -> None:
    """The list names group, term and leader, and so counts like a heartbeat."""
    network = Network()
    network.elect(1)
    network.crash(2)
    node = network.node(2)
    assert node.lead == 0
    node.leader_heard(3, lead=1, term=1)
    assert node.lead == 1
    assert node.raft.election_elapsed == 3
    node.leader_heard(0, lead=3, term=4)
    assert (node.term, node.lead, node.vote) == (4, 3, 0)
    node.leader_heard(0, lead=1, term=3)
    assert (node.term, node.lead) == (4, 3)


def test_peers_heard_on_other_ways_keep_check_quorum() -> None:
    """Thesis §6.2: a majority must be alive, by whatever means it was heard."""
    network = Network(**QUIET)
    leader = network.elect(1)
    for _ in range(5):
        network.tick(1, ELECTION_TICKS - 1)
        leader.peer_heard(2)
        network.tick(1)
    assert leader.is_leader
    assert beats(network, 1) == []
    network.tick(1, 2 * ELECTION_TICKS)
    assert not leader.is_leader


def test_stranger_heard_is_nothing() -> None:
    """A node that is not a member has no progress."""
    network = Network()
    leader = network.elect(1)
    members = list(leader.raft.progress)
    leader.peer_heard(77)
    assert list(leader.raft.progress) == members


# --- quiet_heartbeats --------------------------------------------------------------------------


def test_quiet_leader_sends_no_heartbeats_to_peers_in_step() -> None:
    """Cost is O(1) per link for all unchanged groups."""
    network = Network(**QUIET)
    network.elect(1)
    network.tick(1, 3)
    assert beats(network, 1) == []


def test_quiet_leader_sends_heartbeats_to_peers_out_of_step() -> None:
    """Out of step: behind, being probed, or without the newest commit index."""
    network = Network(**QUIET)
    leader = network.elect(1)
    network.isolate(3)
    network.propose(b"x")
    network.settle()
    network.tick(1)
    assert beats(network, 1) == [3]
    leader.report_unreachable(2)
    network.tick(1)
    assert beats(network, 1) == [2, 3]
    progress = leader.progress(2)
    assert progress is not None
    progress.become_replicate()
    progress.sent_commit = 0
    network.tick(1)
    assert 2 in beats(network, 1)


def test_quiet_leader_sends_no_heartbeats_to_peers_nobody_can_send_to() -> None:
    """None are due for them either: a server that is down costs nothing per group."""
    unlinked: set[int] = set()
    network = Network(**QUIET, is_linked=lambda peer: peer not in unlinked)
    leader = network.elect(1)
    network.isolate(3)
    network.propose(b"x")
    network.settle()
    unlinked.add(3)
    network.tick(1, 2)
    assert beats(network, 1) == []
    assert leader.ticks_until_due() == ELECTION_TICKS - 2
    unlinked.clear()
    assert leader.ticks_until_due() == 1
    network.tick(1)
    assert beats(network, 1) == [3]
    unlinked.add(3)
    assert leader.read_index(b"context")
    assert beats(network, 1) == [2, 3], "a read's round asks everybody"


def leave_behind(network: Network, data: bytes) -> None:
    """Make node 3 miss an entry."""
    network.isolate(3)
    network.propose(data)
    network.settle()


def rounds_asked(network: Network, rounds: int, peer: int = 3) -> list[int]:
    """Return which of node 1's next heartbeat rounds include a peer."""
    asked = []
    for number in range(1, rounds + 1):
        network.tick(1)
        if peer in beats(network, 1):
            asked.append(number)
    return asked


def test_quiet_leader_asks_a_peer_that_does_not_answer_less_and_less_often() -> None:
    """Otherwise thousands of groups would keep a slow peer slow forever."""
    network = Network(**QUIET, election_ticks=100)
    leader = network.elect(1)
    leave_behind(network, b"x")
    assert rounds_asked(network, 38) == [1, 2, 3, 5, 7, 11, 15, 23, 31]
    assert leader.ticks_until_due() == 1
    network.tick(1)
    assert beats(network, 1) == [3]
    assert leader.ticks_until_due() == 8
    leader.report_unreachable(3)
    assert rounds_asked(network, 4) == [1, 2, 3], "a new link: what was asked on the old is lost"
    network.heal()
    network.tick(1)
    network.settle()
    assert rounds_asked(network, 4) == []
    leave_behind(network, b"y")
    assert rounds_asked(network, 4) == [1, 2, 3], "it has answered since"


def test_quiet_leader_does_not_ask_again_what_has_not_been_read() -> None:
    """A slow peer answers when it gets to the message."""
    heard_ago = 1_000
    network = Network(**QUIET, election_ticks=100, heard_ago=lambda _: heard_ago)
    leader = network.elect(1)
    leave_behind(network, b"x")
    assert rounds_asked(network, 14) == [1]
    assert leader.asks
    heard_ago = 14  # sent in the round of the heartbeat, so possibly before it
    network.tick(1)
    assert beats(network, 1) == []
    heard_ago = 1
    assert rounds_asked(network, 8) == [8]
    assert leader.read_index(b"r")
    assert beats(network, 1) == [2, 3], "a read's round asks everybody"


def test_quiet_leader_gives_a_proposal_a_whole_interval() -> None:
    """A slow answer causes no extra heartbeat only because the leader was idle for long before."""
    network = Network(**QUIET, heartbeat_ticks=4)
    leader = network.elect(1)
    network.tick(1, 3)
    network.cut = lambda _: True
    network.propose(b"x")
    network.settle()
    assert leader.ticks_until_due() == 4
    network.tick(1, 3)
    assert beats(network, 1) == []
    network.tick(1)
    assert beats(network, 1) == [2, 3]


def test_proposals_do_not_put_off_heartbeats_somebody_waits_for() -> None:
    """A peer that lost an append, or a read to confirm, gets its heartbeat despite proposals."""
    network = Network(**QUIET, heartbeat_ticks=4)
    leader = network.elect(1)
    leave_behind(network, b"lost on its way to 3")
    for _ in range(3):
        network.tick(1)
        network.propose(b"x")
        network.settle()
    network.tick(1)
    assert beats(network, 1) == [3]
    network.heal()
    network.tick(1, 4)
    network.settle()
    leader.read_index(b"r")
    assert beats(network, 1) == [2, 3]
    for _ in range(3):
        network.tick(1)
        leader.propose([Entry(data=b"x")])
    network.tick(1)
    # One for the read, which may overtake the entries, and one behind them.
    assert beats(network, 1) == [2, 3, 2, 3]


def test_quiet_leader_with_a_read_to_confirm_asks_everybody() -> None:
    """§8: the round needs answers."""
    network = Network(**QUIET)
    leader = network.elect(1)
    leader.read_index(b"r")
    assert beats(network, 1) == [2, 3]
    network.tick(1)
    assert beats(network, 1) == [2, 3]


def test_quiet_cluster_heals_after_a_lost_append() -> None:
    """Heartbeats are only suppressed for peers in step."""
    network = Network(**QUIET)
    network.elect(1)
    network.isolate(3)
    network.propose(b"x")
    network.settle()
    network.heal()
    network.tick(1)
    network.settle()
    assert network.node(3).applied == 3


# --- campaign_soon, ticks_until_due, tick(n) ---------------------------------------------------


def test_campaign_soon_is_due_in_that_many_ticks() -> None:
    """Fast failover: followers of a dead leader campaign soon."""
    network = Network(**QUIET)
    network.elect(1)
    node = network.node(2)
    node.forget_leader()
    node.campaign_soon(3)
    assert node.ticks_until_due() == 3
    network.tick(2, 2)
    assert network.node(2).state is StateType.FOLLOWER
    network.tick(2)
    assert network.node(2).state is StateType.PRE_CANDIDATE


def test_campaign_soon_is_called_off_when_the_leader_is_heard() -> None:
    """The loss was a short disturbance of one link."""
    network = Network()
    network.elect(1)
    for proof in ("message", "list"):
        network.node(2).campaign_soon(3)
        if proof == "message":
            network.step(MsgApp(2, 1, 1, 1, 2, [], 2))
        else:
            network.node(2).leader_heard(0)
        network.tick(2, 5)
        assert network.node(2).state is StateType.FOLLOWER


def test_leader_has_nothing_to_campaign_for() -> None:
    """It leads already."""
    network = Network()
    leader = network.elect(1)
    leader.campaign_soon(1)
    network.tick(1, 3)
    assert leader.term == 1


# --- allow_leading -----------------------------------------------------------------------------


def test_replica_that_may_not_lead_does_not_campaign_and_votes() -> None:
    """Its host serves no clients: others lead, with its vote."""
    network = Network(**QUIET)
    network.elect(1)
    node = network.node(2)
    node.allow_leading(allowed=False)
    assert node.ticks_until_due() == NEVER_DUE
    node.campaign_soon(1)
    node.campaign()
    network.tick(2, 5 * ELECTION_TICKS)
    assert network.node(2).state is StateType.FOLLOWER
    network.isolate(1)
    network.tick(3, 3 * ELECTION_TICKS)
    network.settle()
    assert network.node(3).is_leader


def test_replica_that_may_not_lead_is_handed_leadership_in_vain() -> None:
    """Thesis §3.10: a leader may not know yet. It accepts proposals again after a timeout."""
    network = Network(**QUIET)
    leader = network.elect(1)
    network.node(2).allow_leading(allowed=False)
    leader.transfer_leader(2)
    network.settle()
    assert network.node(2).state is StateType.FOLLOWER
    assert network.node(1).is_leader
    network.tick(1, ELECTION_TICKS)
    assert network.node(1).transferring == 0


@pytest.mark.parametrize("pre_vote", [True, False])
def test_candidate_that_may_not_lead_any_more_is_elected_by_no_vote(pre_vote: bool) -> None:
    """Votes in flight to it come too late."""
    network = Network(pre_vote=pre_vote, durable_campaign=True, async_storage_writes=True)
    node = network.node(1)
    node.campaign()
    assert node.state is (StateType.PRE_CANDIDATE if pre_vote else StateType.CANDIDATE)
    node.allow_leading(allowed=False)
    network.settle()
    assert network.node(1).state is StateType.FOLLOWER
    network.node(2).campaign()
    network.settle()
    assert network.node(2).is_leader


def test_leader_that_may_not_lead_goes_on_until_it_hands_over() -> None:
    """Stepping down at once would cause an outage."""
    network = Network()
    leader = network.elect(1)
    leader.allow_leading(allowed=False)
    assert network.propose(b"x") is not None
    network.settle()
    assert network.node(1).is_leader
    leader.transfer_leader(2)
    network.settle()
    assert network.node(2).is_leader
    network.tick(1, 5 * ELECTION_TICKS)
    assert network.node(1).state is StateType.FOLLOWER


@pytest.mark.parametrize("seed", range(20))
def test_replica_that_may_lead_again_waits_for_part_of_a_timeout(seed: int) -> None:
    """Several may be allowed at the same time, so they must not campaign together.

    A leader that was silent for so long gets no lease (§6): this replica votes.
    """
    network = Network(seed=seed, **QUIET)
    network.elect(1)
    node = network.node(2)
    node.allow_leading(allowed=False)
    network.tick(2, 5 * ELECTION_TICKS)
    node.allow_leading(allowed=True)
    assert node.lead == 0
    assert 1 <= node.ticks_until_due() <= 2 * ELECTION_TICKS
    network.isolate(1)
    network.node(3).set_election_timeout(2 * ELECTION_TICKS)
    network.tick(3, ELECTION_TICKS)
    network.tick(2, node.ticks_until_due())
    network.settle()
    assert network.node(2).is_leader


def test_replica_that_may_lead_again_goes_on_with_a_timeout_that_has_not_run_out() -> None:
    network = Network(**QUIET)
    network.elect(1)
    node = network.node(2)
    node.set_election_timeout(15)
    network.tick(2, 4)
    node.allow_leading(allowed=False)
    network.tick(2, 4)
    node.allow_leading(allowed=True)
    assert node.lead == 1
    assert node.ticks_until_due() == 7


@pytest.mark.parametrize("seed", range(5))
def test_tick_does_nothing_before_ticks_until_due_and_something_then(seed: int) -> None:
    """A timer wheel may call a group only when something is due."""
    network = Network(seed=seed, heartbeat_ticks=3)
    for _ in range(10):
        for host in network.hosts.values():
            node = host.node
            due = node.ticks_until_due()
            assert due != NEVER_DUE
            if due > 1:
                node.tick(due - 1)
                assert not node.has_ready()
                assert node.ticks_until_due() == 1
            node.tick()
            assert node.has_ready()
            network.settle()


def test_many_ticks_at_once_act_once() -> None:
    """After a stall of the loop: one heartbeat round, one campaign."""
    network = Network()
    leader = network.elect(1)
    leader.tick(25)
    assert beats(network, 1) == [2, 3]
    network.node(2).tick(100)
    assert network.node(2).term == 2


def test_nodes_that_time_does_not_move_are_never_due() -> None:
    """A learner; a quiet leader without check-quorum whose peers are in step."""
    network = Network(2, learners=1, quiet_heartbeats=True)
    leader = network.elect(1)
    assert network.node(3).ticks_until_due() == NEVER_DUE
    assert leader.ticks_until_due() == NEVER_DUE
    network.propose(b"x")
    assert leader.ticks_until_due() == 1


def test_quiet_leader_is_due_for_check_quorum_and_the_end_of_a_transfer() -> None:
    """It is not due for heartbeats that no peer needs."""
    network = Network(**QUIET)
    leader = network.elect(1)
    assert leader.ticks_until_due() == ELECTION_TICKS
    network.tick(1, 4)
    assert leader.ticks_until_due() == ELECTION_TICKS - 4


def test_refusal_of_a_leaders_older_term_is_no_answer_to_its_probe() -> None:
    """Entries of the previous term may still be in flight when vote requests have overtaken them.

    Otherwise the replica would be taken for one with an empty log and be sent a snapshot, or the
    log from its beginning.
    """
    network = Network(**QUIET)
    leader = network.elect(1)
    network.propose(b"a", b"b", b"c")
    network.settle()
    network.hosts[1].compact(leader.applied)
    network.propose(b"on its way")
    network.collect(1)
    [entries] = [m for m in network.messages if isinstance(m, MsgApp) and m.to == 2]
    network.messages.clear()
    become_follower(leader.raft, leader.term, NONE)
    for number in (2, 3):
        network.node(number).forget_leader()
    network.cut = lambda message: isinstance(message, MsgApp) and message.to == 2
    network.elect(1)
    network.step(entries)
    network.collect(2)
    [refusal] = network.messages
    assert isinstance(refusal, MsgAppResp)
    network.step(refusal)
    network.messages.clear()
    assert not leader.has_ready()
    network.heal()
    network.tick(1)
    network.settle()
    progress = leader.progress(2)
    assert progress is not None
    assert progress.match == leader.last_index


# --- Views and settings ------------------------------------------------------------------------


def test_views_of_a_leader_and_of_a_follower() -> None:
    """These are the properties that a host reads many times a second."""
    network = Network()
    leader = network.elect(1)
    follower = network.node(2)
    assert (leader.is_leader, leader.lead, leader.own_term_committed) == (True, 1, True)
    assert (follower.is_leader, follower.lead, follower.own_term_committed) == (False, 1, False)
    assert follower.progress(1) is None
    assert leader.voters() == {1, 2, 3}
    status = leader.status()
    assert list(status.progress) == [1, 2, 3]
    assert (status.applied, status.hard_state.commit, leader.stable) == (2, 2, 2)
    assert follower.status().progress == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"heartbeat_ticks": 0},
        {"election_ticks": 1, "heartbeat_ticks": 1},
        {"max_inflight_msgs": 0},
        {"max_uncommitted_entries_size": 0},
        {"max_size_per_msg": 10, "max_inflight_bytes": 9},
        {"max_size_per_msg": -1},
        {"max_committed_size_per_ready": -1},
    ],
)
def test_impossible_setting_is_refused(settings: dict[str, Any]) -> None:
    """One past every limit of the settings."""
    with pytest.raises(InvalidConfig):
        Network(**settings)
